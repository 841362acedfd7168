// SPDX-License-Identifier: Apache-2.0
// Signatures and docstrings. The examples in them are run by the tests.
#pragma once
namespace heed::python {

constexpr const char* sdpa_signature =
    "def scaled_dot_product_attention(query: ArrayT, key: ArrayT, value: ArrayT, attn_mask: ArrayT | None = "
    "None, "
    "dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False) "
    "-> ArrayT";
constexpr const char* sdpa_doc = R"(Attention with PyTorch's arguments and PyTorch's meaning of them.

query is (..., heads, queries, dim), key (..., heads, keys, dim), value (..., heads, keys, value_dim), with any
number of leading axes, none included; they broadcast. The result is (..., heads, queries, value_dim), of query's
library and element type.

attn_mask broadcasts to (..., heads, queries, keys): boolean, True attends; or floats that are added to the scores.
is_causal aligns the first query with the first key, whatever the lengths. scale defaults to 1/sqrt(dim). With
enable_gqa, key and value may have fewer heads, each a divisor of query's. dropout_p applies to every call; which
weights drop is drawn from Python's random module.

A query that sees no key yields zeros, and what a mask hides never reaches the result, NaN included.

>>> import numpy, heed
>>> q = numpy.zeros((2, 8, 5, 16), numpy.float32)
>>> k = v = numpy.ones((2, 2, 7, 16), numpy.float32)
>>> heed.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).shape
(2, 8, 5, 16)
)";

constexpr const char* attention_doc =
    R"(Scaled dot-product attention: each query's softmax-weighted mean of the values whose keys it sees.

q is (batch, heads, queries, dim), k (batch, kv_heads, keys, dim), v (batch, kv_heads, keys, value_dim), out like q with
value_dim; all may leave out the batch, or batch and heads. float32, float16 or bfloat16, any strides. kv_heads divides
heads. layout="bshd": (batch, length, heads, dim). In place of k and v, or packed:
  cache, sequences          a heed.KvCache: batch entry b attends to its sequence b, or to sequences[b]
  query_starts, key_starts  (sequences + 1,) integers: rows [starts[n], starts[n + 1]) of a batch of 1 are sequence n
  query_lengths             (batch,) integers: entry b has the first so many rows of q; those after them yield zeros
Which keys a query sees; all of these intersect:
  causal       "ends" (last query at last key: decode), "starts", or True: as many queries as keys, or a cache
  window       (left, right): so many keys around its own position, None: no limit; front: the first so many as well
  key_lengths  (batch,) integers: only the first so many keys
  document     (keys,) or (batch, keys) integers: only keys of its own document; query_document: the queries' own
  keep, hide   booleans that broadcast to (batch, heads, queries, keys): True attends; True is ignored
  tree         booleans that broadcast to (batch, heads, queries, queries): which of the last keys, drafted ones, it sees
How scores are made. Positions are as causal says; else (left, right, "ends"), (ids, "starts"), (slopes, "ends"):
  scale, softcap  default 1/sqrt(dim); c * tanh(score / c)
  bias, alibi     floats that broadcast to (batch, heads, queries, keys); (heads,) or (batch, heads) slopes
  sink            (heads,) or (batch, heads): one extra logit in the denominator
  dropout, seed   probability that a weight is dropped; the pattern depends on seed alone
  head_map        the KV head of query head h: "interleaved", h // (heads // kv_heads), or "tiled", h % kv_heads
Returns out, or a tuple of it and those asked for, of q's library and element type. out=: an array to write to.
  return_weights, return_lse  (batch, heads, queries, keys), after dropout; (batch, heads, queries), float32, base e
  return_scores               (batch, heads, queries, keys): "raw", "softcapped", or "biased", -inf where unseen
kernel forces one of kernel_names(). threads: how many, for this call; it never changes a bit. More: docs/python.md.

>>> import numpy, heed
>>> q = numpy.zeros((1, 8, 1, 64), numpy.float32)         # one new token
>>> k = v = numpy.ones((1, 2, 100, 64), numpy.float32)    # two KV heads, a hundred keys
>>> out, lse = heed.attention(q, k, v, causal="ends", window=(49, 0), return_lse=True)
>>> out.shape, lse.shape, float(numpy.exp(lse[0, 0, 0]).round(3))
((1, 8, 1, 64), (1, 8, 1), 50.0)
)";

