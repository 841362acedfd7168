// SPDX-License-Identifier: Apache-2.0
// The keyword arguments that attention(), explain() and the layer share, read once into plain data.
#pragma once
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "heed/attention.hpp"
#include "heed/cache.hpp"
#include "others_run.hpp"
#include "views.hpp"

namespace heed::python {

enum class Weights : std::uint8_t { none, per_head, average };

// To the library a list without entries was not given. Who says one in Python means something else, and is
// told what is missing.
using SaidList = std::optional<std::vector<std::int64_t>>;
inline std::span<const std::int64_t> entries_of(const SaidList& list) {
  return list ? std::span<const std::int64_t>(*list) : std::span<const std::int64_t>();
}
void check_not_empty(const char* name, const SaidList& list, std::int64_t wanted, const char* each);

struct Choices {
  Options options{};
  AxisOrder layout = AxisOrder::bhsd;
  nb::object out{};
  Weights weights = Weights::none;
  bool wants_log_sum_exp = false;
  std::optional<Stage> scores{};
  std::int64_t front = 0;  // of the window
  // What stands for k and v, and which rows belong together:
  KvCache* cache = nullptr;
  SaidList sequences{};
  std::vector<std::int64_t> query_starts{}, key_starts{};
  SaidList query_lengths{};
  // Only the layer's:
  SaidList positions{}, key_positions{}, counts{};
  std::uint64_t seed = 0;

  // What the options point into. A deque does not move what it holds.
  std::deque<Tensor> held{};
  std::vector<std::int32_t> key_lengths{}, document{}, query_document{};
  std::optional<std::int64_t> document_columns{}, query_document_columns{};
  std::vector<float> slopes{};
  std::optional<std::int64_t> slope_columns{};
};

// Which function is called: it decides which keywords there are.
enum class Caller : std::uint8_t {
  attention,
  backward,
  layer,
  ranks,
  backward_over_ranks,
  decode_over_ranks,
  layer_over_ranks
};

// An integer of 64 bits without a sign.
std::uint64_t read_seed(nb::handle object);
HeadMap read_head_map(nb::handle object);

Choices read_choices(Caller caller, const nb::kwargs& keywords);

// The signature of a function of this caller's keywords, as the stub has it: what comes before them, what is
// said of results among them, and what is returned.
struct Signature {
  std::string begin, results, returned;
};
std::string signature_of(Caller caller, const Signature& said);
// One for each kind of result: an array alone, a pair because one more is asked for, and what only the call
// itself can tell. `weights` is every return_weights there is, `given` those that ask for some.
std::vector<std::string> overloads_of(Caller caller, const std::string& begin, const char* weights,
                                      const char* given);
// What is asked for: anything at all, which says nothing about what is returned.
std::string any_results(const std::string& weights);

// What counts from the query's own position must say where that is when queries and keys differ (S9), except
// over a cache. In Python's words.
void check_alignment(const Choices& choices, std::int64_t queries, std::int64_t keys);
// Rows of documents have a number for every token, rows of slopes one for every head; how many rows there may
// be is left to the library.
struct Columns {
  std::int64_t queries, keys, heads;
};
void check_columns(const Choices& choices, const Columns& wanted);

// Runs body without the GIL.
template <class Body>
void compute(Body body) {
  const OthersRun others_run;
  body();
}

}  // namespace heed::python
