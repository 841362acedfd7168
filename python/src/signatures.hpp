// SPDX-License-Identifier: Apache-2.0
// Parts that the signatures of attention(), explain() and the layer's call share, as literals to be joined.
#pragma once

#define HEED_ALIGN "typing.Literal['starts', 'ends']"
#define HEED_HEAD_MAP "typing.Literal['interleaved', 'tiled']"
#define HEED_LAYOUT "layout: typing.Literal['bhsd', 'bshd'] = 'bhsd', "
#define HEED_STAGE "typing.Literal['raw', 'softcapped', 'biased']"

#define HEED_SEEN_KEYS                                                                                      \
  "causal: bool | " HEED_ALIGN                                                                              \
  " | None = None, "                                                                                        \
  "window: tuple[int | None, int | None] | tuple[int | None, int | None, " HEED_ALIGN                       \
  "] | None = None, front: int = 0, key_lengths: typing.Any = None, "                                       \
  "document: typing.Any = None, query_document: typing.Any = None, "                                        \
  "tree: typing.Any = None, keep: typing.Any = None, hide: typing.Any = None, "                             \
  "bias: typing.Any = None, alibi: typing.Any = None, scale: float | None = None, softcap: float | None = " \
  "None, "                                                                                                  \
  "sink: typing.Any = None, "

// What is asked for: anything at all, which says nothing about the result.
#define HEED_ANY_RESULTS(weights)                                                             \
  "return_weights: " weights " = False, return_lse: bool = False, return_scores: " HEED_STAGE \
  " | None = "                                                                                \
  "None"

#define HEED_NO_WEIGHTS "return_weights: typing.Literal[False] = False, "
#define HEED_NO_LSE "return_lse: typing.Literal[False] = False, "
#define HEED_NO_SCORES "return_scores: None = None"

// One signature for each kind of result: an array alone, a pair because one more is asked for, and what only
// the call itself can tell. `weights` is every return_weights there is, `given` those that ask for some.
#define HEED_RETURNS(signature, weights, given)                                                        \
  signature("attention", HEED_NO_WEIGHTS HEED_NO_LSE HEED_NO_SCORES, "ArrayT"),                        \
      signature("attention", "return_weights: typing.Literal[" given "], " HEED_NO_LSE HEED_NO_SCORES, \
                "tuple[ArrayT, ArrayT]"),                                                              \
      signature("attention", HEED_NO_WEIGHTS "return_lse: typing.Literal[True], " HEED_NO_SCORES,      \
                "tuple[ArrayT, ArrayT]"),                                                              \
      signature("attention", HEED_NO_WEIGHTS HEED_NO_LSE "return_scores: " HEED_STAGE,                 \
                "tuple[ArrayT, ArrayT]"),                                                              \
      signature("attention", HEED_ANY_RESULTS(weights), "typing.Any")

#define HEED_ATTENTION(name, results, result)                                                              \
  "def " name                                                                                              \
  "(q: ArrayT, k: ArrayT | None = None, v: ArrayT | None = None, *, cache: KvCache | None = None, "        \
  "sequences: typing.Any = None, query_starts: typing.Any = None, "                                        \
  "key_starts: typing.Any = None, query_lengths: typing.Any = None, " HEED_SEEN_KEYS                       \
  "dropout: float = 0.0, seed: int = 0, head_map: " HEED_HEAD_MAP " = 'interleaved', " HEED_LAYOUT results \
  ", out: ArrayT | None = None, kernel: str | None = None, threads: int | None = None) -> " result

#define HEED_LAYER_CALL(name, results, result)                                                    \
  "def __call__(self, x: ArrayT, context: ArrayT | None = None, value: ArrayT | None = None, *, " \
  "cache: KvCache | None = None, sequences: typing.Any = None, counts: typing.Any = None, "       \
  "positions: typing.Any = None, key_positions: typing.Any = None, " HEED_SEEN_KEYS               \
  "seed: int = 0, " results                                                                       \
  ", out: ArrayT | None = None, kernel: str | None = None, threads: int | None = None) -> " result
