// SPDX-License-Identifier: Apache-2.0
// Attention over keys and values that come in stretches of any lengths, in order: from a file, a generator or
// other ranks. Its results have the bits of one call over all of them. Memory O(queries) and at most 1023
// keys.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "heed/attention.hpp"
#include "heed/export.hpp"
#include "heed/version.hpp"

namespace HEED_NAMESPACE {

// Where the rows of q lie in a larger call: they are queries [first_query, first_query + q.length) of
// `queries` and heads [first_head, first_head + q.heads) of `heads`. Masks without a matrix, query_ids,
// ALiBi's distances and dropout speak of that call; outputs, bias, boolean masks, slopes and sinks have the
// rows and heads of q.
struct Place {
  std::int64_t first_query = 0, queries = 0;
  std::int64_t first_head = 0, heads = 0;
};

// What is known before the keys come.
struct StreamInputs {
  View q{};                                 // (batch, heads, queries, dim)
  std::optional<std::int64_t> kv_heads{};   // of the keys and values to come; default: the heads of q
  std::optional<std::int64_t> value_dim{};  // likewise; default: the dim of q
  // How many keys will come. Where it is not said, what needs it is refused: Align::ends, and all that has a
  // number or a column for each key.
  std::optional<std::int64_t> keys{};
  std::span<const std::int64_t> query_counts{};  // as in Inputs
  std::optional<Place> place{};                  // default: q is all there is
};

// Everything that q, the outputs and the options point to must stay as it is until finish() has returned; a
// stretch, until add() has. Weights and scores need all keys at once and are refused.
class HEED_API KeyStream {
 public:
  // Throws Error, and nothing is written, as attention() does.
  explicit KeyStream(const StreamInputs&, const Outputs&, const Options& = {});
  ~KeyStream();
  KeyStream(KeyStream&&) noexcept;
  KeyStream& operator=(KeyStream&&) noexcept;

  // The keys that follow those before: k is (batch, kv_heads, any, dim), v (batch, kv_heads, as many,
  // value_dim), both of the dtype of q. A stretch that does not fit is refused, and the stream is as if it
  // had not been offered.
  void add(const View& k, const View& v);
  std::int64_t keys() const;  // added so far

  // Writes the outputs, once. A row that attention() would compute in 64 bits because numbers on the way to
  // it do not fit f32, or are none (S13), cannot be had without its keys: then all other rows are written,
  // and Error::value names it.
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// What becomes of every kernel for streams when one is planned, and the same in words.
HEED_API std::vector<Verdict> plan(const StreamInputs&, const Outputs&, const Options& = {});
HEED_API std::string explain(const StreamInputs&, const Outputs&, const Options& = {});

// Every kernel for streams that this machine can run, in the order they are tried.
HEED_API std::vector<std::string> stream_kernel_names();

}  // namespace HEED_NAMESPACE
