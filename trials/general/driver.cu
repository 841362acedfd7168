// SPDX-License-Identifier: Apache-2.0
// driver check [count] [seed]: random calls against the reference, outputs poisoned before.
// driver special [count] [seed]: the same with NaN, infinities and huge numbers in a key and a value.
// driver bits: what must not change a bit.
// driver time: the table.
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>

#include "cuda/exact/state.cuh"
#include "general/launch.hpp"
#include "reference.hpp"

namespace trial {
using heed::cuda::Call;
using heed::cuda::Tensor;
namespace general = heed::cuda::general;

inline void check_code(int code, const char* what, int line) {
  if (code == 0) return;
  std::printf("line %d: %s: %s\n", line, what, cudaGetErrorString(static_cast<cudaError_t>(code)));
  std::exit(1);
}
#define CHECK(x) check_code(static_cast<int>(x), #x, __LINE__)

// Memory on both sides.
struct Buffer {
  std::vector<unsigned char> host;
  unsigned char* device = nullptr;
  explicit Buffer(std::size_t bytes) : host(bytes) { CHECK(cudaMalloc(&device, bytes + 16)); }
  ~Buffer() { cudaFree(device); }
  void up() { CHECK(cudaMemcpy(device, host.data(), host.size(), cudaMemcpyHostToDevice)); }
  void down() { CHECK(cudaMemcpy(host.data(), device, host.size(), cudaMemcpyDeviceToHost)); }
};

// A call with its memory: `host` has pointers to the host's, `device` to the device's.
struct Problem {
  Call host{}, device{};
  std::vector<std::unique_ptr<Buffer>> buffers;
  std::vector<cudaStream_t> unused;
  Buffer *out = nullptr, *lse = nullptr, *weights = nullptr, *scores = nullptr;
  std::vector<const unsigned char*> tables;  // of pages, on the host
  std::string words;

