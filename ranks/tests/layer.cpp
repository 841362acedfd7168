// SPDX-License-Identifier: Apache-2.0
// The layer over ranks has the bits of one process (O1), and a rank reads its own part of a file only.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "cases/selection.hpp"
#include "ranks/tests/layer_schedules.hpp"
#include "ranks/tests/rank_threads.hpp"

namespace heed::cases {
namespace {

TEST(LayersOverRanks, give_the_bits_of_one_process) {
  for (const std::uint64_t seed : seeds(9700, 9780)) {
    const auto said = on_ranks(group_of_threads(1 + static_cast<int>(seed % 8)), [&](Group& group) {
      EXPECT_TRUE(layer_has_the_bits_of_one_process(group, seed));
    });
    for (const std::string& sentence : said) EXPECT_EQ(sentence, "") << "seed " << seed;
  }
}

TEST(LayersOverRanks, have_every_head_and_output_once) {
  for (const std::int64_t kv_heads : {1, 2, 3, 8})
    for (const int ranks : {1, 2, 3, 5, 8}) {
      const LayerConfig config{.model_dim = 50, .heads = 8 * kv_heads, .kv_heads = kv_heads, .head_dim = 4};
      std::int64_t head = 0, output = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const LayerShare share = share_of_layer(config, rank, ranks);
        EXPECT_EQ(share.first_head, head);
        EXPECT_EQ(share.first_output, output);
        EXPECT_EQ(share.first_kv_head, share.first_head / 8);
        EXPECT_EQ(share.kv_heads, (share.first_head + share.heads - 1) / 8 - share.first_kv_head + 1);
        head += share.heads, output += share.outputs;
      }
      EXPECT_EQ(head, config.heads);
      EXPECT_EQ(output, config.model_dim);
    }
}

// Bytes that this process has asked files for.
std::int64_t bytes_read() {
  std::ifstream file("/proc/self/io");
  std::string name;
  std::int64_t count = 0;
  file >> name >> count;
  return name == "rchar:" ? count : -1;
}

TEST(LayersOverRanks, read_their_own_rows_of_a_file_and_no_others) {
  const LayerConfig config = grouped_query(256, 8, 4);
  LayerWeights whole = random_weights(config, 5);
  whole.b_q = random_bias(256, 6);
  const auto path = std::filesystem::temp_directory_path() / "heed_layer_over_ranks.safetensors";
  for (const Naming naming : {Naming::paper, Naming::llama, Naming::torch}) {
    LayerConfig c = config;
    LayerWeights w = whole;
    if (naming == Naming::torch) c = multi_head(256, 8), w = random_weights(c, 7);
    Arrays arrays;
    for (auto& [name, array] : to_arrays(w, naming)) arrays.emplace("layer." + name, array);
    write_safetensors(path, arrays);
    const std::int64_t size = static_cast<std::int64_t>(std::filesystem::file_size(path));
    for (int rank = 0; rank < 4; ++rank) {
      const LayerShare share = share_of_layer(c, rank, 4);
      const std::int64_t before = bytes_read();
      const LayerWeights part = weights_of_share(path, c, share, "layer.");
      if (before >= 0) {
        EXPECT_LT(bytes_read() - before, size / 4 + 4096);
      }
      const LayerWeights expected = weights_of_share(w, c, share);
      EXPECT_EQ(part.w_q.data, expected.w_q.data);
      EXPECT_EQ(part.w_k.data, expected.w_k.data);
      EXPECT_EQ(part.w_v.data, expected.w_v.data);
      EXPECT_EQ(part.w_o.data, expected.w_o.data);
      EXPECT_EQ(part.b_q.has_value(), expected.b_q.has_value());
      if (part.b_q) {
        EXPECT_EQ(part.b_q->data, expected.b_q->data);
      }
    }
  }
  std::filesystem::remove(path);
}

std::string refusal_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(LayersOverRanks, name_what_they_refuse) {
  const LayerConfig config = grouped_query(32, 4, 2);
  for (int rank = 0; rank < 5; ++rank)  // none goes on without the others
    EXPECT_EQ(refusal_of([&] { (void)share_of_layer(config, rank, 5); }),
              "ranks: 5 are more than config.heads: 4 can be divided among");
  EXPECT_EQ(refusal_of([&] { (void)share_of_layer(config, 2, 2); }), "rank: 2 is none of 2 ranks");
  LayerConfig tiled = config;
  tiled.head_map = HeadMap::tiled;
  EXPECT_EQ(refusal_of([&] { (void)share_of_layer(tiled, 0, 2); }),
            "config.head_map: tiled, but heads that share keys must be neighbours; see interleave_heads()");
  EXPECT_EQ(refusal_of([&] { LayerOverRanks(config, random_weights(config, 1), 0, 2); }),
            "w_q.shape: (32, 32) is not that of this rank's share: (16, 32)");
}

// This rank's share of a layer with random weights.
LayerOverRanks layer_of(const Group& group, const LayerConfig& config) {
  const LayerShare share = share_of_layer(config, group.rank(), group.size());
  return {config, weights_of_share(random_weights(config, 1), config, share), group.rank(), group.size()};
}

// What one rank is called with differently, or refuses, all of them refuse, and the group goes on.
TEST(LayersOverRanks, refuse_together) {
  const LayerConfig config = grouped_query(32, 4, 2);
  const auto said = on_ranks(group_of_threads(2), [&](Group& group) {
    const LayerOverRanks layer = layer_of(group, config);
    const auto sentence = [&](std::int64_t length, const Options& options, bool has_weights) {
      const Tensor x = Tensor::random({1, 1, length, 32}, 3);
      Tensor out(x.shape()), kept({1, 2, length, length});
      Outputs outputs{.out = out.mutable_view()};
      if (has_weights) outputs.weights = kept.mutable_view();
      return refusal_of([&] { layer(group, {.x = x.view()}, outputs, options); });
    };
    const bool is_one = group.rank() == 1;
    EXPECT_EQ(sentence(is_one ? 7 : 8, {}, false), "rank 1: x.length is 7, and 8 on rank 0");
    EXPECT_EQ(sentence(8, {.softcap = is_one ? 2.0f : 3.0f}, false).substr(0, 33),
              "rank 1: options.softcap, in bits,");
    EXPECT_EQ(sentence(8, {}, is_one), "rank 1 refuses: weights: asked for, but no rank has all heads");
    EXPECT_EQ(sentence(8, {}, false), "");
  });
  for (const std::string& one : said) EXPECT_EQ(one, "");
}

// A layer, context or cache of its own on rank 1: no bit of the others' heads would fit it.
TEST(LayersOverRanks, that_are_not_the_same_layer_refuse_together) {
  LayerConfig plain = grouped_query(32, 4, 2);
  plain.rotary = Rotary{};
  using Spoil = std::function<void(LayerConfig&, KvCacheConfig&)>;
  const std::vector<std::pair<const char*, Spoil>> differences{
      {"rank 1: config.rotary, as a number, or 0,", [](auto& c, auto&) { c.rotary->dims = 4; }},
      {"rank 1: config.rotary, as a number, or 0,",
       [](auto& c, auto&) { c.rotary->pairs = RotaryPairs::adjacent; }},
      {"rank 1: config.rotary, as a number, or 0,",
       [](auto& c, auto&) { c.rotary->scaling = LinearScaling{2}; }},
      {"rank 1: config.rotary, as a number, or 0, is 0,", [](auto& c, auto&) { c.rotary.reset(); }},
      {"rank 1: the type of the cache, or 0, is 4,", [](auto&, auto& k) { k.type = CacheType::int8; }},
      {"rank 1: cache.window.length, or 0, is 3,", [](auto&, auto& k) { k.window = CacheWindow{3}; }},
      {"", [](auto&, auto& k) { k.page_size = 16; }}};  // which changes no bit
  const auto said = on_ranks(group_of_threads(2), [&](Group& group) {
    for (const auto& [sentence, spoil] : differences) {
      LayerConfig config = plain;
      KvCacheConfig kept{.kv_heads = 1, .capacity = 32, .dim = 8};
      if (group.rank() == 1) spoil(config, kept);
      const LayerOverRanks layer = layer_of(group, config);
      KvCache cache(kept);
      const Tensor x = Tensor::random({1, 1, 8, 32}, 3);
      Tensor out(x.shape());
      const std::string found =
          refusal_of([&] { layer(group, {.x = x.view(), .cache = &cache}, {.out = out.mutable_view()}); });
      EXPECT_EQ(found.substr(0, std::string(sentence).size()), sentence) << found;
      EXPECT_EQ(found.empty(), std::string(sentence).empty()) << found;
    }
  });
  for (const std::string& one : said) EXPECT_EQ(one, "");
}

TEST(LayersOverRanks, refuse_a_context_that_only_one_has) {
  const LayerConfig config = grouped_query(32, 4, 2);
  const auto said = on_ranks(group_of_threads(2), [&](Group& group) {
    const LayerOverRanks layer = layer_of(group, config);
    const Tensor x = Tensor::random({1, 1, 8, 32}, 3), context = Tensor::random({1, 1, 8, 32}, 4);
    Tensor out(x.shape());
    AttentionLayer::Call call{.x = x.view()};
    if (group.rank() == 1) call.context = context.view();
    EXPECT_EQ(refusal_of([&] { layer(group, call, {.out = out.mutable_view()}); }),
              "rank 1: the type of context, or 0, is 1, and 0 on rank 0");
  });
  for (const std::string& one : said) EXPECT_EQ(one, "");
}

}  // namespace
}  // namespace heed::cases
