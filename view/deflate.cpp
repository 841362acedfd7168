// SPDX-License-Identifier: Apache-2.0
// See deflate.hpp. The stream is a sequence of blocks, each with Huffman codes of its own.
#include "view/deflate.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include "view/huffman.hpp"
#include "view/matches.hpp"

namespace HEED_NAMESPACE::view {
namespace {

constexpr std::size_t symbols_per_block = 32768;
constexpr std::size_t end_of_block = 256, first_length = 257, lengths = 286, distances = 30;

// Numbers in classes: the class is a symbol, the rest are bits after it.
struct Class {
  std::size_t index = 0;
  int bits = 0;
  std::uint32_t rest = 0;
};

// The classes of 0, 1, 2, ...: `width` of them for every number of extra bits, and twice as many for none.
Class class_of(std::uint32_t number, std::uint32_t width) {
  if (number < 2 * width) return {number, 0, 0};
  int bits = 0;
  while ((number >> bits) >= 2 * width) ++bits;
  return {static_cast<std::size_t>(bits) * width + (number >> bits), bits, number & ((1U << bits) - 1)};
}
Class length_class(std::uint32_t length) {
  return length == 258 ? Class{28, 0, 0} : class_of(length - 3, 4);  // 258 has a class of its own
}
Class distance_class(std::uint32_t distance) { return class_of(distance - 1, 2); }

class BitStream {
 public:
  void put(std::uint32_t bits, int count) {
    held_ |= static_cast<std::uint64_t>(bits) << count_;
    for (count_ += count; count_ >= 8; count_ -= 8, held_ >>= 8)
      bytes_.push_back(static_cast<char>(held_ & 0xFF));
  }
  void put(const HuffmanCode& code, std::size_t symbol) { put(code.bits[symbol], code.lengths[symbol]); }
  std::string finish() {
    if (count_ > 0) put(0, 8 - count_);
    return std::move(bytes_);
  }

 private:
  std::string bytes_{};
  std::uint64_t held_ = 0;
  int count_ = 0;
};

// The lengths of both codes, with repetitions as symbols 16 to 18 (RFC 1951, 3.2.7).
struct LengthSymbol {
  std::uint8_t symbol = 0;
  std::uint8_t rest = 0;
};

std::vector<LengthSymbol> run_lengths(const std::vector<std::uint8_t>& all) {
  std::vector<LengthSymbol> symbols;
  for (std::size_t i = 0; i < all.size();) {
    std::size_t run = 1;
    while (i + run < all.size() && all[i + run] == all[i]) ++run;
    i += run;
    const std::uint8_t value = all[i - 1];
    if (value != 0) {
      symbols.push_back({value, 0});
      --run;
    }
    while (run >= 3) {
      const std::size_t most = value != 0 ? 6 : run >= 11 ? 138 : 10;
      const std::size_t taken = std::min(run, most);
      const std::uint8_t symbol = value != 0 ? 16 : run >= 11 ? 18 : 17;
      symbols.push_back({symbol, static_cast<std::uint8_t>(taken - (symbol == 18 ? 11 : 3))});
      run -= taken;
    }
    for (; run > 0; --run) symbols.push_back({value, 0});
  }
  return symbols;
}

void put_codes(BitStream& stream, const HuffmanCode& literals, const HuffmanCode& distance) {
  constexpr std::array<std::uint8_t, 19> order = {16, 17, 18, 0, 8,  7, 9,  6, 10, 5,
                                                  11, 4,  12, 3, 13, 2, 14, 1, 15};
  std::vector<std::uint8_t> all = literals.lengths;
  all.insert(all.end(), distance.lengths.begin(), distance.lengths.end());
  const std::vector<LengthSymbol> symbols = run_lengths(all);
  std::array<std::uint32_t, 19> counts{};
  for (const LengthSymbol& each : symbols) ++counts[each.symbol];
  const HuffmanCode code = huffman_code(counts, 7);
  std::size_t used = order.size();
  while (used > 4 && code.lengths[order[used - 1]] == 0) --used;
  stream.put(static_cast<std::uint32_t>(literals.lengths.size() - 257), 5);
  stream.put(static_cast<std::uint32_t>(distance.lengths.size() - 1), 5);
  stream.put(static_cast<std::uint32_t>(used - 4), 4);
  for (std::size_t i = 0; i < used; ++i) stream.put(code.lengths[order[i]], 3);
  for (const LengthSymbol& each : symbols) {
    stream.put(code, each.symbol);
    if (each.symbol >= 16) stream.put(each.rest, each.symbol == 16 ? 2 : each.symbol == 17 ? 3 : 7);
  }
}

void put_block(BitStream& stream, const std::vector<Symbol>& symbols) {
  std::vector<std::uint32_t> literal_counts(lengths), distance_counts(distances);
  literal_counts[end_of_block] = 1;
  distance_counts[0] = 1;  // a code of no symbols is not one that every reader takes
  for (const Symbol& each : symbols) {
    if (each.length == 0) {
      ++literal_counts[each.distance];
      continue;
    }
    ++literal_counts[first_length + length_class(each.length).index];
    ++distance_counts[distance_class(each.distance).index];
  }
  const HuffmanCode literals = huffman_code(literal_counts, 15), distance = huffman_code(distance_counts, 15);
  put_codes(stream, literals, distance);
  for (const Symbol& each : symbols) {
    if (each.length == 0) {
      stream.put(literals, each.distance);
      continue;
    }
    const Class length = length_class(each.length), back = distance_class(each.distance);
    stream.put(literals, first_length + length.index);
    stream.put(length.rest, length.bits);
    stream.put(distance, back.index);
    stream.put(back.rest, back.bits);
  }
  stream.put(literals, end_of_block);
}

}  // namespace

std::string deflate(std::span<const std::uint8_t> bytes) {
  BitStream stream;
  Matches matches(bytes);
  std::vector<Symbol> symbols = matches.next(symbols_per_block);
  for (bool is_last = false; !is_last;) {
    std::vector<Symbol> following = matches.next(symbols_per_block);
    is_last = following.empty();
    stream.put(is_last ? 1 : 0, 1);
    stream.put(2, 2);  // with codes of its own
    put_block(stream, symbols);
    symbols = std::move(following);
  }
  return stream.finish();
}

}  // namespace HEED_NAMESPACE::view
