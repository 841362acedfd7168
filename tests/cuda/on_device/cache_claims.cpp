// SPDX-License-Identifier: Apache-2.0
// Caches on the device: what they hold and what attention over them finds has the bits of the CPU's, whatever
// was appended, shared, cut off and released on the way.
#include <cuda_runtime_api.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "cases/selection.hpp"
#include "cases/tensor.hpp"
#include "claims.hpp"
#include "heed/attention.hpp"
#include "heed/cache.hpp"
#include "heed/layer.hpp"
#include "on_device/brought.hpp"

namespace heed::cuda::test {
namespace {

using cases::Tensor;
using claims::expect;

struct Case {
  CacheType type;
  std::int64_t page_size, dim, value_dim;  // page_size 0: contiguous
  DType tokens;                            // what is appended
};

std::vector<Case> cases() {
  return {{CacheType::f32, 0, 16, 16, DType::f32},    {CacheType::f32, 32, 24, 40, DType::bf16},
          {CacheType::bf16, 16, 64, 64, DType::bf16}, {CacheType::bf16, 0, 128, 128, DType::f32},
          {CacheType::f16, 64, 33, 17, DType::f32},   {CacheType::int8, 16, 64, 64, DType::f32},
          {CacheType::int8, 0, 80, 20, DType::f16}};
}

KvCacheConfig config_of(const Case& t) {
  KvCacheConfig config{.batch = 2,
                       .kv_heads = 2,
                       .capacity = 1400,
                       .dim = t.dim,
                       .value_dim = t.value_dim,
                       .type = t.type,
                       .pages = t.page_size == 0 ? 4 : 2 * (1400 / t.page_size) + 8};
  if (t.page_size > 0) config.page_size = t.page_size;
  return config;
}

std::string in_words(const Case& t) {
  return "type " + std::to_string(static_cast<int>(t.type)) + ", pages of " + std::to_string(t.page_size) +
         ", dims " + std::to_string(t.dim) + " and " + std::to_string(t.value_dim);
}

// A cache and what is done to it, on the CPU or on the device.
class Cached {
 public:
  Cached(const KvCacheConfig& config, Device device) : cache(placed(config, device)), device_(device) {}
  explicit Cached(KvCache made) : cache(std::move(made)), device_(cache.config().device) {}

  void append(const Case& t, std::int64_t tokens, std::uint64_t stream,
              const std::vector<std::int64_t>& counts) {
    const Tensor k = Tensor::random({2, 2, tokens, t.dim}, stream, 2, t.tokens),
                 v = Tensor::random({2, 2, tokens, t.value_dim}, stream + 1, 2, t.tokens);
    Brought there;
    if (device_ == Device::cpu)
      cache.append(k.view(), v.view(), counts);
    else
      cache.append(there.view(k.view()), there.view(v.view()), counts);
    there.fetch();
  }

  std::vector<std::byte> read(std::int64_t sequence) const {
    const KvCacheConfig& c = cache.config();
    const std::int64_t length = cache.length(sequence);
    Tensor k({1, c.kv_heads, length, c.dim}), v({1, c.kv_heads, length, *c.value_dim});
    Brought there;
    if (device_ == Device::cpu)
      cache.read(sequence, k.mutable_view(), v.mutable_view());
    else
      cache.read(sequence, there.view(k.mutable_view()), there.view(v.mutable_view()));
    there.fetch();
    std::vector<std::byte> all = k.memory();
    all.insert(all.end(), v.memory().begin(), v.memory().end());
    return all;
  }

  std::vector<std::byte> attend(std::int64_t queries, const std::vector<std::int64_t>& sequences) const {
    const KvCacheConfig& c = cache.config();
    const auto batch = static_cast<std::int64_t>(sequences.size());
    const Tensor q = Tensor::random({batch, 4, queries, c.dim}, 91, 3);
    Tensor out({batch, 4, queries, *c.value_dim});
    out.fill_bytes(0xff);
    Brought there;
    const bool here = device_ == Device::cpu;
    attention({.q = here ? q.view() : there.view(q.view()), .cache = &cache, .sequences = sequences},
              {.out = here ? out.mutable_view() : there.view(out.mutable_view())},
              Options{.masks = {Causal{}}, .kernel = here ? "" : "cuda.exact.sm80"});
    there.fetch();
    return out.memory();
  }