  Buffer& buffer(std::size_t bytes) { return *buffers.emplace_back(std::make_unique<Buffer>(bytes)); }
  template <class T>
  void list(const std::vector<T>& x, const T*& host_at, const T*& device_at) {
    Buffer& b = buffer(x.size() * sizeof(T) + 16);
    std::memcpy(b.host.data(), x.data(), x.size() * sizeof(T));
    b.up();
    host_at = reinterpret_cast<const T*>(b.host.data()), device_at = reinterpret_cast<const T*>(b.device);
  }
  void both(Tensor Call::*member, const Tensor& t, Buffer& b, std::int64_t offset) {
    Tensor x = t;
    x.data = b.host.data() + offset, host.*member = x;
    x.data = b.device + offset, device.*member = x;
  }
};

using Random = std::mt19937_64;
float normal(Random& r) { return std::normal_distribution<float>()(r); }
int pick(Random& r, int low, int high) { return std::uniform_int_distribution<int>(low, high)(r); }
bool chance(Random& r, double p) { return std::uniform_real_distribution<>()(r) < p; }

// A tensor over (batch, heads, length, dim) with numbers of `fill`; strides odd where asked for.
template <class Fill>
Buffer& tensor(Problem& p, Tensor Call::*member, Type type, std::int64_t batch, std::int64_t heads,
               std::int64_t length, std::int64_t dim, bool odd, const Fill& fill, bool heads_inside = false) {
  Tensor t;
  t.type = type, t.stride.dim = 1;
  const std::int64_t width = odd ? dim + 3 : (dim + 7) / 8 * 8;
  if (heads_inside)
    t.stride.heads = width, t.stride.length = width * heads, t.stride.batch = t.stride.length * length;
  else
    t.stride.length = width, t.stride.heads = width * length, t.stride.batch = t.stride.heads * heads;
  const std::int64_t offset = odd ? bytes_of(type) : 0;
  Buffer& b = p.buffer(batch * heads * length * width * bytes_of(type) + 64);
  for (std::int64_t n = 0; n < batch * heads * length * width; ++n)
    from_float(type, b.host.data() + offset, n, fill());
  b.up();
  if (batch == 1) t.stride.batch = 0;
  if (heads == 1) t.stride.heads = 0;
  p.both(member, t, b, offset);
  return b;
}

struct Wish {
  Type type = Type::bf16;
  std::int64_t batch = 1, kv_heads = 1, group = 1, queries = 64, keys = 64, dim = 64, value_dim = 64;
  bool tiled = false, odd = false, causal = false, window = false, lengths = false, packed = false,
       ends = true, heads_inside = false;
  int front = 0;
  int bias = 0;  // 0: none; 1: shared; 2: per head; 3: per batch and head; 4: one row
  Type bias_type = Type::bf16;
  int mask = 0;  // likewise; 5: tree
  int gap = 0;
  bool hide = false, documents = false, query_ids = false, alibi = false, sink = false, lse = true;
  float softcap = 0, drop = 0, scale = 0;
  int cache = 0;  // 0: arrays; 1: pages; 2: int8
  int page = 16;
  Type out_type = Type::bf16;
  bool special = false, weights = false;  // special: a key and a value that are no numbers
  int stage = 0;
  std::uint64_t seed = 1;
};

std::unique_ptr<Problem> make(const Wish& w) {
  auto p = std::make_unique<Problem>();
  Random r(w.seed);
  Call& c = p->host;
  c.batch = w.batch, c.heads = w.kv_heads * w.group, c.kv_heads = w.kv_heads, c.queries = w.queries,
  c.keys = w.keys, c.dim = w.dim, c.value_dim = w.value_dim;
  c.tiled_heads = w.tiled;
  c.scale = w.scale != 0 ? double(w.scale) : 1 / std::sqrt(double(w.dim));
  c.scale_log2e = float(c.scale * 1.4426950408889634), c.cap = w.softcap,
  c.softcap_log2e = float(w.softcap * 1.4426950408889634);
  c.scaling = {}, c.min_exponent = -127;
  c.alibi = {};
  // Sequences.
  std::vector<Sequence> sequences;
  std::int64_t query_rows = 0, key_rows = 0;
  for (std::int64_t b = 0; b < w.batch; ++b) {
    Sequence s;
    const bool shorter = (w.packed || w.cache) && b > 0;
    s.queries = shorter ? pick(r, 1, int(w.queries)) : w.queries;
    s.keys = shorter ? pick(r, int(std::min(s.queries, w.keys)), int(w.keys)) : w.keys;
    if (w.packed) s.first_query = query_rows, s.first_key = key_rows;
    query_rows += s.queries, key_rows += s.keys;
    s.key_count = w.lengths ? pick(r, 0, int(s.keys)) : s.keys;
    const std::int64_t far = s.queries + s.keys, offset = w.ends ? s.keys - s.queries : 0;
    s.first_offset = -far, s.end_offset = far;
    if (w.causal) s.end_offset = offset + 1;
    if (w.window) s.first_offset = offset - pick(r, 0, 90);
    if (w.window && !w.causal) s.end_offset = offset + 1 + pick(r, 0, 50);
    s.first_offset = std::clamp(s.first_offset, -far, far),
    s.end_offset = std::clamp(s.end_offset, -far, far);
    sequences.push_back(s);
  }
  c.front = w.window ? w.front : 0;
  Call& dc = p->device;
  dc = c;
  p->list(sequences, c.sequences, dc.sequences);
  const std::int64_t rows = w.packed ? query_rows : w.queries, keys = w.packed ? key_rows : w.keys,
                     batch = w.packed ? 1 : w.batch;
  if (w.gap) {
    std::vector<Gap> gaps;
    for (std::int64_t b = 0; b < w.batch; ++b) gaps.push_back({pick(r, 0, 5), pick(r, -40, int(w.keys))});
    c.gap_count = dc.gap_count = 1;
    p->list(gaps, c.gaps, dc.gaps);
  }
  const auto random = [&] { return normal(r); };
  tensor(*p, &Call::q, w.type, batch, c.heads, rows, w.dim, w.odd, random, w.heads_inside);
  if (!w.cache) {
    tensor(*p, &Call::k, w.type, batch, w.kv_heads, keys, w.dim, w.odd, random, w.heads_inside);
    tensor(*p, &Call::v, w.type, batch, w.kv_heads, keys, w.value_dim, w.odd, random, w.heads_inside);
    if (w.special) {
      const float odd_ones[] = {NAN, INFINITY, -INFINITY, 3e38f};
      const auto spoil = [&](const Tensor& t, std::int64_t dim) {
        const std::int64_t row = pick(r, 0, int(keys) - 1);
        for (std::int64_t d = 0; d < dim; d += 1 + pick(r, 0, 7))
          from_float(t.type, const_cast<void*>(t.data), row * t.stride.length + d * t.stride.dim, odd_ones[pick(r, 0, 3)]);
      };
      spoil(c.v, w.value_dim);
      if (chance(r, 0.4)) spoil(c.k, w.dim);
      for (auto& b : p->buffers) b->up();
    }
  } else {
    PageLayout layout{w.page, w.kv_heads, w.dim, w.value_dim, w.cache == 2 ? 1 : 2, w.cache == 2};
    c.layout = dc.layout = layout;
    c.k.type = c.v.type = dc.k.type = dc.v.type = w.cache == 2 ? Type::int8 : w.type;
    const std::int64_t pages_each = (w.keys + w.page - 1) / w.page, bytes = layout.page_bytes();
    Buffer& store = p->buffer(w.batch * pages_each * bytes);
    std::memset(store.host.data(), 0xff, store.host.size());  // what no token has is NaN
    std::vector<std::int64_t> order(w.batch * pages_each);
    for (std::size_t n = 0; n < order.size(); ++n) order[n] = std::int64_t(n);
    std::shuffle(order.begin(), order.end(), r);
    std::vector<const unsigned char*> host_table, device_table;
    for (auto n : order)
      host_table.push_back(store.host.data() + n * bytes), device_table.push_back(store.device + n * bytes);
    for (std::int64_t b = 0; b < w.batch; ++b)
      for (std::int64_t j = 0; j < sequences[b].keys; ++j)
        for (std::int64_t h = 0; h < w.kv_heads; ++h) {
          unsigned char* head =
              const_cast<unsigned char*>(host_table[b * pages_each + j / w.page]) + h * layout.head_bytes();
          const Type t = w.cache == 2 ? Type::int8 : w.type;
          for (std::int64_t d = 0; d < w.dim; ++d)
            from_float(t, head, layout.key_element(j % w.page, d),
                       w.cache == 2 ? float(pick(r, -127, 127)) : normal(r));
          for (std::int64_t d = 0; d < w.value_dim; ++d)
            from_float(t, head + layout.values_at(), layout.value_element(j % w.page, d),
                       w.cache == 2 ? float(pick(r, -127, 127)) : normal(r));
          if (w.cache == 2) {
            reinterpret_cast<float*>(head + layout.key_scales_at())[j % w.page] =
                float(pick(r, 1, 100)) / 4000;
            reinterpret_cast<float*>(head + layout.value_scales_at())[j % w.page] =
                float(pick(r, 1, 100)) / 4000;
          }
        }
    store.up();
    const unsigned char *const *host_at, *const *device_at;
    Buffer& table = p->buffer(device_table.size() * 8);
    std::memcpy(table.host.data(), device_table.data(), device_table.size() * 8), table.up();
    p->tables = host_table, host_at = p->tables.data(),
    device_at = reinterpret_cast<const unsigned char* const*>(table.device);
    std::vector<PagedSequence> host_sequences, device_sequences;
    for (std::int64_t b = 0; b < w.batch; ++b) {
      host_sequences.push_back({host_at + b * pages_each, sequences[b].keys});
      device_sequences.push_back({device_at + b * pages_each, sequences[b].keys});
    }
    const PagedSequence* ignored;
    p->list(host_sequences, c.cached, ignored), p->list(device_sequences, ignored, dc.cached);
  }
  const auto broadcast = [&](Tensor& t, int kind) {
    if (kind == 1 || kind == 4 || kind == 5) t.stride.batch = t.stride.heads = 0;
    if (kind == 2) t.stride.batch = 0;
    if (kind == 4) t.stride.length = 0;
  };
  if (w.bias) {
    tensor(*p, &Call::bias, w.bias_type, batch, c.heads, rows, w.keys, w.odd,
           [&] { return chance(r, 0.1) ? -INFINITY : normal(r); });
    broadcast(c.bias, w.bias), broadcast(dc.bias, w.bias);
  }
  if (w.mask) {
    tensor(*p, &Call::sink, Type::int8, batch, c.heads, rows, w.keys, w.odd,
           [&] { return chance(r, 0.7) ? 1.0f : 0.0f; });
    std::vector<heed::cuda::BoolTensor> host_masks{{c.sink, !w.hide, w.mask == 5}},
        device_masks{{dc.sink, !w.hide, w.mask == 5}};
    c.sink = dc.sink = {};
    broadcast(host_masks[0].where, w.mask), broadcast(device_masks[0].where, w.mask);
    c.mask_count = dc.mask_count = 1;
    const heed::cuda::BoolTensor* ignored;
    p->list(host_masks, c.masks, ignored), p->list(device_masks, ignored, dc.masks);
  }
  if (w.documents) {
    std::vector<std::int32_t> ids(w.batch * w.keys), of_queries(w.batch * w.queries);
    for (std::int64_t b = 0; b < w.batch; ++b) {
      std::int32_t id = pick(r, 0, 5);
      for (std::int64_t j = 0; j < w.keys; ++j)
        ids[b * w.keys + j] = id, id = chance(r, 0.02) ? pick(r, -3, 9) : id;
    }
    for (auto& x : of_queries) x = pick(r, 0, 5);
    DocumentIds host_ids{}, device_ids{};
    p->list(ids, host_ids.keys, device_ids.keys);
    if (w.query_ids) p->list(of_queries, host_ids.queries, device_ids.queries);
    host_ids.keys_step = device_ids.keys_step = w.keys,
    host_ids.queries_step = device_ids.queries_step = w.queries;
    host_ids.queries_are_last = device_ids.queries_are_last = w.ends;
    const DocumentIds* ignored;
    p->list(std::vector{host_ids}, c.documents, ignored),
        p->list(std::vector{device_ids}, ignored, dc.documents);
    c.document_count = dc.document_count = 1;
  }
  if (w.alibi) {
    std::vector<float> slopes;
    for (std::int64_t h = 0; h < c.heads; ++h)
      slopes.push_back(std::exp2(-8.0f * float(h + 1) / float(c.heads)));
    p->list(slopes, c.alibi.of_heads, dc.alibi.of_heads);
    c.alibi.queries_are_last = dc.alibi.queries_are_last = w.ends;
  }
  if (w.sink) tensor(*p, &Call::sink, Type::f32, 1, c.heads, 1, 1, false, random);
  if (w.drop > 0) {
    c.drop_below = dc.drop_below = softmax::dropout_threshold(w.drop),
    c.seed = dc.seed = w.seed * 77777777777ull, c.drop_probability = dc.drop_probability = w.drop;
    c.keep_scale = dc.keep_scale = softmax::keep_scale(w.drop);
  }
  const auto poison = [] { return NAN; };
  p->out =
      &tensor(*p, &Call::out, w.out_type, batch, c.heads, rows, w.value_dim, w.odd, poison, w.heads_inside);
  if (w.lse) p->lse = &tensor(*p, &Call::log_sum_exp, Type::f32, batch, c.heads, rows, 1, false, poison);
  if (w.weights)
    p->weights = &tensor(*p, &Call::weights, w.out_type, batch, c.heads, rows, w.keys, w.odd, poison);
  if (w.stage) {
    p->scores = &tensor(*p, &Call::scores, Type::f32, batch, c.heads, rows, w.keys, w.odd, poison);
    c.stage = dc.stage = static_cast<ScoreStage>(w.stage);
  }
  return p;
}

std::string describe(const Wish& w) {
  char text[600];
  std::snprintf(
      text, sizeof text,
      "type=%d b=%lld kv=%lld g=%lld q=%lld k=%lld d=%lld/%lld tiled=%d odd=%d causal=%d window=%d front=%d "
      "gap=%d lengths=%d packed=%d ends=%d inside=%d bias=%d/%d mask=%d hide=%d doc=%d/%d "
      "alibi=%d sink=%d lse=%d cap=%g drop=%g scale=%g cache=%d page=%d out=%d weights=%d stage=%d seed=%llu",
      int(w.type), (long long)w.batch, (long long)w.kv_heads, (long long)w.group, (long long)w.queries,
      (long long)w.keys, (long long)w.dim, (long long)w.value_dim, w.tiled, w.odd, w.causal, w.window,
      w.front, w.gap, w.lengths, w.packed, w.ends, w.heads_inside, w.bias, int(w.bias_type), w.mask, w.hide,
      w.documents, w.query_ids, w.alibi, w.sink, w.lse, double(w.softcap), double(w.drop), double(w.scale),
      w.cache, w.page, int(w.out_type), w.weights, w.stage, (unsigned long long)w.seed);
  return text;
}

float* workspace(std::int64_t floats) {
  static float* memory = nullptr;
  static std::int64_t size = 0;
  if (floats > size) {
    cudaFree(memory);
    CHECK(cudaMalloc(&memory, floats * 4)), size = floats;
  }
  return memory;
}
heed::cuda::SavedEnd* kept(std::int64_t ends) {
  static heed::cuda::SavedEnd* memory = nullptr;
  cudaFree(memory);
  CHECK(cudaMalloc(&memory, ends * sizeof(heed::cuda::SavedEnd) + 16));
  return memory;
}

const char* run(Problem& p, const std::string& forced = {}, int unit = 0, int each = 0) {
  const auto* kernel = general::kernel_for(p.device, forced);
  if (!kernel) return nullptr;
  auto l = general::plan_launch(p.device, *kernel, unit, each);
  if (l.partial_floats) l.plan.partials = workspace(l.partial_floats);
  if (l.kept_ends) l.plan.ends = kept(l.kept_ends);
  if (l.partial_floats) CHECK(cudaMemset(l.plan.partials, 0xff, l.partial_floats * 4));
  CHECK(general::launch(p.device, l, nullptr));
  CHECK(cudaGetLastError());
  const auto code = cudaDeviceSynchronize();
  if (code != cudaSuccess) std::printf("%s: %s\n", kernel->name, cudaGetErrorString(code)), std::exit(1);
  return kernel->name;
}

// The largest error, in units of the type's rounding of the row's products; -1: wrong where nothing may be.
double worst(Problem& p, const Wish& w, std::string& where) {
  Call& c = p.host;
  p.out->down();
  if (p.lse) p.lse->down();
  if (p.weights) p.weights->down();
  if (p.scores) p.scores->down();
  const double unit = w.type == Type::bf16 ? 0x1p-8 : 0x1p-11;
  const auto element = [&](bool is_key, std::int64_t b, std::int64_t kv, std::int64_t j,
                           std::int64_t d) -> float {
    if (!c.cached) {
      const Tensor& t = is_key ? c.k : c.v;
      return to_float(t.type, t.data,
                      b * t.stride.batch + kv * t.stride.heads + (c.sequence(b).first_key + j) * t.stride.length + d * t.stride.dim);
    }
    const auto& l = c.layout;
    const unsigned char* head = c.cached[b].table[j / l.page_size] + kv * l.head_bytes();
    const std::int64_t t = j % l.page_size;
    const float x = is_key ? to_float(c.k.type, head, l.key_element(t, d))
                           : to_float(c.v.type, head + l.values_at(), l.value_element(t, d));
    return l.is_quantized ? x * reinterpret_cast<const float*>(
                                    head + (is_key ? l.key_scales_at() : l.value_scales_at()))[t]
                          : x;
  };
  struct Found {
    double most = 0;
    std::string where;
    void note(double error, const char* what, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t x,
              double got, double want) {
      if (error <= most) return;
      most = error == error ? error : 1e30;
      char text[200];
      std::snprintf(text, sizeof text, "%s[%lld %lld %lld %lld] is %g, not %g", what, (long long)b,
                    (long long)h, (long long)i, (long long)x, got, want);
      where = text;
    }
  };
  const auto check_row = [&](Found& found, std::int64_t b, std::int64_t h, std::int64_t i) {
    const auto row = reference_row(
        c, b, h, i, [&](auto bb, auto kv, auto j, auto d) { return element(true, bb, kv, j, d); },
        [&](auto bb, auto kv, auto j, auto d) { return element(false, bb, kv, j, d); });
    const std::int64_t at_row = c.sequence(b).first_query + i;
    const auto at = [&](const Tensor& t, std::int64_t x) {
      return double(to_float(t.type, t.data, b * t.stride.batch + h * t.stride.heads + at_row * t.stride.length + x * t.stride.dim));
    };
    for (std::int64_t d = 0; d < c.value_dim; ++d) {
      const double got = at(c.out, d), want = row.out[d];
      const bool same = got == want || (got != got && want != want);
      found.note(same ? 0
                      : std::fabs(got - want) /
                            (unit * row.magnitude[d] + (c.out.type == Type::f16 ? 0x1p-25 : 1e-30)),
                 "out", b, h, i, d, got, want);
    }
    if (p.lse) {
      const double got = at(c.log_sum_exp, 0), want = row.lse;
      found.note(got == want || (got != got && want != want)
                     ? 0
                     : std::fabs(got - want) / (2e-5 * (1 + std::fabs(want))),
                 "lse", b, h, i, 0, got, want);
    }
    for (std::int64_t j = 0; j < c.sequence(b).keys; ++j) {
      if (p.weights) {
        const double got = at(c.weights, j), want = row.weights[j];
        found.note(got == want ? 0 : std::fabs(got - want) / (unit * want + 1e-9), "weight", b, h, i, j, got,
                   want);
      }
      if (p.scores) {
        const double got = at(c.scores, j), want = w.stage == 1   ? row.raw[j]
                                                   : w.stage == 2 ? row.softcapped[j]
                                                                  : row.biased[j];
        found.note(got == want ? 0 : std::fabs(got - want) / (1e-4 * (1 + std::fabs(want))), "score", b, h, i,
                   j, got, want);
      }
    }
  };
  constexpr int workers = 16;
  Found found[workers];
  std::vector<std::thread> team;
  for (int t = 0; t < workers; ++t)
    team.emplace_back([&, t] {
      std::int64_t n = 0;
      for (std::int64_t b = 0; b < c.batch; ++b)
        for (std::int64_t h = 0; h < c.heads; ++h)
          for (std::int64_t i = 0; i < c.sequence(b).queries; ++i)
            if (n++ % workers == t) check_row(found[t], b, h, i);
    });
  for (auto& t : team) t.join();
  double most = 0;
  for (const Found& f : found)
    if (f.most > most) most = f.most, where = f.where;
  return most;
}

Wish random_wish(Random& r) {
  Wish w;
  w.seed = r() % 1000000;
  w.type = chance(r, 0.25) ? Type::f16 : Type::bf16;
  w.out_type = chance(r, 0.2) ? Type::f32 : w.type;
  w.batch = pick(r, 1, 3), w.kv_heads = pick(r, 1, 2), w.group = pick(r, 1, 4);
  w.queries = chance(r, 0.3) ? pick(r, 1, 8) : pick(r, 1, 200);
  w.keys = chance(r, 0.2) ? pick(r, 600, 1700) : pick(r, 1, 300);
  const int dims[] = {8, 16, 40, 64, 72, 80, 96, 100, 112, 128};
  w.dim = w.value_dim = dims[pick(r, 0, 9)];
  if (w.type == Type::bf16 && chance(r, 0.15)) w.dim = w.value_dim = pick(r, 129, 256);
  if (w.type == Type::bf16 && chance(r, 0.05))
    w.dim = pick(r, 257, 600), w.value_dim = pick(r, 200, 520),
    w.queries = std::min<std::int64_t>(w.queries, 50);
  if (chance(r, 0.15)) w.dim = w.type == Type::bf16 ? 192 : 128, w.value_dim = 128;
  if (chance(r, 0.1)) w.value_dim = pick(r, 1, 128), w.dim = pick(r, 1, 128);
  w.tiled = chance(r, 0.2), w.odd = chance(r, 0.2), w.causal = chance(r, 0.4), w.window = chance(r, 0.2),
  w.lengths = chance(r, 0.2);
  w.heads_inside = chance(r, 0.4), w.ends = chance(r, 0.6);
  w.packed = chance(r, 0.15);
  if (w.window && chance(r, 0.4)) w.front = pick(r, 1, 80);
  w.gap = chance(r, 0.05);
  w.bias = chance(r, 0.2) ? pick(r, 1, 4) : 0, w.bias_type = chance(r, 0.4) ? Type::f32 : w.type;
  w.mask = chance(r, 0.2) ? pick(r, 1, 4) : 0, w.hide = chance(r, 0.3);
  if (w.packed && (w.mask == 3 || w.bias == 3)) w.mask = w.bias = 0;
  w.documents = chance(r, 0.15), w.query_ids = chance(r, 0.3), w.alibi = chance(r, 0.15),
  w.sink = chance(r, 0.15), w.lse = chance(r, 0.7);
  w.softcap = chance(r, 0.15) ? (chance(r, 0.5) ? 5.0f : 50.0f) : 0, w.drop = chance(r, 0.15) ? 0.3f : 0,
  w.scale = chance(r, 0.15) ? (chance(r, 0.3) ? -0.2f : 0.3f) : 0;
  if (chance(r, 0.3) && w.type == Type::bf16 && !w.packed) {
    w.cache = pick(r, 1, 2), w.page = 16 * pick(r, 1, 5), w.keys = std::max(w.keys, w.queries), w.ends = true;
    w.dim = w.value_dim = dims[pick(r, 0, 9)];
    if (chance(r, 0.2)) w.mask = 5;
    if (w.mask == 3 || w.bias == 3) w.mask = w.bias = 0;
  }
  if (!w.cache && w.type == Type::bf16 && w.dim <= 128 && w.value_dim <= 128 && chance(r, 0.1)) {
    w.weights = chance(r, 0.6), w.stage = pick(r, 0, 3);
    w.queries = std::min<std::int64_t>(w.queries, 60), w.keys = std::min<std::int64_t>(w.keys, 200);
  }
  return w;
}

#include "checks.inc"

#include "bits.inc"
#include "time.inc"
#include "main.inc"
