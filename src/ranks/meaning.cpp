// SPDX-License-Identifier: Apache-2.0
#include "ranks/meaning.hpp"

namespace heed::ranks {
namespace {

std::int64_t mix(std::int64_t hash, std::int64_t value) {
  const auto x = (static_cast<std::uint64_t>(hash) ^ static_cast<std::uint64_t>(value)) * 0x9E3779B97F4A7C15u;
  return static_cast<std::int64_t>(x ^ (x >> 29));
}
std::int64_t hash_of(const Split& split) {
  std::int64_t hash = 1;
  for (const Share& s : split.of_rank) {
    hash = mix(mix(hash, s.first_kv_head), s.kv_heads);
    for (const auto* stretches : {&s.queries, &s.keys}) {
      hash = mix(hash, std::ssize(*stretches));
      for (const Stretch& one : *stretches) hash = mix(mix(hash, one.first), one.length);
    }
  }
  return hash;
}
std::int64_t hash_of(const Masks& masks) {
  std::int64_t hash = 2;
  for (const Mask& mask : masks) {
    hash = mix(hash, static_cast<std::int64_t>(mask.index()));
    if (const auto* m = std::get_if<Causal>(&mask))
      hash = mix(hash, m->align ? 1 + static_cast<std::int64_t>(*m->align) : 0);
    if (const auto* m = std::get_if<Window>(&mask))
      hash = mix(mix(mix(mix(hash, m->left), m->right), m->front),
                 m->align ? 1 + static_cast<std::int64_t>(*m->align) : 0);
    if (const auto* m = std::get_if<KeyLengths>(&mask))
      for (const std::int32_t count : m->valid) hash = mix(hash, count);
    if (const auto* m = std::get_if<Document>(&mask)) {
      for (const std::int32_t id : m->ids) hash = mix(hash, id);
      for (const std::int32_t id : m->query_ids) hash = mix(hash, id);
    }
  }
  return hash;
}

}  // namespace

std::int64_t number_of(std::span<const std::int64_t> numbers) {
  std::int64_t hash = 3;
  for (const std::int64_t number : numbers) hash = mix(hash, number);
  return hash;
}

void describe(Agreement& a, const Group& group, const Split& split, const Inputs* in,
              const Options& options) {
  a.add("the size of the group", group.size());
  const WholeCall& w = split.whole;
  a.add("whole.queries", w.queries);
  a.add("whole.keys", w.keys);
  a.add("whole.heads", w.heads);
  a.add("whole.kv_heads", w.kv_heads);
  a.add("the split, as a number,", hash_of(split));
  if (!in) a.say_no_more();
  const Inputs& said = in ? *in : Inputs{};
  a.add("q.batch", said.q.shape.batch);
  a.add("q.dim", said.q.shape.dim);
  a.add("v.dim", said.v.shape.dim);
  a.add("q.dtype", static_cast<std::int64_t>(said.q.dtype));
  describe_options(a, in ? options : Options{});
}

void describe_options(Agreement& a, const Options& options) {
  a.add_bits("options.scale, in bits,", options.scale ? double{*options.scale} : -0.0);
  a.add_bits("options.softcap, in bits,", options.softcap ? double{*options.softcap} : 0.0);
  a.add_bits("options.dropout, in bits,", options.dropout ? double{options.dropout->drop_probability} : 0.0);
  a.add("options.dropout.seed", options.dropout ? static_cast<std::int64_t>(options.dropout->seed) : 0);
  a.add("options.head_map", static_cast<std::int64_t>(options.head_map));
  a.add("that options.bias is given", options.bias.has_value());
  a.add("that options.sink is given", options.sink.has_value());
  a.add("that options.alibi is given", options.alibi.has_value());
  a.add("options.masks, as a number,", hash_of(options.masks));
}

}  // namespace heed::ranks