constexpr const char* plan_doc =
    R"(What becomes of every kernel when attention() is called like this, in the order they are tried.

Takes the arguments of attention() and computes nothing. Each heed.Verdict has the kernel's name, the choice ("taken",
"refused" or "not needed") and the reason why it is refused. None is taken where `kernel` names one that refuses.

>>> import numpy, heed
>>> q = numpy.zeros((4, 6, 16), numpy.float32)
>>> [verdict.kernel for verdict in heed.plan(q, q, q, kernel="reference") if verdict.choice == "taken"]
['reference']
)";

constexpr const char* explain_doc =
    R"(Which kernel attention() would run, and why not the others: plan() in words, one line each.

Takes the arguments of attention() and computes nothing.

>>> import numpy, heed
>>> q = numpy.zeros((4, 6, 16), numpy.float32)
>>> print(heed.explain(q, q, q, kernel="reference").splitlines()[-1])
reference: taken
)";

constexpr const char* merge_doc =
    R"(Joins results over disjoint sets of keys into the result over all of them.

Each part is a pair (out, lse) as attention(..., return_lse=True) returns it: out (batch, heads, queries, value_dim), lse
(batch, heads, queries). Returns such a pair. Nothing that is passed in changes.

>>> import numpy, heed
>>> q = numpy.ones((2, 3, 4), numpy.float32)
>>> k = v = numpy.arange(40, dtype=numpy.float32).reshape(2, 5, 4) / 40
>>> whole = heed.attention(q, k, v)
>>> parts = [heed.attention(q, k[:, a:b], v[:, a:b], return_lse=True) for a, b in ((0, 2), (2, 5))]
>>> out, lse = heed.merge(*parts)
>>> bool(numpy.allclose(out, whole, atol=1e-6))
True
)";

constexpr const char* set_num_threads_doc = R"(Sets how many threads heed uses from now on, in [1, 4096].

The number never changes a bit of any result. The default is HEED_NUM_THREADS, else what the machine allows.

>>> import heed
>>> before = heed.get_num_threads()
>>> heed.set_num_threads(1)
>>> heed.get_num_threads()
1
>>> heed.set_num_threads(before)
)";
constexpr const char* get_num_threads_doc = R"(How many threads heed uses.

>>> import heed
>>> heed.get_num_threads() >= 1
True
)";
constexpr const char* share_openmp_threads_doc =
    R"(Runs heed's work on the threads of PyTorch's OpenMP runtime from now on; not in a child forked from this process.

Returns False, and changes nothing, where PyTorch is not loaded or has none. heed calls it when it is handed a tensor of
PyTorch's, and heed.torch when it is imported: those threads stay busy looking for work after every operation, and two
pools would fight for the cores.

>>> import heed._heed
>>> heed._heed.share_openmp_threads() in (True, False)
True
)";
constexpr const char* unwatched_sdpa_doc =
    R"(scaled_dot_product_attention past PyTorch's dispatcher, or NotImplemented where somebody listens to it.

So it is as well where something is dropped, where the result would lie otherwise than PyTorch's, and where something is to be
refused.
)";
constexpr const char* is_plain_drop_in_doc =
    R"(Whether scaled_dot_product_attention of these has four axes each, no mask and no dropout, and nobody listens but autograd and autocast.

Nothing is to be refused then, and nothing broadcasts.
)";
constexpr const char* is_unwatched_doc =
    R"(Whether these are plain tensors of PyTorch's and nobody listens: no autograd, tracer, mode, transform, profiler or subclass.

Whatever is no tensor does not count, and compilers are for the caller to ask about: what they trace is not called.
)";
constexpr const char* xla_handlers_doc =
    R"(What XLA calls for attention and its gradients: of each platform, names and what jax.ffi.register_ffi_target takes for them.)";
constexpr const char* compiler_doc =
    R"(The name and version of the compiler that made this build.

>>> import heed._heed
>>> heed._heed.compiler() == heed.configuration()["compiler"]
True
)";
constexpr const char* kernel_names_doc = R"(Every kernel this machine can run, in the order they are tried.

>>> import heed
>>> heed.kernel_names()[-1]
'reference'
)";

}  // namespace heed::python