  KvCache cache;

 private:
  static KvCacheConfig placed(KvCacheConfig config, Device device) {
    config.device = device;
    return config;
  }
  Device device_;
};

void expect_alike(const Cached& found, const Cached& wanted, const std::vector<std::int64_t>& sequences,
                  const std::string& what) {
  expect(found.cache.lengths() == wanted.cache.lengths(), what, ": lengths");
  expect(found.cache.pages_in_use() == wanted.cache.pages_in_use(), what, ": pages in use");
  for (const std::int64_t s : sequences) expect(found.read(s) == wanted.read(s), what, ": sequence ", s);
  for (const std::int64_t queries : {1, 3})
    expect(found.attend(queries, sequences) == wanted.attend(queries, sequences), what, ": attention of ",
           queries);
}

// One story, told to a cache on each device.
void tell(Cached& c, const Case& t, int chapter) {
  if (chapter == 0) c.append(t, 37, 1, {37, 20});
  if (chapter == 1) c.append(t, 1, 3, {1, 1});
  if (chapter == 2) c.append(t, 1200, 5, {1200, 300});
  if (chapter == 3) c.cache.truncate(0, 900), c.append(t, 3, 7, {0, 3});
  if (chapter == 4 && t.page_size > 0) {
    const std::int64_t made = c.cache.fork(1);
    c.append(t, 0, 9, {0, 0});
    c.cache.release(made);
  }
}

CLAIM(caches_on_the_device_hold_what_the_cpus_hold) {
  for (const Case& t : cases()) {
    Cached found(config_of(t), Device::cuda), wanted(config_of(t), Device::cpu);
    for (int chapter = 0; chapter < 4; ++chapter) {
      tell(found, t, chapter), tell(wanted, t, chapter);
      expect_alike(found, wanted, {0, 1}, in_words(t) + ", chapter " + std::to_string(chapter));
    }
  }
}

CLAIM(caches_on_the_device_share_pages_until_one_is_written) {
  const Case t{CacheType::f32, 16, 32, 32, DType::f32};
  Cached found(config_of(t), Device::cuda), wanted(config_of(t), Device::cpu);
  for (Cached* c : {&found, &wanted}) {
    tell(*c, t, 0);
    expect(c->cache.fork(0, 21) == 2, "the fork's number");
    const Tensor x = Tensor::random({1, 2, 5, 32}, 44, 2);
    Brought there;
    const bool here = c == &wanted;
    c->cache.append_to(2, here ? x.view() : there.view(x.view()), here ? x.view() : there.view(x.view()));
    there.fetch();
  }
  expect_alike(found, wanted, {0, 1, 2}, "forked");
}

CLAIM(caches_on_the_device_let_go_of_what_their_window_has_passed) {
  const Case t{CacheType::bf16, 16, 32, 32, DType::f32};
  KvCacheConfig config = config_of(t);
  config.window = CacheWindow{.length = 100, .front = 5};
  Cached found(config, Device::cuda), wanted(config, Device::cpu);
  for (int chapter = 0; chapter < 3; ++chapter) {
    tell(found, t, chapter), tell(wanted, t, chapter);
    expect_alike(found, wanted, {0, 1}, "window, chapter " + std::to_string(chapter));
  }
}

// Base and scaling, and whether keys turn as they come or as they are read.
std::vector<CacheRotary> rotaries() {
  const Rotary plain{.base = 500}, partial{.dims = 8, .pairs = RotaryPairs::adjacent},
      dynamic{.scaling = DynamicScaling{.factor = 4, .original_length = 30}};
  if (cases::small_selection())
    return {{plain, CacheRotary::When::append}, {dynamic, CacheRotary::When::read}};
  return {{plain, CacheRotary::When::append},   {plain, CacheRotary::When::read},
          {partial, CacheRotary::When::append}, {partial, CacheRotary::When::read},
          {dynamic, CacheRotary::When::append}, {dynamic, CacheRotary::When::read}};
}

CLAIM(caches_on_the_device_turn_their_keys_as_the_cpus_do) {
  for (const CacheRotary& rotary : rotaries())
    for (const Case& t : cases()) {
      if (t.dim % 2 != 0) continue;
      KvCacheConfig config = config_of(t);
      config.rotary = rotary;
      if (t.type == CacheType::bf16 && t.page_size > 0)
        config.window = CacheWindow{.length = 100, .front = 5};
      Cached found(config, Device::cuda), wanted(config, Device::cpu);
      for (int chapter = 0; chapter < 4; ++chapter) {
        if (config.window && chapter == 3) continue;  // it goes back further than a window allows
        tell(found, t, chapter), tell(wanted, t, chapter);
        expect_alike(found, wanted, {0, 1}, in_words(t) + ", turned, chapter " + std::to_string(chapter));
      }
      const Cached back(found.cache.to(Device::cpu));
      expect_alike(back, wanted, {0, 1}, in_words(t) + ", turned and brought back");
    }
}

CLAIM(caches_move_between_devices) {
  for (const Case& t : cases()) {
    Cached here(config_of(t), Device::cpu);
    tell(here, t, 0), tell(here, t, 2);
    Cached there(here.cache.to(Device::cuda));
    expect(there.cache.config().device == Device::cuda, "the device");
    expect_alike(there, here, {0, 1}, in_words(t) + ", moved");
    tell(here, t, 3), tell(there, t, 3);
    expect_alike(there, here, {0, 1}, in_words(t) + ", going its own way");
    const Cached again(there.cache.to(Device::cuda)), back(there.cache.to(Device::cpu));
    expect_alike(again, here, {0, 1}, in_words(t) + ", copied");
    expect_alike(back, here, {0, 1}, in_words(t) + ", back");
  }
}

CLAIM(caches_on_the_device_are_saved_as_the_cpus_are) {
  const Case t{CacheType::int8, 16, 64, 64, DType::f32};
  Cached there(config_of(t), Device::cuda);
  tell(there, t, 0), tell(there, t, 2);
  const auto file = std::filesystem::temp_directory_path() / "heed_cache_on_device.safetensors";
  there.cache.save(file);
  const Cached loaded(KvCache::load(file));
  std::filesystem::remove(file);
  expect(loaded.cache.config().device == Device::cpu, "loaded to the CPU's memory");
  expect_alike(there, loaded, {0, 1}, "saved");
}

void expect_decoding_alike(const std::optional<CacheRotary>& of_cache) {
  LayerConfig config = grouped_query(96, 6, 2);
  config.rotary = of_cache ? of_cache->rotary : Rotary{};
  const LayerWeights weights = random_weights(config, 7);
  const AttentionLayer layer_here(config, weights);
  config.device = Device::cuda;
  const AttentionLayer layer_there(config, weights);
  KvCacheConfig cached{.batch = 2, .kv_heads = 2, .capacity = 64, .dim = 16, .page_size = 16};
  cached.rotary = of_cache;
  KvCache cache_here(cached);
  cached.device = Device::cuda;
  KvCache cache_there(cached);
  for (const std::int64_t tokens : {20, 1, 3, 1}) {
    const Tensor x = Tensor::random({2, 1, tokens, 96}, static_cast<std::uint64_t>(tokens) + 70);
    Tensor wanted({2, 1, tokens, 96}), found = wanted;
    const Options options{.masks = {Causal{}}};
    layer_here({.x = x.view(), .cache = &cache_here}, {.out = wanted.mutable_view()}, options);
    Brought there;
    layer_there({.x = there.view(x.view()), .cache = &cache_there}, {.out = there.view(found.mutable_view())},
                options);
    there.fetch();
    expect(found.memory() == wanted.memory(), "after ", tokens, " tokens");
  }
  expect(cache_there.lengths() == cache_here.lengths(), "lengths");
}

CLAIM(a_layer_on_the_device_decodes_over_a_cache_there_with_the_bits_of_the_cpu) {
  expect_decoding_alike(std::nullopt);
  for (const CacheRotary& rotary : rotaries()) expect_decoding_alike(rotary);
}

CLAIM(bf16_decode_over_a_cache_on_the_device_is_that_over_one_copied_there_and_so_is_general) {
  const Case t{CacheType::bf16, 64, 128, 128, DType::bf16};
  Cached there(config_of(t), Device::cuda);
  tell(there, t, 0), tell(there, t, 2);
  Cached contiguous(config_of({CacheType::bf16, 0, 128, 128, DType::bf16}), Device::cuda);
  tell(contiguous, t, 0), tell(contiguous, t, 2);
  const Tensor q = Tensor::random({2, 8, 1, 128}, 91, 3, DType::bf16);
  const auto attend = [&](const KvCache& cache, const char* kernel) {
    Tensor out({2, 8, 1, 128}, DType::bf16);
    Brought copy;
    attention({.q = copy.view(q.view()), .cache = &cache}, {.out = copy.view(out.mutable_view())},
              Options{.masks = {Causal{}}, .kernel = kernel});
    copy.fetch();
    return out.memory();
  };
  for (const char* kernel : {"cuda.decode.sm90", "cuda.general.sm80"})
    expect(attend(there.cache, kernel) == attend(contiguous.cache, kernel), kernel, ": pages change a bit");
}

// A pool whose pages held what is no number, two sequences that share their first ones, and one that is
// released beside them: nothing of that is seen.
CLAIM(prefill_over_pages_on_the_device_is_that_over_rows) {
  constexpr std::int64_t tokens = 2400, shared = 500, dim = 128;
  const Case t{CacheType::bf16, 64, dim, dim, DType::bf16};
  KvCacheConfig config = config_of(t);
  config.capacity = tokens, config.pages = 4 * tokens / 64;
  Cached there(config, Device::cuda);
  const Tensor k = Tensor::random({2, 2, tokens, dim}, 21, 2, DType::bf16),
               v = Tensor::random({2, 2, tokens, dim}, 22, 2, DType::bf16);
  Tensor poison({2, 2, tokens, dim}, DType::bf16);
  poison.fill_bytes(0xff);
  Brought copy;
  const auto append = [&](const Tensor& keys, const Tensor& values, const std::vector<std::int64_t>& counts) {
    there.cache.append(copy.view(keys.view()), copy.view(values.view()), counts);
  };
  append(poison, poison, {tokens, tokens});
  there.cache.reset(0), there.cache.reset(1);
  append(k, v, {tokens, tokens - 90});
  there.cache.release(there.cache.fork(1));
  const std::int64_t forked = there.cache.fork(0, shared);
  const auto rows = [](const Tensor& x, std::int64_t b, std::int64_t length) {
    Tensor made({1, 2, length, dim}, DType::bf16);
    cases::for_each(made.shape(),
                    [&](auto, auto h, auto i, auto d) { made.set(0, h, i, d, x.at(b, h, i, d)); });
    return made;
  };
  for (const std::int64_t queries : {100, 300}) {
    const Tensor q = Tensor::random({3, 4, queries, dim}, 23, 3, DType::bf16);
    Tensor out(q.shape(), DType::bf16);
    const std::vector<std::int64_t> sequences{forked, 0, 1}, lengths{shared, tokens, tokens - 90};
    const Options options{.masks = {Causal{Align::ends}}, .kernel = "cuda.prefill.sm90"};
    Brought all;
    attention({.q = all.view(q.view()), .cache = &there.cache, .sequences = sequences},
              {.out = all.view(out.mutable_view())}, options);
    all.fetch();
    for (std::size_t n = 0; n < 3; ++n) {
      const auto b = static_cast<std::int64_t>(n), of = b / 2;
      const Tensor own_k = rows(k, of, lengths[n]), own_v = rows(v, of, lengths[n]);
      Tensor own_q({1, 4, queries, dim}, DType::bf16), wanted = own_q;
      cases::for_each(own_q.shape(),
                      [&](auto, auto h, auto i, auto d) { own_q.set(0, h, i, d, q.at(b, h, i, d)); });
      Brought own;
      attention({own.view(own_q.view()), own.view(own_k.view()), own.view(own_v.view())},
                {.out = own.view(wanted.mutable_view())}, options);
      own.fetch();
      std::int64_t misses = 0;
      cases::for_each(wanted.shape(), [&](auto, auto h, auto i, auto d) {
        misses += wanted.bits(0, h, i, d) != out.bits(b, h, i, d);
      });
      expect(misses == 0, queries, " queries of sequence ", sequences[n], ": ", misses, " misses");
    }
  }
}

// A page of 4.4 GB, whose tokens are those of one append again and again. Distances within it need more than
// 31 bits. Values are the same in all tokens, and so is the mean of them.
CLAIM(attention_over_a_page_of_more_than_2_gigabytes_of_keys_is_that_over_a_part_of_it) {
  constexpr std::int64_t part = 65536, parts = 66, dim = 256;
  std::size_t free = 0, total = 0;
  expect_success(cudaMemGetInfo(&free, &total));
  if (free < std::size_t{24} << 30) return;
  KvCache cache({.batch = 1,
                 .kv_heads = 1,
                 .capacity = part * parts,
                 .dim = dim,
                 .type = CacheType::bf16,
                 .device = Device::cuda});
  const Tensor k = Tensor::random({1, 1, part, dim}, 31, 1, DType::bf16),
               q = Tensor::random({1, 4, 1, dim}, 32, 1, DType::bf16);
  Tensor v({1, 1, part, dim}, DType::bf16);
  cases::for_each(v.shape(), [&](auto, auto, auto i, auto d) { v.set(0, 0, i, d, static_cast<float>(d)); });
  Brought copy;
  const View keys = copy.view(k.view()), values = copy.view(v.view());
  for (int n = 0; n < parts; ++n) cache.append(keys, values);
  for (const char* kernel : {"", "cuda.general.sm80", "cuda.exact.sm80"}) {
    Tensor out(q.shape(), DType::bf16);
    Brought there;
    attention({.q = there.view(q.view()), .cache = &cache}, {.out = there.view(out.mutable_view())},
              Options{.kernel = kernel});
    there.fetch();
    std::int64_t misses = 0;
    cases::for_each(out.shape(), [&](auto, auto h, auto, auto d) {
      misses += out.at(0, h, 0, d) != static_cast<float>(d);
    });
    expect(misses == 0, "kernel '", kernel, "': ", misses, " misses");
  }
}

void expect_refused(const std::string& sentence, const std::function<void()>& call) {
  try {
    call();
    expect(false, "is not refused with: ", sentence);
  } catch (const Error& error) {
    expect(error.what() == sentence, "is refused with: ", error.what());
  }
}

CLAIM(caches_on_the_device_refuse_what_lies_elsewhere) {
  const Case t{CacheType::int8, 16, 32, 32, DType::f32};
  Cached there(config_of(t), Device::cuda), here(config_of(t), Device::cpu);
  tell(there, t, 0), tell(here, t, 0);
  Tensor x = Tensor::random({1, 2, 3, 32}, 5, 2);
  Brought copy;
  expect_refused("k.device: cpu is not the cache's: cuda",
                 [&] { there.cache.append_to(0, x.view(), x.view()); });
  expect_refused("k.device: cuda is not the cache's: cpu",
                 [&] { here.cache.append_to(0, copy.view(x.view()), copy.view(x.view())); });
  x.set(0, 1, 2, 7, std::numeric_limits<float>::infinity());
  expect_refused("v: token 2 of head 1 for sequence 1 is not finite; an int8 cache holds finite numbers only",
                 [&] {
                   const Tensor finite = Tensor::random({1, 2, 3, 32}, 5, 2);
                   there.cache.append_to(1, copy.view(finite.view()), copy.view(x.view()));
                 });
  expect_alike(there, here, {0, 1}, "after refusals");
  KvCacheConfig turning = config_of(t);
  turning.device = Device::cuda;
  turning.rotary = CacheRotary{.when = CacheRotary::When::read};
  Cached turned(turning, Device::cuda);
  tell(turned, t, 0);
  cudaStream_t stream = nullptr;
  cudaStreamCreate(&stream);
  expect_refused(
      "options.stream: a cache that turns its keys as they are read does so on its device's legacy stream",
      [&] {
        const Tensor q = Tensor::random({2, 4, 1, 32}, 91, 3);
        Tensor out({2, 4, 1, 32});
        attention({.q = copy.view(q.view()), .cache = &turned.cache}, {.out = copy.view(out.mutable_view())},
                  Options{.stream = stream});
      });
  cudaStreamDestroy(stream);
}

}  // namespace
}  // namespace heed::cuda::test
