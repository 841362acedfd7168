// SPDX-License-Identifier: Apache-2.0
// Scaled dot-product attention: three structs (everything read, written, chosen) and one call. docs/spec.md
// says exactly what is computed.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "heed/error.hpp"
#include "heed/export.hpp"
#include "heed/mask.hpp"
#include "heed/tensor.hpp"
#include "heed/version.hpp"

namespace HEED_NAMESPACE {

class KvCache;
struct Executor;

// Multi-head, multi-query and grouped-query attention are only k.shape.heads: equal to q.shape.heads, 1, or a
// divisor.
struct Inputs {
  View q{};  // (batch, heads, queries, dim)
  View k{};  // (batch, kv_heads, keys, dim)
  View v{};  // (batch, kv_heads, keys, value_dim)

  // In place of k and v (S18): batch entry b attends to sequence b of the cache, or to sequences[b]. Its
  // queries are the last tokens appended, so a causal mask needs no alignment.
  const KvCache* cache = nullptr;
  std::span<const std::int64_t> sequences{};

  // Packed sequences of different lengths (S19): q is (1, heads, all queries, dim), and sequence n has rows
  // [query_starts[n], query_starts[n + 1]) of it; likewise k and v by key_starts. With a cache, only queries
  // are packed.
  std::span<const std::int64_t> query_starts{}, key_starts{};

  // Padded queries: batch entry b has the first query_counts[b] rows of q; default: all. The rows after them
  // are not read, and nothing is written for them.
  std::span<const std::int64_t> query_counts{};
};

// Which intermediate scores to return. raw and softcapped are computed for every key; biased is what enters
// the softmax, so unseen keys are -inf there.
enum class Stage : std::uint8_t { raw, softcapped, biased };

struct Scores {
  Optional<MutableView> into{};  // (batch, heads, queries, keys)
  Stage stage = Stage::raw;
};

// What attention() wrote, to be read and never written: by check(), and by merge() of the other side.
struct Results {
  View out;
  Optional<View> weights{};
  Optional<View> log_sum_exp{};
};

struct Outputs {
  MutableView out;                      // (batch, heads, queries, value_dim), the dtype of q or f32
  Optional<MutableView> weights{};      // (batch, heads, queries, keys), after dropout
  Optional<MutableView> log_sum_exp{};  // (batch, heads, queries, 1), f32, or f64 as q; natural
  Scores scores{};

  operator Results() const { return {out, weights, log_sum_exp}; }
};

// Which weights drop depends on (seed, batch entry, head, query, key) only (S7).
struct Dropout {
  double drop_probability = 0;  // rounded to f32 unless q is f64
  std::uint64_t seed = 0;
};

// Which KV head query head h reads (S8): h / (heads / kv_heads), or h mod kv_heads.
enum class HeadMap : std::uint8_t { interleaved, tiled };

// Attention with linear biases: every score loses its head's slope times the distance of its key from the
// query's own position, as `align` says (S21).
struct Alibi {
  Borrowed<float> slopes{};  // (heads), or (batch, heads)
  std::optional<Align> align{};
};

struct Options {
  Masks masks{};
  Optional<View>
      bias{};  // added to the scaled scores; (batch, heads, queries, keys), an extent of 1 broadcasts
  std::optional<Alibi> alibi{};     // before the bias
  std::optional<double> scale{};    // default 1/sqrt(dim); rounded to f32 unless q is f64
  std::optional<double> softcap{};  // c * tanh(score / c), before the bias; positive; rounded alike
  Optional<View>
      sink{};  // one extra logit in the denominator; (batch, heads, 1, 1), an extent of 1 broadcasts
  std::optional<Dropout> dropout{};
  HeadMap head_map = HeadMap::interleaved;
  std::string kernel{};  // force one by name, as plan() lists them; empty: the plan chooses
  int threads = 0;       // for this call; 0: num_threads(). Changes no bit
  // Whose threads, for this call and for those that it makes on this thread. Default: set_executor()'s, or
  // heed's own.
  Executor* executor = nullptr;
  // A cudaStream_t, on Device::cuda alone: the call is launched there and returns. Default: the device's
  // legacy stream.
  void* stream = nullptr;
};

// A query that sees no key: out 0, weights 0, log-sum-exp -inf (S6). Throws Error before anything is written.
HEED_API void attention(const Inputs&, const Outputs&, const Options& = {});
template <OneMask M>
void attention(const Inputs&, const Outputs&, const M&) = delete;  // a mask is an option: {.masks = {...}}

// Joins two results over disjoint sets of keys: split keys, shared prefixes, ranks. Both carry out and
// log_sum_exp.
HEED_API void merge(const Outputs& into, const Results& other);

// What becomes of one kernel when a call is planned. The first that does not refuse is taken, or the one that
// Options::kernel names.
struct Verdict {
  enum Choice : std::uint8_t { taken, refused, not_needed };
  std::string kernel;
  Choice choice;
  std::string reason{};  // why it is refused
};

HEED_API const char* name_of(Verdict::Choice);  // "taken", "refused", "not needed"

// One verdict per kernel, in the order they are tried; nothing is computed. None is taken where
// Options::kernel names one that refuses, as attention() then does.
HEED_API std::vector<Verdict> plan(const Inputs&, const Outputs&, const Options& = {});

// The same in words, a line each: "cpu.decode.neon: refused: scores were asked for".
HEED_API std::string explain(const Inputs&, const Outputs&, const Options& = {});

// Every kernel this machine can run, in the order they are tried.
HEED_API std::vector<std::string> kernel_names();
// What is wrong with HEED_TARGET and HEED_NUM_THREADS, a sentence for each: what heed warned of on stderr
// when it came to them.
HEED_API std::vector<std::string> environment_warnings();

}  // namespace HEED_NAMESPACE
