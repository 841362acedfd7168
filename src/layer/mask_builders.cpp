// SPDX-License-Identifier: Apache-2.0
// Masks out of tokens and sizes: padding, look-ahead, both together, and the lengths that need no matrix.
#include <algorithm>
#include <limits>

#include "heed/mask.hpp"
#include "refusal/refusal.hpp"

namespace HEED_NAMESPACE {

namespace {

constexpr std::int64_t largest_length = std::numeric_limits<std::int32_t>::max();

// Tokens per row.
std::int64_t row_length(std::span<const std::int64_t> tokens, std::int64_t batch) {
  if (batch < 0) throw refusal(Error::shape, "batch: ", batch, " is negative");
  const auto count = static_cast<std::int64_t>(tokens.size());
  if (batch == 0 ? count != 0 : count % batch != 0)
    throw refusal(Error::shape, "tokens: ", count, " of them do not make ", batch, " rows of one length");
  const std::int64_t length = batch == 0 ? 0 : count / batch;
  if (length > largest_length)
    throw refusal(Error::shape, "tokens: rows of ", length, " are longer than ", largest_length);
  return length;
}

HideMatrix make_matrix(const Shape& shape) {
  HideMatrix matrix;
  matrix.shape = shape;
  matrix.hidden = std::make_unique<bool[]>(static_cast<std::size_t>(shape.elements()));
  return matrix;
}

void check_matrix(const char* name, const HideMatrix& m) {
  const Shape s = m.shape;
  if (s.batch < 0 || s.heads < 0 || s.length < 0 || s.dim < 0)
    throw refusal(Error::shape, name, ".shape: ", s, " has a negative extent");
  if (!m.hidden && s.elements() != 0) throw refusal(Error::value, name, ".hidden: holds no memory");
}

std::int64_t joint_extent(const char* axis, std::int64_t a, std::int64_t b) {
  if (a != b && a != 1 && b != 1)
    throw refusal(Error::shape, "b.", axis, ": ", b, " is neither a.", axis, ": ", a, " nor 1");
  return a == 1 ? b : a;
}

}  // namespace

HideMatrix padding_mask(std::span<const std::int64_t> tokens, std::int64_t batch, std::int64_t pad_id) {
  HideMatrix mask = make_matrix({batch, 1, 1, row_length(tokens, batch)});
  std::transform(tokens.begin(), tokens.end(), mask.hidden.get(),
                 [&](std::int64_t id) { return id == pad_id; });
  return mask;
}

HideMatrix look_ahead_mask(std::int64_t size) {
  if (size < 0 || size > largest_length)
    throw refusal(Error::shape, "size: ", size, " is not in [0, ", largest_length, "]");
  HideMatrix mask = make_matrix({1, 1, size, size});
  for (std::int64_t i = 0; i < size; ++i)
    for (std::int64_t j = i + 1; j < size; ++j) mask.hidden[static_cast<std::size_t>(i * size + j)] = true;
  return mask;
}

HideMatrix combine(const HideMatrix& a, const HideMatrix& b) {
  check_matrix("a", a);
  check_matrix("b", b);
  HideMatrix both = make_matrix({joint_extent("batch", a.shape.batch, b.shape.batch),
                                 joint_extent("heads", a.shape.heads, b.shape.heads),
                                 joint_extent("queries", a.shape.length, b.shape.length),
                                 joint_extent("keys", a.shape.dim, b.shape.dim)});
  const auto hides = [](const HideMatrix& m, const Shape& at) {
    const auto within = [](std::int64_t extent, std::int64_t index) { return extent == 1 ? 0 : index; };
    return m.at(within(m.shape.batch, at.batch), within(m.shape.heads, at.heads),
                within(m.shape.length, at.length), within(m.shape.dim, at.dim));
  };
  std::size_t n = 0;
  for (std::int64_t h = 0, bh = both.shape.batch * both.shape.heads; h < bh; ++h)
    for (std::int64_t i = 0; i < both.shape.length; ++i)
      for (std::int64_t j = 0; j < both.shape.dim; ++j) {
        const Shape at{h / both.shape.heads, h % both.shape.heads, i, j};
        both.hidden[n++] = hides(a, at) || hides(b, at);
      }
  return both;
}

std::vector<std::int32_t> key_lengths(std::span<const std::int64_t> tokens, std::int64_t batch,
                                      std::int64_t pad_id) {
  const std::int64_t length = row_length(tokens, batch);
  std::vector<std::int32_t> lengths;
  for (std::int64_t b = 0; b < batch; ++b) {
    const auto row = tokens.subspan(static_cast<std::size_t>(b * length), static_cast<std::size_t>(length));
    const std::int64_t padding = std::find(row.begin(), row.end(), pad_id) - row.begin();
    const std::int64_t token =
        std::find_if(row.begin() + padding, row.end(), [&](std::int64_t id) { return id != pad_id; }) -
        row.begin();
    if (token != length)
      throw refusal(Error::value, "tokens: row ", b, " has padding at ", padding, " before a token at ",
                    token, ", so no length describes it");
    lengths.push_back(static_cast<std::int32_t>(padding));
  }
  return lengths;
}

}  // namespace HEED_NAMESPACE
