# SPDX-License-Identifier: Apache-2.0
"""heed.attention, merge, plan and explain from Python: every option does what its docstring says."""

import numpy as np
import pytest
import textbook

import heed

B, H, KV, L, S, D = 2, 4, 2, 5, 7, 8
Q, K, V = textbook.random_arrays(11, (B, H, L, D), (B, KV, S, D), (B, KV, S, 6))
ROWS, COLUMNS = np.arange(L)[:, None], np.arange(S)[None, :]
BIAS, SINK = textbook.random_arrays(12, (H, L, S), (H,))
KEEP = np.random.default_rng(13).random((B, 1, L, S)) < 0.6
LENGTHS = np.array([7, 3])
PADDED = COLUMNS < LENGTHS[:, None, None, None]

OPTIONS = {
    "nothing": ({}, {}),
    "causal ends": ({"causal": "ends"}, {"seen": COLUMNS <= ROWS + S - L}),
    "causal starts": ({"causal": "starts"}, {"seen": COLUMNS <= ROWS}),
    "window": (
        {"window": (1, 2, "starts")},
        {"seen": (COLUMNS >= ROWS - 1) & (COLUMNS <= ROWS + 2)},
    ),
    "window without a left limit": ({"window": (None, 1, "starts")}, {"seen": COLUMNS <= ROWS + 1}),
    "a window shares the anchor of causal": (
        {"causal": "ends", "window": (1, 0)},
        {"seen": (COLUMNS <= ROWS + 2) & (COLUMNS >= ROWS + 1)},
    ),
    "key lengths": ({"key_lengths": LENGTHS}, {"seen": PADDED}),
    "key lengths as a list": ({"key_lengths": [7, 3]}, {"seen": PADDED}),
    "keep": ({"keep": KEEP}, {"seen": KEEP}),
    "hide": ({"hide": KEEP}, {"seen": ~KEEP}),
    "keep of rank 2": ({"keep": KEEP[0, 0]}, {"seen": KEEP[0, 0]}),
    "keep and causal": ({"keep": KEEP, "causal": "ends"}, {"seen": KEEP & (COLUMNS <= ROWS + S - L)}),
    "bias": ({"bias": BIAS}, {"bias": BIAS}),
    "scale": ({"scale": 0.5}, {"scale": 0.5}),
    "scale as an integer": ({"scale": 1}, {"scale": 1}),
    "softcap": ({"softcap": 2.0}, {"softcap": 2.0}),
    "sink": ({"sink": SINK}, {"sink": SINK}),
    "sink per batch entry": ({"sink": np.stack([SINK, SINK])}, {"sink": SINK}),
    "one thread": ({"threads": 1}, {}),
    "the reference": ({"kernel": "reference"}, {}),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_does_what_the_textbook_does(name):
    given, meant = OPTIONS[name]
    out, weights, lse = heed.attention(Q, K, V, **given, return_weights=True, return_lse=True)
    expected = textbook.attention(Q, K, V, **meant)
    assert textbook.misses(out, expected[0]) == 0
    assert textbook.misses(weights, expected[1]) == 0
    seen = np.isfinite(expected[2])
    assert textbook.misses(lse[seen], expected[2][seen]) == 0 and np.all(lse[~seen] == -np.inf)


def test_causal_true_is_for_equal_lengths():
    expected = textbook.attention(Q, K[:, :, :L], V[:, :, :L], seen=np.tri(L, dtype=bool))[0]
    assert textbook.misses(heed.attention(Q, K[:, :, :L], V[:, :, :L], causal=True), expected) == 0
    with pytest.raises(heed.Error, match='causal: 5 queries, 7 keys; say "ends" .decode. or "starts"'):
        heed.attention(Q, K, V, causal=True)


def test_none_and_false_mean_nothing_was_said():
    spelled = dict.fromkeys(["causal", "window", "key_lengths", "keep", "bias", "scale", "out", "kernel"])
    assert textbook.bits(heed.attention(Q, K, V, **spelled)) == textbook.bits(heed.attention(Q, K, V))
    assert textbook.bits(heed.attention(Q, K, V, causal=False)) == textbook.bits(heed.attention(Q, K, V))


def test_ranks_two_and_three_leave_out_leading_axes():
    whole, weights, lse = heed.attention(Q, K, V, return_weights=True, return_lse=True)
    three = heed.attention(Q[1], K[1], V[1], return_weights=True, return_lse=True)
    two = heed.attention(Q[1, 3], K[1, 1], V[1, 1], return_weights=True, return_lse=True)
    for all_of_it, entry, head in zip((whole, weights, lse), three, two):
        assert textbook.bits(entry) == textbook.bits(all_of_it[1]) and entry.shape == all_of_it.shape[1:]
        assert textbook.bits(head) == textbook.bits(all_of_it[1, 3]) and head.shape == all_of_it.shape[2:]


def test_a_tuple_holds_what_was_asked_for_in_one_order():
    everything = heed.attention(Q, K, V, return_weights=True, return_lse=True, return_scores="raw")
    assert [array.shape for array in everything] == [(B, H, L, 6), (B, H, L, S), (B, H, L), (B, H, L, S)]
    assert len(heed.attention(Q, K, V, return_lse=True)) == 2
    assert heed.attention(Q, K, V, return_weights=False).shape == (B, H, L, 6)


def test_scores_are_returned_at_the_stage_asked_for():
    raw = heed.attention(Q, K, V, return_scores="raw")[1]
    expected = Q.astype(float) @ np.repeat(K, 2, axis=1).swapaxes(-1, -2).astype(float) / np.sqrt(D)
    assert textbook.misses(raw, expected) == 0
    capped = heed.attention(Q, K, V, softcap=2.0, return_scores="softcapped")[1]
    assert textbook.misses(capped, 2 * np.tanh(expected / 2)) == 0
    biased = heed.attention(Q, K, V, bias=BIAS, keep=KEEP, return_scores="biased")[1]
    assert np.array_equal(np.isneginf(biased), np.broadcast_to(~KEEP, biased.shape))
    seen = np.broadcast_to(KEEP, biased.shape)
    assert textbook.misses(biased[seen], (expected + BIAS)[seen]) == 0


def test_dropout_depends_on_the_seed_alone():
    dropped = [heed.attention(Q, K, V, dropout=0.5, seed=seed, return_weights=True)[1] for seed in (7, 7, 8)]
    assert textbook.bits(dropped[0]) == textbook.bits(dropped[1]) != textbook.bits(dropped[2])
    weights = heed.attention(Q, K, V, return_weights=True)[1]
    kept = dropped[0] != 0
    assert 0 < kept.sum() < kept.size
    assert textbook.misses(dropped[0][kept], 2.0 * weights[kept].astype(float)) == 0


def test_a_tiled_head_map_reads_the_other_heads():
    tiled = heed.attention(Q, K, V, head_map="tiled")
    assert textbook.bits(tiled) == textbook.bits(heed.attention(Q, np.tile(K, (1, 2, 1, 1)), np.tile(V, (1, 2, 1, 1))))
    assert textbook.bits(tiled) != textbook.bits(heed.attention(Q, K, V))


def test_the_number_of_threads_of_a_call_is_its_own():
    before = heed.get_num_threads()
    heed.attention(Q, K, V, threads=before + 3)
    assert heed.get_num_threads() == before
    with pytest.raises(heed.Error):
        heed.attention(Q, K, V, threads=before + 3, kernel="none such")
    assert heed.get_num_threads() == before


def taken(verdicts):
    return [verdict.kernel for verdict in verdicts if verdict.choice == "taken"]


def test_a_forced_kernel_is_the_one_that_the_plan_takes():
    for kernel in heed.kernel_names():
        verdicts = heed.plan(Q, K, V, kernel=kernel)
        if not taken(verdicts):
            (reason,) = (verdict.reason for verdict in verdicts if verdict.kernel == kernel)
            with pytest.raises(heed.Error) as refused:
                heed.attention(Q, K, V, kernel=kernel)
            assert refused.value.code == "unsupported" and str(refused.value).endswith(f"refuses: {reason}")
            continue
        assert taken(verdicts) == [kernel]
        assert textbook.misses(heed.attention(Q, K, V, kernel=kernel), textbook.attention(Q, K, V)[0]) == 0


def test_explain_prints_the_plan():
    verdicts = heed.plan(Q, K, V, return_scores="raw")
    assert all(isinstance(verdict, heed.Verdict) for verdict in verdicts)
    assert heed.explain(Q, K, V, return_scores="raw").splitlines() == [": ".join(filter(None, verdict)) for verdict in verdicts]


def test_plan_and_explain_take_every_option_and_write_nothing():
    out = np.full((B, H, L, 6), 3.0, np.float32)
    assert taken(heed.plan(Q, K, V, causal="ends", bias=BIAS, keep=KEEP, out=out))
    assert "taken" in heed.explain(Q, K, V, causal="ends", bias=BIAS, keep=KEEP, out=out)
    assert np.all(out == 3.0)


@pytest.mark.parametrize("cuts", [(0, 7), (0, 3, 7), (0, 0, 1, 6, 7)])
def test_merging_parts_gives_the_whole(cuts):
    parts = [
        heed.attention(Q, K[:, :, a:b], V[:, :, a:b], return_lse=True) for a, b in zip(cuts, cuts[1:])
    ]
    kept = [part[0].copy() for part in parts]
    out, lse = heed.merge(*parts)
    expected = textbook.attention(Q, K, V)
    assert textbook.misses(out, expected[0]) == 0 and textbook.misses(lse, expected[2]) == 0
    assert all(np.array_equal(part[0], before) for part, before in zip(parts, kept))


def test_merging_works_on_two_axes_and_on_torch():
    import torch

    q, k, v = (torch.from_numpy(array) for array in (Q[0, 0], K[0, 0], V[0, 0]))
    parts = [heed.attention(q, k[a:b], v[a:b], return_lse=True) for a, b in ((0, 4), (4, 7))]
    out, lse = heed.merge(*parts)
    assert type(out) is torch.Tensor and tuple(lse.shape) == (L,)
    assert textbook.misses(out, textbook.attention(Q[0, 0], K[0, 0], V[0, 0])[0]) == 0
