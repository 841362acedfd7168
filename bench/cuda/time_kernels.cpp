// SPDX-License-Identifier: Apache-2.0
// How long the CUDA kernels take: medians of runs over random numbers, each captured in a CUDA graph. Prints
// one line for each problem: role/dtype/BxHqxHkvxLqxLkxD[vDv][/causal][/pages][/option], microseconds,
// TFLOP/s and TB/s. Arguments are parts of the names of those that are wanted.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "call/make_problem.hpp"
#include "cuda/run.hpp"
#include "heed/cache.hpp"

namespace heed::cuda {
namespace {

struct Size {
  Role role;
  DType dtype;
  std::int64_t batch, heads, kv_heads, queries, keys, dim;
  bool causal = false;
  std::int64_t value_dim = 0;  // 0: dim
  std::int64_t page_size = 0;  // of a cache; 0: K and V are arrays
  std::string option{};        // see with_option()

  std::int64_t values() const { return value_dim == 0 ? dim : value_dim; }
};

std::byte* allocate(std::int64_t bytes) {
  void* p = nullptr;
  check(cudaMalloc(&p, static_cast<std::size_t>(bytes)), "cudaMalloc");
  return static_cast<std::byte*>(p);
}

// Nearly normal numbers: sums of four uniform ones. A million of them over and over, turned a little each
// time.
void fill(std::byte* to, std::int64_t count, DType dtype, std::uint64_t seed) {
  const std::int64_t some = std::min<std::int64_t>(count, 1 << 20);
  std::vector<std::byte> host(static_cast<std::size_t>(some) * bytes_of(dtype));
  for (std::int64_t n = 0; n < some; ++n) {
    float x = 0;
    for (int i = 0; i < 4; ++i) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      x += static_cast<float>(seed >> 40) * 0x1p-24f - 0.5f;
    }
    x *= 1.73f;
    if (dtype == DType::f32) std::memcpy(host.data() + n * 4, &x, 4);
    const std::uint16_t half = dtype == DType::bf16 ? from_float<bf16>(x).bits : from_float<f16>(x).bits;
    if (dtype != DType::f32) std::memcpy(host.data() + n * 2, &half, 2);
  }
  const auto width = static_cast<std::int64_t>(bytes_of(dtype));
  for (std::int64_t at = 0; at < count; at += some)
    check(cudaMemcpy(to + at * width, host.data(),
                     static_cast<std::size_t>(std::min(some, count - at) * width), cudaMemcpyHostToDevice),
          "cudaMemcpy");
}

double median_microseconds(cudaGraphExec_t graph, cudaStream_t stream, int inside) {
  cudaEvent_t start = nullptr, stop = nullptr;
  check(cudaEventCreate(&start), "cudaEventCreate"), check(cudaEventCreate(&stop), "cudaEventCreate");
  std::vector<double> times;
  for (int n = 0; n < 9; ++n) {
    check(cudaEventRecord(start, stream), "cudaEventRecord");
    check(cudaGraphLaunch(graph, stream), "cudaGraphLaunch");
    check(cudaEventRecord(stop, stream), "cudaEventRecord");
    check(cudaEventSynchronize(stop), "cudaEventSynchronize");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, start, stop), "cudaEventElapsedTime");
    times.push_back(static_cast<double>(milliseconds) * 1e3 / inside);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

const char* dtype_name(DType d) { return d == DType::f32 ? "f32" : d == DType::bf16 ? "bf16" : "f16"; }

CacheType cache_type(DType d) {
  return d == DType::f32 ? CacheType::f32 : d == DType::bf16 ? CacheType::bf16 : CacheType::f16;
}

std::string name_of(const Size& s) {
  std::string name = s.role == Role::decode ? "decode/" : s.role == Role::prefill ? "prefill/" : "exact/";
  name += dtype_name(s.dtype);
  char separator = '/';
  for (const std::int64_t n : {s.batch, s.heads, s.kv_heads, s.queries, s.keys, s.dim})
    name += separator + std::to_string(n), separator = 'x';
  if (s.value_dim != 0) name += "v" + std::to_string(s.value_dim);
  if (s.causal) name += "/causal";
  if (s.page_size != 0) name += "/pages";
  return s.option.empty() ? name : name + "/" + s.option;
}

// What an option points to.
struct OptionMemory {
  std::byte* on_device = nullptr;
  std::vector<std::int32_t> ids{};
  std::vector<float> slopes{};
  ~OptionMemory() { cudaFree(on_device); }
};

void add_bias(const Size& s, std::int64_t heads, Options& options, OptionMemory& memory) {
  const Shape shape{1, heads, s.queries, s.keys};
  memory.on_device = allocate(shape.elements() * static_cast<std::int64_t>(bytes_of(s.dtype)));
  fill(memory.on_device, shape.elements(), s.dtype, 4);
  options.bias = View{memory.on_device, shape, bhsd(shape), s.dtype, Device::cuda};
}

// One key in eight is hidden, or the last eighth of them.
void add_keep(const Size& s, std::int64_t rows, Options& options, OptionMemory& memory) {
  const Shape shape{1, 1, rows, s.keys};
  std::vector<char> seen(static_cast<std::size_t>(shape.elements()));
  for (std::size_t n = 0; n < seen.size(); ++n)
    seen[n] = rows == 1 ? n < seen.size() / 8 * 7 : n * 2654435761u % 4093 % 8 != 0;
  memory.on_device = allocate(shape.elements());
  check(cudaMemcpy(memory.on_device, seen.data(), seen.size(), cudaMemcpyHostToDevice), "cudaMemcpy");
  BoolView where(reinterpret_cast<const bool*>(memory.on_device), shape);
  where.device = Device::cuda;
  options.masks.emplace_back(Keep{where});
}

void with_option(const Size& s, Options& options, OptionMemory& memory) {
  if (s.option == "bias") add_bias(s, 1, options, memory);
  if (s.option == "bias_of_heads") add_bias(s, s.heads, options, memory);
  if (s.option == "keep") add_keep(s, s.queries, options, memory);
  if (s.option == "padding") add_keep(s, 1, options, memory);
  if (s.option == "softcap") options.softcap = 30.0f;
  if (s.option == "dropout") options.dropout = Dropout{0.1f, 7};
  if (s.option == "alibi") {
    for (std::int64_t h = 0; h < s.heads; ++h)
      memory.slopes.push_back(std::exp2(-static_cast<float>(h + 1) / 4));
    options.alibi = Alibi{memory.slopes, Align::ends};
  }
  if (s.option == "documents") {
    for (std::int64_t n = 0; n < s.keys; ++n) memory.ids.push_back(static_cast<std::int32_t>(n * 8 / s.keys));
    options.masks.emplace_back(Document{memory.ids, Align::ends});
  }
}

void time_one(const Size& s, cudaStream_t stream) {
  const Shape q{s.batch, s.heads, s.queries, s.dim}, k{s.batch, s.kv_heads, s.keys, s.dim},
      v{s.batch, s.kv_heads, s.keys, s.values()}, o{s.batch, s.heads, s.queries, s.values()};
  const auto width = static_cast<std::int64_t>(bytes_of(s.dtype));
  std::byte *dq = allocate(q.elements() * width), *dk = allocate(k.elements() * width),
            *dv = allocate(v.elements() * width), *out = allocate(o.elements() * width);
  fill(dq, q.elements(), s.dtype, 1), fill(dk, k.elements(), s.dtype, 2), fill(dv, v.elements(), s.dtype, 3);
  Options options;
  OptionMemory memory;
  if (s.causal) options.masks.emplace_back(Causal{Align::ends});
  with_option(s, options, memory);
  // Heads inside the length, as projections leave them.
  const auto strides = [&](const Shape& x) { return s.role == Role::decode ? bhsd(x) : bshd(x); };
  const View keys{dk, k, strides(k), s.dtype, Device::cuda}, values{dv, v, strides(v), s.dtype, Device::cuda};
  Inputs inputs{.q = {dq, q, strides(q), s.dtype, Device::cuda}};
  std::optional<KvCache> cache;
  if (s.page_size == 0) {
    inputs.k = keys, inputs.v = values;
  } else {
    cache.emplace(KvCacheConfig{.batch = s.batch,
                                .kv_heads = s.kv_heads,
                                .capacity = s.keys,
                                .dim = s.dim,
                                .value_dim = s.values(),
                                .type = cache_type(s.dtype),
                                .page_size = s.page_size,
                                .device = Device::cuda});
    cache->append(keys, values);
    inputs.cache = &*cache;
  }
  const Problem problem = make_problem(inputs, {.out = {out, o, strides(o), s.dtype, Device::cuda}}, options);
  const LoweredCall lowered(problem);
  const std::int64_t bytes = workspace_bytes(s.role, lowered);
  const Workspace workspace{allocate(bytes), bytes};
  check(cudaMemset(workspace.memory, 0, static_cast<std::size_t>(bytes)), "cudaMemset");
  const double flops =
      4.0 * static_cast<double>(s.batch * s.heads) * static_cast<double>(s.queries) *
      static_cast<double>(s.keys) * static_cast<double>(s.dim + s.values()) / 2 *
      (s.causal ? 1.0 - 0.5 * static_cast<double>(s.queries) / static_cast<double>(s.keys) : 1.0);
  const int inside = flops > 1e12 ? 2 : flops > 1e11 ? 5 : 20;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  run(s.role, lowered, workspace, stream);  // what a first launch loads
  check(cudaStreamSynchronize(stream), "first run");
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
  for (int n = 0; n < inside; ++n) run(s.role, lowered, workspace, stream);
  check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  check(cudaGraphInstantiate(&ready, graph, 0), "cudaGraphInstantiate");
  const double us = median_microseconds(ready, stream, inside);
  const auto read = static_cast<double>((k.elements() + v.elements()) * width);
  std::printf("%s  %.2f us  %.1f TFLOP/s  %.2f TB/s\n", name_of(s).c_str(), us, flops / us / 1e6,
              read / us / 1e6);
  std::fflush(stdout);
  check(cudaGraphExecDestroy(ready), "cudaGraphExecDestroy"),
      check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  for (std::byte* p : {dq, dk, dv, out, workspace.memory}) cudaFree(p);
}

std::vector<Size> sizes() {
  std::vector<Size> all;
  const std::int64_t lengths[] = {1024, 2048, 4096, 8192, 16384};
  const auto batch = [](std::int64_t length) { return length >= 4096 ? 1 : 4096 / length; };
  for (const bool causal : {false, true})
    for (const std::int64_t n : lengths)
      all.push_back({Role::prefill, DType::bf16, batch(n), 64, 8, n, n, 128, causal});
  for (const bool causal : {false, true})
    for (const std::int64_t n : lengths)
      all.push_back({Role::prefill, DType::bf16, batch(n), 64, 64, n, n, 64, causal});
  // Of a small layer: too few tiles of rows for whole rounds of the multiprocessors.
  for (const bool causal : {false, true})
    all.push_back({Role::prefill, DType::bf16, 2, 12, 6, 1024, 1024, 64, causal});
  for (const bool causal : {false, true})
    for (const std::int64_t n : {4096, 16384})
      all.push_back({Role::prefill, DType::bf16, 1, 32, 8, n, n, 256, causal});
  all.push_back({Role::decode, DType::bf16, 64, 32, 8, 1, 4096, 128, false});
  all.push_back({Role::decode, DType::bf16, 16, 32, 8, 1, 8192, 128, false});
  for (const std::int64_t n : {1024, 4096, 32768})
    all.push_back({Role::decode, DType::bf16, 1, 32, 8, 1, n, 128, false});
  all.push_back({Role::decode, DType::bf16, 64, 32, 1, 1, 4096, 128, false});
  all.push_back({Role::decode, DType::bf16, 64, 32, 32, 1, 4096, 128, false});
  for (const std::int64_t dim : {32, 40, 72, 80, 96, 112, 128, 160, 192, 224, 256})
    all.push_back({Role::prefill, DType::bf16, 1, 32, 8, 4096, 4096, dim, true});
  all.push_back({Role::prefill, DType::bf16, 1, 32, 8, 4096, 4096, 192, true, 128});
  for (const char* option : {"bias", "bias_of_heads", "keep", "padding"})
    all.push_back({Role::prefill, DType::bf16, 1, 32, 8, 4096, 4096, 128, false, 0, 0, option});
  for (const char* option : {"softcap", "alibi", "dropout", "documents"})
    all.push_back({Role::prefill, DType::bf16, 1, 32, 8, 4096, 4096, 128, true, 0, 0, option});
  for (const std::int64_t dim : {64, 128, 256})
    for (const std::int64_t queries : {512, 2048})
      for (const std::int64_t page_size : {0, 64})
        all.push_back({Role::prefill, DType::bf16, 1, 32, 8, queries, 8192, dim, true, 0, page_size});
  for (const std::int64_t dim : {32, 64, 80, 96, 128, 192, 256})
    for (const std::int64_t page_size : {0, 64})
      all.push_back({Role::decode, DType::bf16, 64, 32, 8, 1, 4096, dim, false, 0, page_size});
  all.push_back({Role::exact, DType::f32, 1, 32, 32, 8192, 8192, 64, false});
  all.push_back({Role::exact, DType::f32, 1, 32, 32, 8192, 8192, 64, true});
  all.push_back({Role::exact, DType::f32, 1, 32, 32, 4096, 4096, 128, false});
  all.push_back({Role::exact, DType::f32, 16, 32, 8, 1, 8192, 128, false});
  all.push_back({Role::exact, DType::bf16, 1, 32, 32, 4096, 4096, 64, false});
  return all;
}

}  // namespace
}  // namespace heed::cuda

int main(int argc, char** argv) {
  using namespace heed::cuda;
  const auto is_wanted = [&](const Size& size) {
    bool wanted = argc == 1;
    for (int n = 1; n < argc; ++n) wanted |= name_of(size).find(argv[n]) != std::string::npos;
    return wanted;
  };
  try {
    cudaStream_t stream = nullptr;
    check(cudaStreamCreate(&stream), "cudaStreamCreate");
    for (const Size& size : sizes())
      if (is_wanted(size)) time_one(size, stream);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
