# SPDX-License-Identifier: Apache-2.0
"""The faults of the backward pass."""

from fault import ALGORITHM, Fault

GRADIENT_FAULTS = [
    Fault(
        "gradient-without-delta",
        ALGORITHM + "gradient_pairs.hpp",
        "S::store(x, S::mul(S::load(w), S::sub(S::load(x), less[n])));",
        "S::store(x, S::mul(S::load(w), S::load(x)));",
        "the gradients by the scores lack delta (G3)",
    ),
    Fault(
        "gradient-without-slope",
        ALGORITHM + "gradient_pairs.hpp",
        "if (c.softcap_log2e != 0 && by == By::product)",
        "if (c.softcap_log2e != 0 && by == By::product && c.keys < 0)",
        "the slope of the softcap is left out (G4)",
    ),
    Fault(
        "gradient-of-dropped-values",
        ALGORITHM + "gradient_pairs.hpp",
        "S::store(weights + n, S::mul(S::load(weights + n), S::load(kept + n)));",
        "S::store(weights + n, S::load(weights + n));",
        "values get gradients from weights that were dropped (G2)",
    ),
    Fault(
        "gradient-of-hidden-pairs",
        ALGORITHM + "gradient_pairs.hpp",
        "if (unseen[j * rows + r] != 0 || state[r] == hollow_row)",
        "if (state[r] == hollow_row)",
        "a NaN that is hidden from a row reaches it (G6)",
    ),
    Fault(
        "gradient-of-the-last-block",
        ALGORITHM + "gradient.hpp",
        "tile_product<S, Start::apart>(pairs.gradients, lines,",
        "tile_product<S, Start::zero>(pairs.gradients, lines,",
        "queries get the gradient of the last block of keys only (G5)",
    ),
    Fault(
        "gradient-rows-swapped",
        ALGORITHM + "gradient.hpp",
        "{from + r, from + rows + r, from + 2 * rows + r, from + 3 * rows + r}",
        "{from + rows + r, from + r, from + 2 * rows + r, from + 3 * rows + r}",
        "keys get the gradients of their neighbours",
    ),
    Fault(
        "gradient-without-scale",
        ALGORITHM + "gradient.hpp",
        "{dk, e.dims, e.dim, g.scale, g.left_k}",
        "{dk, e.dims, e.dim, 1.0f, g.left_k}",
        "the gradient by the keys is not scaled (G5)",
    ),
    Fault(
        "gradient-of-one-head",
        ALGORITHM + "gradient_shared.hpp",
        "for (std::int64_t h = heads.begin; h < heads.end; ++h) add_head(b, h);",
        "for (std::int64_t h = heads.begin; h < heads.begin + 1; ++h) add_head(b, h);",
        "a bias that all heads share gets the gradient of the first (G8)",
    ),
    Fault(
        "gradient-of-a-sink-unseen",
        ALGORITHM + "gradient_shared.hpp",
        "if (lse == minus_infinity || !sees_any(c, q)) {",
        "if (lse == minus_infinity) {",
        "a query that sees no key gives the sink more than its own gradient (G7)",
    ),
    Fault(
        "gradient-of-a-bad-row",
        ALGORITHM + "gradient_pairs.hpp",
        "else if (state[r] == bad_row || (keys.has_bad && keys.is_bad[at.first + j]))",
        "else if (keys.has_bad && keys.is_bad[at.first + j])",
        "NaN in a query, or in the gradient of its out, reaches no key (S13)",
    ),
    Fault(
        "weight-gradient-of-the-last-block",
        ALGORITHM + "weight_gradient.hpp",
        "tile_product<S, Start::apart>(x + p",
        "tile_product<S, Start::zero>(x + p",
        "a projection's matrix gets the gradient of the last block of tokens only (G10)",
    ),
    Fault(
        "weight-gradient-in-other-blocks",
        "src/cpu/weight_gradient_call.hpp",
        "gradient_tokens = 256",
        "gradient_tokens = 128",
        "sums over tokens are cut at other places: right numbers, other bits (G10, O2)",
    ),
    Fault(
        "weight-gradient-of-padding",
        ALGORITHM + "weight_gradient.hpp",
        "return all_finite<S>(line, part.inputs) || has_gradient(token);",
        "return true;",
        "NaN in a token that nobody sees reaches the gradient of a matrix (G10)",
    ),
    Fault(
        "weight-gradient-tail",
        ALGORITHM + "weight_gradient.hpp",
        "into[i] = i < real ? line[d + i] : 0.0f;",
        "into[i] = i + 1 < real ? line[d + i] : 0.0f;",
        "the last number of a row that does not fill its tile is lost",
    ),
    Fault(
        "turned-on-instead-of-back",
        "src/layer/backward.cpp",
        "limits.max() : -p);",
        "limits.max() : p);",
        "the gradient of the rotary embedding turns the way the embedding did (G10)",
    ),
]
