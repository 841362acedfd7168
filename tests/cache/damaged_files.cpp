// SPDX-License-Identifier: Apache-2.0
// A cache comes back from its file as it was, and from nothing that is not such a file.
#include <gtest/gtest.h>

#include <functional>

#include "cache/format.hpp"
#include "files/scratch_folder.hpp"
#include "tokens.hpp"

namespace heed::test {
namespace {

class CacheFiles : public ScratchFolder {};

// Two forks that share a page, a window that released one, a released number, int8, rotary.
KvCache sample() {
  KvCache cache({.batch = 2,
                 .kv_heads = 1,
                 .capacity = 100,
                 .dim = 2,
                 .type = CacheType::int8,
                 .page_size = 16,
                 .pages = 9,
                 .window = CacheWindow{.length = 16, .front = 3},
                 .rotary = CacheRotary{{.base = 50, .dims = 2}, CacheRotary::When::read}});
  for (int t = 0; t < 70; ++t) append_marked(cache, 0, 1, static_cast<float>(t + 1));
  append_marked(cache, 1, 3, 7);
  cache.fork(0);
  cache.release(1);
  return cache;
}

TEST_F(CacheFiles, a_cache_comes_back_as_it_was_and_goes_on) {
  for (const CacheType type : {CacheType::f32, CacheType::f16, CacheType::bf16, CacheType::int8}) {
    KvCache cache(
        {.batch = 2, .kv_heads = 2, .capacity = 90, .dim = 5, .value_dim = 3, .type = type, .page_size = 16});
    append_marked(cache, 0, 37, 1);
    cache.fork(0, 20);
    cache.save("cache");
    KvCache loaded = KvCache::load("cache");
    EXPECT_EQ(Seen(loaded), Seen(cache));
    EXPECT_EQ(loaded.bytes(), cache.bytes());
    for (KvCache* each : {&cache, &loaded}) append_marked(*each, 2, 20, 500);
    EXPECT_EQ(Seen(loaded), Seen(cache));
  }
}

TEST_F(CacheFiles, the_whole_configuration_comes_back) {
  const KvCache cache = sample();
  cache.save("cache");
  const KvCache loaded = KvCache::load("cache");
  const KvCacheConfig &a = cache.config(), &b = loaded.config();
  EXPECT_EQ(Seen(loaded), Seen(cache));
  EXPECT_EQ(b.batch, a.batch);
  EXPECT_EQ(b.capacity, a.capacity);
  EXPECT_EQ(b.pages, a.pages);
  EXPECT_EQ(b.page_size, a.page_size);
  EXPECT_EQ(b.type, a.type);
  EXPECT_EQ(b.window->length, 16);
  EXPECT_EQ(b.window->front, 3);
  EXPECT_EQ(b.rotary->when, CacheRotary::When::read);
  EXPECT_EQ(b.rotary->rotary.base, 50);
  EXPECT_EQ(b.rotary->rotary.dims, 2);
}

const std::vector<RotaryScaling> scalings{
    LinearScaling{2},
    DynamicScaling{.factor = 2, .original_length = 10},
    YarnScaling{.factor = 4, .original_length = 10, .beta_fast = 8, .beta_slow = 3, .truncate = false},
    YarnScaling{.factor = 4, .original_length = 10, .attention_factor = 1.5f},
    Llama3Scaling{.factor = 8, .original_length = 10, .low_frequency_factor = 2, .high_frequency_factor = 3},
    LongRopeScaling{.short_factors = {1, 2}, .long_factors = {3, 4}, .original_length = 10, .factor = 2},
    LongRopeScaling{
        .short_factors = {1, 2}, .long_factors = {3, 4}, .original_length = 10, .attention_factor = 1.25f}};

KvCache scaled(const RotaryScaling& scaling) {
  KvCache cache({.kv_heads = 1,
                 .capacity = 40,
                 .dim = 4,
                 .rotary = CacheRotary{{.scaling = scaling}, CacheRotary::When::read}});
  append_marked(cache, 0, 30, 1);
  return cache;
}

TEST_F(CacheFiles, every_rotary_scaling_comes_back) {
  for (const RotaryScaling& scaling : scalings) {
    const KvCache cache = scaled(scaling);
    cache.save("cache");
    const KvCache loaded = KvCache::load("cache");
    EXPECT_EQ(loaded.config().rotary->rotary, cache.config().rotary->rotary);
    EXPECT_EQ(Seen(loaded), Seen(cache));
  }
}

TEST_F(CacheFiles, a_scaling_of_a_file_is_checked_before_it_is_believed) {
  const auto refused = [](const RotaryScaling& scaling, const std::function<void(Arrays&)>& change) {
    scaled(scaling).save("cache");
    Arrays arrays = read_safetensors("cache");
    change(arrays);
    cache::put_checksum(arrays);
    write_safetensors("cache", arrays);
    return refusal_of([] { KvCache::load("cache"); });
  };
  const std::string name = "config.rotary.scaling";
  EXPECT_EQ(refused(scalings[0], [](Arrays&) {}), "nothing");
  EXPECT_EQ(refused(scalings[0], [&](Arrays& a) { a[name] = cache::integer_array(5); }),
            "file: cache: config.rotary.scaling: 5 is not in [0, 4]");
  EXPECT_EQ(refused(scalings[0], [&](Arrays& a) { a[name] = cache::integer_array(1); }),
            "file: cache: there is no \"config.rotary.scaling.original_length\"");
  EXPECT_EQ(refused(scalings[1], [&](Arrays& a) { a[name] = cache::integer_array(0); }),
            "file: cache: \"config.rotary.scaling.original_length\" is unknown here");
  EXPECT_EQ(refused(scalings[1], [&](Arrays& a) { a[name + ".factor"] = Array::from_floats({}, {-1}); }),
            "file: cache: config.rotary.scaling.factor: -1 is not a positive finite number");
  EXPECT_EQ(refused(scalings[2], [&](Arrays& a) { a[name + ".truncate"] = cache::integer_array(2); }),
            "file: cache: config.rotary.scaling.truncate: 2 is not in [0, 1]");
  EXPECT_EQ(refused(scalings[5],
                    [&](Arrays& a) { a[name + ".long_factors"] = Array::from_floats({3}, {1, 2, 3}); }),
            "file: cache: config.rotary.scaling.long_factors: 3 numbers are not one per pair: 2");
  EXPECT_EQ(refused(scalings[5], [&](Arrays& a) { a.erase(name); }),
            "file: cache: \"config.rotary.scaling.factor\" is unknown here");
}

TEST_F(CacheFiles, what_was_truncated_is_not_written) {
  KvCache plain({.kv_heads = 1, .capacity = 90, .dim = 5, .page_size = 16}), rolled_back(plain.config());
  append_marked(plain, 0, 5, 1);
  append_marked(rolled_back, 0, 16, 1);
  rolled_back.truncate(0, 5);
  plain.save("plain");
  rolled_back.save("rolled_back");
  EXPECT_EQ(file_bytes("plain"), file_bytes("rolled_back"));
}

TEST_F(CacheFiles, a_file_cut_anywhere_is_refused) {
  sample().save("cache");
  const std::string whole = file_bytes("cache");
  int accepted = 0;
  for (std::size_t length = 0; length < whole.size(); ++length) {
    put_file("cut", whole.substr(0, length));
    accepted += refusal_of([] { KvCache::load("cut"); }).rfind("file: cut: ", 0) != 0;
  }
  EXPECT_EQ(accepted, 0);
}

TEST_F(CacheFiles, a_flipped_bit_is_refused_or_changes_nothing) {
  const KvCache cache = sample();
  cache.save("cache");
  const Seen expected(cache);
  const std::string whole = file_bytes("cache");
  Random random(9);
  int wrong = 0;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    std::string broken = whole;
    broken[i] = static_cast<char>(broken[i] ^ (1 << draw(random, 0, 7)));
    put_file("broken", broken);
    const std::string refused = refusal_of([&] { wrong += !(Seen(KvCache::load("broken")) == expected); });
    if (refused != "nothing" && refused.rfind("file: broken: ", 0) != 0) {
      ++wrong;
      ADD_FAILURE() << "byte " << i << ": " << refused;
    }
  }
  EXPECT_EQ(wrong, 0);
}

// What a file refuses with whose arrays were changed by somebody who knows the checksum.
std::string refused(const std::function<void(Arrays&)>& change) {
  sample().save("cache");
  Arrays arrays = read_safetensors("cache");
  change(arrays);
  cache::put_checksum(arrays);
  write_safetensors("cache", arrays);
  return refusal_of([] { KvCache::load("cache"); });
}

std::string refused_number(const char* name, std::int64_t value) {
  return refused([&](Arrays& arrays) { std::memcpy(arrays.at(name).data.data(), &value, sizeof value); });
}

std::string refused_entry(const char* name, std::size_t index, std::int64_t value) {
  return refused(
      [&](Arrays& arrays) { std::memcpy(arrays.at(name).data.data() + 8 * index, &value, sizeof value); });
}

TEST_F(CacheFiles, every_number_is_checked_before_it_is_believed) {
  EXPECT_EQ(refused([](Arrays&) {}), "nothing");
  EXPECT_EQ(refused_number("format", 2), "file: cache: format 2 is not the one known here, 1");
  EXPECT_EQ(refused_number("config.batch", -1), "file: cache: config.batch: -1 is not in [0, 2147483647]");
  EXPECT_EQ(refused_number("config.kv_heads", 0),
            "file: cache: config.kv_heads: 0 is not in [1, 2147483647]");
  EXPECT_EQ(refused_number("config.kv_heads", 2), "file: cache: pages: 448 bytes each, the layout needs 896");
  EXPECT_EQ(refused_number("config.capacity", 69),
            "file: cache: lengths: 70 for sequence 0 is not in [0, 69]");
  EXPECT_EQ(refused_number("config.dim", std::int64_t{1} << 40),
            "file: cache: config.dim: 1099511627776 is not in [1, 2147483647]");
  EXPECT_EQ(refused_number("config.dim", 2147483647),
            "file: cache: pages: 448 bytes each, the layout needs 34359738752");
  EXPECT_EQ(refused_number("config.value_dim", 17),
            "file: cache: pages: 448 bytes each, the layout needs 704");
  EXPECT_EQ(refused_number("config.type", 4), "file: cache: config.type: 4 is not in [0, 3]");
  EXPECT_EQ(refused_number("config.type", 0), "file: cache: pages: 448 bytes each, the layout needs 1152");
  EXPECT_EQ(refused_number("config.page_size", 17),
            "file: cache: config.page_size: 17 is not a power of two of at least 16");
  EXPECT_EQ(refused_number("config.pages", 2), "file: cache: pages: 3, the pool has 2");
  EXPECT_EQ(refused_number("config.pages", std::int64_t{1} << 62),
            "file: cache: config.pages: 4611686018427387904 is not in [1, 2147483647]");
  EXPECT_EQ(refused_number("config.window.length", 0),
            "file: cache: config.window.length: 0 is not in [1, 1152921504606846976]");
  EXPECT_EQ(refused_number("config.window.length", 40),
            "file: cache: tables: page 1 of sequence 0 is missing, and no window released it");
  EXPECT_EQ(refused_number("config.window.front", 17),
            "file: cache: tables: page 1 of sequence 0 is missing, and no window released it");
  EXPECT_EQ(refused_number("config.rotary.when", 2), "file: cache: config.rotary.when: 2 is not in [0, 1]");
  EXPECT_EQ(refused_number("config.rotary.dims", 3),
            "file: cache: config.rotary.dims: 3 is not a positive even number");
}

TEST_F(CacheFiles, tables_lengths_and_counts_must_agree) {
  EXPECT_EQ(refused_entry("lengths", 0, 101), "file: cache: lengths: 101 for sequence 0 is not in [0, 100]");
  EXPECT_EQ(refused_entry("lengths", 0, -2), "file: cache: lengths: -2 for sequence 0 is not in [0, 100]");
  EXPECT_EQ(refused_entry("lengths", 2, 90),
            "file: cache: tables: 5 entries for sequence 2, whose 90 tokens need 6");
  EXPECT_EQ(refused_entry("lengths", 2, 10), "file: cache: tables: 10 entries, the lengths need 6");
  EXPECT_EQ(refused_entry("tables", 0, 4), "file: cache: tables: 4 in sequence 0 is not in [0, 3)");
  EXPECT_EQ(refused_entry("tables", 0, -2), "file: cache: tables: -2 in sequence 0 is not in [0, 3)");
  EXPECT_EQ(refused_entry("tables", 0, 1),
            "file: cache: tables: page 1 is page 0 of one sequence and 3 of sequence 0");
  EXPECT_EQ(refused_entry("tables", 4, -1),
            "file: cache: tables: page 4 of sequence 0 is missing, and no window released it");
  EXPECT_EQ(refused_entry("users", 0, 3), "file: cache: users: 3 for page 0, which stands in 2 tables");
  EXPECT_EQ(refused_entry("tables", 9, 1),
            "file: cache: tables: page 1 is page 3 of one sequence and 4 of sequence 2");
}

TEST_F(CacheFiles, arrays_must_be_the_known_ones) {
  EXPECT_EQ(refused([](Arrays& a) { a.erase("lengths"); }), "file: cache: there is no \"lengths\"");
  EXPECT_EQ(refused([](Arrays& a) { a.erase("format"); }),
            "file: cache: holds no cache; it has no \"format\"");
  EXPECT_EQ(refused([](Arrays& a) { a.erase("config.window.front"); }),
            "file: cache: there is no \"config.window.front\"");
  EXPECT_EQ(refused([](Arrays& a) { a["more"] = cache::integers_array({1}); }),
            "file: cache: \"more\" is unknown here");
  EXPECT_EQ(refused([](Arrays& a) { a["users"] = cache::integers_array({1}); }),
            "file: cache: users: 1 entries for 3 pages");
  EXPECT_EQ(refused([](Arrays& a) { a.at("lengths").shape = {3, 1}; }),
            "file: cache: lengths is i64 of rank 2, not i64 of rank 1");
  EXPECT_EQ(refused([](Arrays& a) { a.at("config.dim") = Array::from_floats({}, {2}, Element::f64); }),
            "file: cache: config.dim is f64 of rank 0, not i64 of rank 0");
  EXPECT_EQ(refused([](Arrays& a) {
              const float scale = std::nanf("");
              std::memcpy(a.at("pages").data.data() + 64 + 256, &scale, sizeof scale);
            }),
            "file: cache: pages: a scale of nan in page 0");
}

TEST_F(CacheFiles, the_arrays_of_a_file_are_as_good_as_the_file) {
  KvCache cache = sample();
  KvCache made = KvCache::from_arrays(cache.to_arrays());
  EXPECT_EQ(Seen(made), Seen(cache));
  for (KvCache* each : {&cache, &made}) append_marked(*each, 2, 5, 500);
  EXPECT_EQ(Seen(made), Seen(cache));
  const auto refused_arrays = [&](const std::function<void(Arrays&)>& change) {
    Arrays arrays = cache.to_arrays();
    change(arrays);
    return refusal_of([&] { KvCache::from_arrays(arrays); });
  };
  EXPECT_EQ(refused_arrays([](Arrays& a) { a.at("lengths").data[0] ^= std::byte{1}; }),
            "file: arrays: the checksum does not match; it is damaged");
  EXPECT_EQ(refused_arrays([](Arrays& a) { a.at("format").data.clear(); }),
            "shape: format: i64 () needs 8 bytes, data has 0");
  EXPECT_EQ(refused_arrays([](Arrays& a) { a.at("pages").shape[0] = 1 << 20; }).substr(0, 18),
            "shape: pages: u8 (");
}

TEST_F(CacheFiles, a_file_that_is_not_there_is_refused) {
  EXPECT_EQ(refusal_of([] { KvCache::load("nothing"); }).rfind("file: nothing: ", 0), 0u);
}

}  // namespace
}  // namespace heed::test
