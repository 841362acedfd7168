# SPDX-License-Identifier: Apache-2.0
"""The faults: where, which exact text, what instead, and what that breaks. One line of code each, all plausible."""

import dataclasses

ALGORITHM = "src/cpu/algorithm/"
ARM = ("aarch64", "arm64")


@dataclasses.dataclass(frozen=True)
class Fault:
    name: str
    file: str
    old: str
    new: str
    breaks: str
    machine: tuple = ()  # where it can be noticed; everywhere if empty


FAULTS = [
    Fault(
        "rescale-skipped",
        ALGORITHM + "softmax.hpp",
        "if (moved) scale_rows<S>(state.out, dims, factor);",
        "if (moved && dims < 0) scale_rows<S>(state.out, dims, factor);",
        "prefill does not rescale the output when the maximum moves",
    ),
    Fault(
        "sum-not-rescaled",
        ALGORITHM + "softmax.hpp",
        "sum[v] = S::mul(S::load(state.sum + v * S::lanes), factor[v]);",
        "sum[v] = S::load(state.sum + v * S::lanes);",
        "prefill does not rescale the denominator when the maximum moves",
    ),
    Fault(
        "rescale-skipped-in-decode",
        ALGORITHM + "decode_state.hpp",
        "if (factors[lane] != 1.0f)",
        "if (factors[lane] > 1.0f)",
        "decode does not rescale the output when the maximum moves",
    ),
    Fault(
        "chunk-forgotten",
        ALGORITHM + "decode.hpp",
        "for (std::int64_t n = 1; n < chunks; ++n) merge_rows",
        "for (std::int64_t n = 1; n + 1 < chunks; ++n) merge_rows",
        "decode forgets to merge the last chunk of keys",
    ),
    Fault(
        "chunk-not-merged",
        ALGORITHM + "prefill.hpp",
        "/ chunk_keys * chunk_keys; chunk < seen.end;",
        "/ chunk_keys * chunk_keys; chunk < least(seen.end, 2 * chunk_keys);",
        "prefill stops after two chunks of keys",
    ),
    Fault(
        "tail-of-the-tile",
        ALGORITHM + "product.hpp",
        "for (std::int64_t k = 0; k < depth; ++k, a += Tile<S>::rows",
        "for (std::int64_t k = 0; k + 1 < depth; ++k, a += Tile<S>::rows",
        "the portable micro-kernel leaves out the last step of the sum",
    ),
    Fault(
        "tail-of-the-assembly",
        "src/cpu/simd/neon_product.hpp",
        "#define HEED_LAST HEED_STEP(5, 6, 7, , , , , )",
        "#define HEED_LAST HEED_STEP(5, 6, 6, , , , , )",
        "the NEON micro-kernel takes a wrong register in the last step, for a third of the rows",
        ARM,
    ),
    Fault(
        "wrong-lane",
        "src/cpu/simd/neon_dots.hpp",
        "HEED_LANE(18, 2) HEED_LANE(19, 3)",
        "HEED_LANE(18, 2) HEED_LANE(19, 2)",
        "decode's NEON dot products take one dimension of four twice and one never",
        ARM,
    ),
    Fault(
        "transpose-wrong-lane",
        "src/cpu/simd/neon.hpp",
        "odd = vzipq_f32(load(from[1]), load(from[3]));",
        "odd = vzipq_f32(load(from[3]), load(from[1]));",
        "packing swaps two of four rows",
        ARM,
    ),
    Fault(
        "wrong-group",
        "src/cpu/call.hpp",
        "tiled_heads ? member * kv_heads + kv_head : kv_head * group() + member",
        "tiled_heads ? member * kv_heads + kv_head : member * kv_heads + kv_head",
        "query heads read KV heads in the tiled order (S8)",
    ),
    Fault(
        "keys-of-another-batch-entry",
        ALGORITHM + "decode_views.hpp",
        "const Row row = row_of<S>(x, rows.b, rows.kv_head,",
        "const Row row = row_of<S>(x, 0, rows.kv_head,",
        "decode reads the keys and values of batch entry 0 for all",
    ),
    Fault(
        "mask-off-by-one",
        ALGORITHM + "score.hpp",
        "least(s.key_count, i + s.end_offset)",
        "least(s.key_count, i + s.end_offset + 1)",
        "a causal query sees one key too many (S9)",
    ),
    Fault(
        "window-off-by-one",
        ALGORITHM + "score.hpp",
        "{most(0, i + s.first_offset),",
        "{most(0, i + s.first_offset + 1),",
        "a window begins one key late (S10)",
    ),
    Fault(
        "sink-missing",
        ALGORITHM + "finish.hpp",
        "end.sum = __builtin_fmaf(end.sum, factor, one_exp2<S>(sink - max));",
        "end.sum = end.sum * factor;",
        "the sink is left out of the denominator (S5)",
    ),
    Fault(
        "dropout-word",
        ALGORITHM + "dropout.hpp",
        "weight = words[n] < c.drop_below",
        "weight = words[3 - n] < c.drop_below",
        "dropout reads the four random words backwards (S7)",
    ),
    Fault(
        "bias-sign",
        ALGORITHM + "mask.hpp",
        "S::fma(x, to_base_2, s)",
        "S::fma(S::sub(S::fill(0.0f), x), to_base_2, s)",
        "the bias is subtracted (S3)",
    ),
    Fault(
        "poison-not-added",
        ALGORITHM + "prefill.hpp",
        "if (poisoned) add_poison(t, state.out);",
        "if (poisoned && t.keys < 0) add_poison(t, state.out);",
        "a NaN or infinite value never reaches the rows of prefill that see it (S13)",
    ),
    Fault(
        "careful-path-skipped-in-decode",
        ALGORITHM + "decode_views.hpp",
        "if (finite) return add_groups<Type::f32>(part);",
        "if (finite || part.keys > 0) return add_groups<Type::f32>(part);",
        "decode multiplies unseen values by 0, so that NaN gets through (S4)",
    ),
    Fault(
        "last-tile-of-decode",
        ALGORITHM + "decode_views.hpp",
        "t.first_key + least(j + n, t.keys - 1)",
        "t.first_key + least(j + n, t.keys - 2)",
        "decode scores the last key of an incomplete tile with the key before it",
    ),
    Fault(
        "exp2-clamp-removed",
        ALGORITHM + "exp2.hpp",
        "x[i] = S::max(S::fill(-126.0f), x[i]);",
        "x[i] = S::max(S::fill(-1260.0f), x[i]);",
        "2^x is garbage below -126 instead of 0",
    ),
    Fault(
        "softcap-scale",
        ALGORITHM + "score.hpp",
        "inverse = S::fill(1.0f / c.softcap_log2e);",
        "inverse = S::fill(1.44269504f / c.softcap_log2e);",
        "the softcap divides a base-2 score by a natural cap (S2)",
    ),
    Fault(
        "block-not-anchored",
        ALGORITHM + "prefill.hpp",
        "chunk = seen.front > 0 ? 0 : seen.begin / chunk_keys * chunk_keys;",
        "chunk = seen.front > 0 ? 0 : seen.begin;",
        "chunks begin at the first visible key instead of at multiples of 1024: right numbers, other bits (O1)",
    ),
    Fault(
        "poison-seen-by-all",
        ALGORITHM + "prefill.hpp",
        "if (unseen[j * rows + r] == 0)",
        "if (unseen[j * rows + r] >= 0)",
        "a NaN or infinite value reaches rows of prefill that do not see it (S4)",
    ),
    Fault(
        "page-of-the-token-before",
        ALGORITHM + "pack.hpp",
        "return c.cached[b].table[j / c.layout.page_size]",
        "return c.cached[b].table[(j > 0 ? j - 1 : 0) / c.layout.page_size]",
        "the first token of every page is looked for in the page before",
    ),
    Fault(
        "cached-sequence-of-another",
        ALGORITHM + "pack.hpp",
        "return c.cached[b].table[",
        "return c.cached[0].table[",
        "every batch entry reads the first sequence of the cache",
    ),
    Fault(
        "last-token-of-the-tile",
        ALGORITHM + "decode_cache.hpp",
        "({values_of(key), ahead, p + r, least(tile, t.keys - j)}, r, partial);",
        "({values_of(key), ahead, p + r, least(tile - 1, t.keys - j)}, r, partial);",
        "decode over a cache forgets the value of every sixteenth token",
    ),
    Fault(
        "cached-scores-of-other-rows",
        ALGORITHM + "decode_cache.hpp",
        "({rows.q + r, at.rows, t.keys,",
        "({rows.q, at.rows, t.keys,",
        "decode over a cache scores rows 4, 5, ... with the queries of rows 0, 1, ...",
    ),
    Fault(
        "front-hidden",
        ALGORITHM + "score.hpp",
        "hide_keys<S>(c.front, seen.begin, column, t);",
        "hide_keys<S>(0, seen.begin, column, t);",
        "a window hides the keys at the front that every query should see (S10)",
    ),
    Fault(
        "tree-off-by-one",
        ALGORITHM + "mask.hpp",
        "const std::int64_t first = m.is_tree ? s.keys - s.queries : 0;",
        "const std::int64_t first = m.is_tree ? s.keys - s.queries - 1 : 0;",
        "a tree mask is about the tokens one place too early (S18)",
    ),
    Fault(
        "packed-queries-unplaced",
        ALGORITHM + "score.hpp",
        "return {b, h, i, c.sequences[b].first_query + i};",
        "return {b, h, i, i};",
        "every packed sequence reads and writes the rows of the first (S19)",
    ),
    Fault(
        "mask-of-one-row-for-all",
        ALGORITHM + "mask.hpp",
        "is_shared &= first[r] == first[0];",
        "is_shared &= first[r] >= first[0];",
        "a bias or mask with a row for every query is read as if it had one for all",
    ),
    Fault(
        "mask-rows-swapped",
        ALGORITHM + "mask.hpp",
        "return rows.row(r, t.first_key); };",
        "return rows.row(r ^ 1, t.first_key); };",
        "a transposed strip of a bias or mask gives every row that of its neighbour",
    ),
    Fault(
        "mask-strip-off-by-one",
        ALGORITHM + "mask.hpp",
        "visit(Scores{t.s + (key - t.first_key) * t.width, t.width, key,",
        "visit(Scores{t.s + (key - t.first_key) * t.width, t.width, key - (key > 0),",
        "a strip of a bias or mask is that of one key earlier",
    ),
    Fault(
        "mask-judged-by-its-last-word",
        ALGORITHM + "mask.hpp",
        "differing |= eight ^ wanted;",
        "differing = eight ^ wanted;",
        "a strip of a mask counts as wholly seen or hidden when its last eight keys are",
    ),
    Fault(
        "mask-trimmed-too-far",
        ALGORITHM + "mask.hpp",
        "while (hides(last())) keys.end = last().begin;",
        "while (hides(last())) keys.end = last().begin - 1;",
        "the last key before a hidden end is left out",
    ),
    Fault(
        "bias-overflows-into-a-mask",
        ALGORITHM + "mask.hpp",
        "S::max(lowest, S::fma(x, to_base_2, s))",
        "S::max(hidden, S::fma(x, to_base_2, s))",
        "the lowest finite bias hides its key (S3)",
    ),
]
