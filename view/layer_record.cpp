// SPDX-License-Identifier: Apache-2.0
// See layer_record.hpp.
#include "view/layer_record.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "view/deflate.hpp"
#include "view/json_text.hpp"
#include "view/rows.hpp"

namespace HEED_NAMESPACE::view {
namespace {

// In place of a hidden weight: a NaN that no weight has, told by its bits.
constexpr std::uint32_t hidden_bits = 0xFFFFFFFF;
constexpr std::int64_t max_largest = 32;

// Levels finer than this would be packed only to find that they do not fit: codes shrink to a quarter at
// best.
int finest_level(const Run& run, std::int64_t heads, std::int64_t bytes) {
  int n = 0;
  const auto extent = [&n](std::int64_t whole) { return ((whole - 1) >> n) + 1; };
  const auto cells = [&] {
    return static_cast<double>(heads) * static_cast<double>(extent(run.queries)) *
           static_cast<double>(extent(run.keys));
  };
  while (cells() * (n > 0 ? 2 : 1) > 4 * static_cast<double>(bytes)) ++n;
  return n;
}

// A quarter of the bytes, at six for each: a weight hardly shrinks, a key's number to some two.
std::size_t largest_kept(const Run& run, std::int64_t heads, std::int64_t bytes) {
  const double each = 6 * static_cast<double>(heads) * static_cast<double>(run.queries);
  return static_cast<std::size_t>(std::clamp(std::floor(static_cast<double>(bytes) / 4 / each), 1.0,
                                             static_cast<double>(std::min(max_largest, run.keys))));
}

// All first bytes, all second, third and fourth: like beside like is what compression finds.
template <class Word>
std::string planes(const std::vector<Word>& words) {
  static_assert(sizeof(Word) == 4);
  std::vector<std::uint8_t> bytes(words.size() * 4);
  for (std::size_t i = 0; i < words.size(); ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(words[i]);
    for (std::size_t n = 0; n < 4; ++n)
      bytes[n * words.size() + i] = static_cast<std::uint8_t>(bits >> (8 * n));
  }
  return deflate(bytes);
}

std::string number(double value) { return json_of(value); }
std::string number(std::size_t value) { return std::to_string(value); }

std::string add(Blobs& blobs, std::string bytes) {
  blobs.push_back(std::move(bytes));
  return number(blobs.size() - 1);
}

std::string profile(std::span<const double> masses) {
  std::size_t count = masses.size();
  while (count > 0 && masses[count - 1] == 0) --count;
  std::vector<std::string> values;
  for (const double mass : masses.first(count)) values.push_back(number(mass));
  return json_list(values);
}

}  // namespace

LayerRecord::LayerRecord(const Run& run, const Layer& layer, std::int64_t bytes)
    : layer_(layer), run_queries_(run.queries), run_keys_(run.keys), bytes_(bytes) {
  const double weights =
      static_cast<double>(layer.heads) * static_cast<double>(run.queries) * static_cast<double>(run.keys);
  is_exact_ = 4 * weights <= 0.6 * static_cast<double>(bytes);
  const int finest = is_exact_ ? 1 : finest_level(run, layer.heads, bytes);
  const std::size_t kept = is_exact_ ? 0 : largest_kept(run, layer.heads, bytes);
  for (std::int64_t h = 0; h < layer.heads; ++h)
    heads_.push_back({.statistics = StatisticsRecord(run.keys, run.first_position),
                      .largest = {.count = kept},
                      .pyramid = Pyramid(run.queries, run.keys, finest)});
}

void LayerRecord::add_rows(const Rows& rows) {
  check_rows(rows, {.heads = layer_.heads, .queries = run_queries_, .keys = run_keys_, .first_row = rows_});
  for_every_row(rows, [this](std::size_t h, std::span<const float> weights, const bool* hidden) {
    Head& head = heads_[h];
    head.statistics.add_row(weights, hidden);
    head.largest.add_row(weights, hidden);
    head.pyramid.add_row(weights, hidden);
    if (!is_exact_) return;
    const std::size_t first = head.exact.size();
    head.exact.insert(head.exact.end(), weights.begin(), weights.end());
    for (std::size_t j = 0; hidden && j < weights.size(); ++j)
      if (hidden[j]) std::memcpy(&head.exact[first + j], &hidden_bits, sizeof hidden_bits);
  });
  rows_ += rows.weights.shape.length;
}

// Coarse levels first, of all heads alike, as long as they fit; the coarsest in any case.
std::vector<std::string> LayerRecord::pack_levels(Blobs& blobs, std::int64_t bytes_left) {
  std::vector<std::string> json(heads_.size());
  for (std::size_t n = heads_[0].pyramid.levels().size(); n-- > 0;) {
    Blobs largest(heads_.size()), mean(heads_.size());
    on_all_threads(heads_.size(), [&](std::size_t h) {
      const Level& level = heads_[h].pyramid.levels()[n];
      largest[h] = deflate(level.largest);
      if (!level.mean.empty()) mean[h] = deflate(level.mean);
    });
    std::int64_t bytes = 0;
    for (const Blobs* each : {&largest, &mean})
      for (const std::string& blob : *each) bytes += static_cast<std::int64_t>(blob.size());
    const bool is_coarsest = n + 1 == heads_[0].pyramid.levels().size();
    if (bytes > bytes_left && !is_coarsest) break;
    bytes_left -= bytes;
    for (std::size_t h = 0; h < heads_.size(); ++h) {
      const Level& level = heads_[h].pyramid.levels()[n];
      const std::string max_at = add(blobs, std::move(largest[h]));
      const std::string mean_at = level.mean.empty() ? max_at : add(blobs, std::move(mean[h]));
      json[h] +=
          (json[h].empty() ? "" : ",") + json_object({{"pool", number(std::size_t{1} << level.log2_pool)},
                                                      {"rows", std::to_string(level.rows)},
                                                      {"columns", std::to_string(level.columns)},
                                                      {"max", max_at},
                                                      {"mean", mean_at}});
    }
  }
  return json;
}

std::string LayerRecord::pack(Blobs& blobs) {
  const std::size_t first_blob = blobs.size();
  std::vector<std::string> heads;
  for (Head& head : heads_) {
    const Statistics statistics = head.statistics.statistics();
    const std::vector<float> received(statistics.received.begin(), statistics.received.end());
    std::string exact = "null", largest = "null";
    if (is_exact_) {
      exact = add(blobs, planes(head.exact));
      head.exact = {};
    } else {
      const std::string keys = add(blobs, planes(head.largest.keys));
      largest = json_object({{"count", number(head.largest.count)},
                             {"keys", keys},
                             {"weights", add(blobs, planes(head.largest.weights))}});
      head.largest = {};
    }
    heads.push_back(json_object({{"entropy", number(statistics.entropy_bits)},
                                 {"first", number(statistics.first)},
                                 {"previous", number(statistics.previous)},
                                 {"distance", number(statistics.distance)},
                                 {"back", profile(statistics.back)},
                                 {"ahead", profile(statistics.ahead)},
                                 {"largest", number(static_cast<double>(statistics.largest))},
                                 {"least_sum", number(statistics.min_sum)},
                                 {"greatest_sum", number(statistics.greatest_sum)},
                                 {"not_finite", std::to_string(statistics.not_finite)},
                                 {"seen", std::to_string(statistics.seen)},
                                 {"rows_that_see", std::to_string(statistics.rows_that_see)},
                                 {"received", add(blobs, planes(received))},
                                 {"exact", exact},
                                 {"top", largest}}));
    heads.back().pop_back();
  }
  std::int64_t left = bytes_;
  for (std::size_t i = first_blob; i < blobs.size(); ++i) left -= static_cast<std::int64_t>(blobs[i].size());
  const std::vector<std::string> levels = pack_levels(blobs, left);
  for (std::size_t h = 0; h < heads.size(); ++h) heads[h] += ",\"levels\":[" + levels[h] + "]}";
  heads_.clear();
  return json_object({{"name", json_of(std::string_view(layer_.name))},
                      {"kv_heads", std::to_string(layer_.kv_heads)},
                      {"tiled", layer_.head_map == HeadMap::tiled ? "true" : "false"},
                      {"heads", json_list(heads)}});
}

}  // namespace HEED_NAMESPACE::view
