// SPDX-License-Identifier: Apache-2.0
// Makes one kind of checkpoint out of another: fewer KV heads by averaging, and tiled query heads into
// interleaved ones.
#include <algorithm>

#include "layer/weights.hpp"
#include "refusal/refusal.hpp"

namespace heed::inline v0_2 {
using namespace layer;

namespace {

// Averages each `group` neighbouring blocks of `block` rows into one. The sum is in double, so that equal
// rows come out with the bits they went in with.
Array mean_of_groups(const Array& array, std::int64_t group, std::int64_t block) {
  const std::int64_t columns = array.shape.size() == 2 ? array.shape[1] : 1;
  const std::int64_t block_size = block * columns, groups = array.shape[0] / (group * block);
  const std::vector<float> from = array.to_floats();
  std::vector<float> to(static_cast<std::size_t>(groups * block_size));
  for (std::int64_t g = 0; g < groups; ++g)
    for (std::int64_t n = 0; n < block_size; ++n) {
      double sum = 0;
      for (std::int64_t h = 0; h < group; ++h)
        sum += static_cast<double>(from[static_cast<std::size_t>((g * group + h) * block_size + n)]);
      to[static_cast<std::size_t>(g * block_size + n)] = static_cast<float>(sum / static_cast<double>(group));
    }
  std::vector<std::int64_t> shape = array.shape;
  shape[0] = groups * block;
  return Array::from_floats(shape, to, array.element);
}

struct Blocks {
  std::int64_t
      outer;  // how many times the sequence of heads occurs: 1 for rows, the number of rows for columns
  std::int64_t bytes;  // of one head's block
};

// Block kv * (heads / kv_heads) + g becomes block g * kv_heads + kv of the tiled order.
void interleave(std::vector<std::byte>& data, std::int64_t heads, std::int64_t kv_heads,
                const Blocks& blocks) {
  const std::vector<std::byte> tiled = data;
  const std::int64_t group = heads / kv_heads;
  for (std::int64_t row = 0; row < blocks.outer; ++row)
    for (std::int64_t h = 0; h < heads; ++h) {
      const std::int64_t source = (h % group) * kv_heads + h / group;
      const auto from = tiled.begin() + (row * heads + source) * blocks.bytes;
      std::copy(from, from + blocks.bytes, data.begin() + (row * heads + h) * blocks.bytes);
    }
}

std::int64_t byte_size(const Array& array) { return static_cast<std::int64_t>(array.data.size()); }

void check_count(const char* name, std::int64_t count) {
  if (count < 1) throw refusal(Error::value, name, ": ", count, " is not positive");
}

void check_divides(const char* name, std::int64_t count, const char* width_name, std::int64_t width) {
  if (width % count != 0)
    throw refusal(Error::shape, name, ": ", count, " does not divide ", width_name, ": ", width);
}

}  // namespace

LayerWeights pool_kv_heads(LayerWeights w, std::int64_t from, std::int64_t to) {
  check_weights(w);
  check_count("from", from);
  check_count("to", to);
  check_divides("to", to, "from", from);
  check_divides("from", from, "w_k.rows", w.w_k.shape[0]);
  check_divides("from", from, "w_v.rows", w.w_v.shape[0]);
  if (from == to) return w;
  const std::int64_t head_dim = w.w_k.shape[0] / from, value_head_dim = w.w_v.shape[0] / from,
                     group = from / to;
  w.w_k = mean_of_groups(w.w_k, group, head_dim);
  w.w_v = mean_of_groups(w.w_v, group, value_head_dim);
  if (w.b_k) w.b_k = mean_of_groups(*w.b_k, group, head_dim);
  if (w.b_v) w.b_v = mean_of_groups(*w.b_v, group, value_head_dim);
  return w;
}

LayerWeights interleave_heads(LayerWeights w, std::int64_t heads, std::int64_t kv_heads) {
  check_weights(w);
  check_count("heads", heads);
  check_count("kv_heads", kv_heads);
  check_divides("kv_heads", kv_heads, "heads", heads);
  check_divides("heads", heads, "w_q.rows", w.w_q.shape[0]);
  check_divides("heads", heads, "w_o.columns", w.w_o.shape[1]);
  if (w.w_q.shape[0] / w.w_k.shape[0] != heads / kv_heads)
    throw refusal(Error::shape, "heads / kv_heads: ", heads / kv_heads,
                  " is not w_q.rows / w_k.rows: ", w.w_q.shape[0] / w.w_k.shape[0]);
  interleave(w.w_q.data, heads, kv_heads, {1, byte_size(w.w_q) / heads});
  if (w.b_q) interleave(w.b_q->data, heads, kv_heads, {1, byte_size(*w.b_q) / heads});
  const std::int64_t rows = w.w_o.shape[0];
  interleave(w.w_o.data, heads, kv_heads, {rows, byte_size(w.w_o) / rows / heads});
  return w;
}

}  // namespace heed::inline v0_2
