# SPDX-License-Identifier: Apache-2.0
"""A list without entries is one of none: refused where there is something to say it of, right where there is nothing (S14)."""

import numpy as np
import pytest
import textbook

import heed

EMPTY = {
    "sequences of no cache": (lambda x, layer: layer(x, sequences=[]), "sequences: none are given; one per batch entry is needed"),
    "sequences": (
        lambda x, layer: layer(x, cache=heed.KvCache(batch=2, kv_heads=4, capacity=9, dim=8), sequences=()),
        "sequences: none are given; one per batch entry is needed",
    ),
    "sequences of plain arrays": (
        lambda x, _: heed.attention(x[None], x[None], x[None], sequences=np.zeros(0, np.int64)),
        "sequences: given, but no cache whose sequences they are",
    ),
    "positions": (lambda x, layer: layer(x, positions=[]), "positions: none are given; one per token is needed"),
    "key_positions": (lambda x, layer: layer(x, key_positions=[]), "key_positions: none are given; one per token is needed"),
    "lengths": (lambda x, _: heed.rotate(x, lengths=[]), "lengths: none are given; one per batch entry is needed"),
}


@pytest.mark.parametrize("name", EMPTY)
def test_a_list_without_entries_is_not_taken_for_none(name):
    call, sentence = EMPTY[name]
    (x,) = textbook.random_arrays(64, (2, 5, 32))
    with pytest.raises(heed.Error, match=sentence) as refused:
        call(x, heed.AttentionLayer(32, 4, rotary=heed.Rotary()))
    assert type(refused.value) is heed.Error


def test_an_empty_batch_over_a_cache_needs_no_sequences():
    cache = heed.KvCache(batch=2, kv_heads=2, capacity=9, dim=16, value_dim=24)
    q = np.ones((0, 4, 2, 16), np.float32)
    for sequences in ([], None):
        assert heed.attention(q, cache=cache, sequences=sequences).shape == (0, 4, 2, 24)
    layer, x = heed.AttentionLayer(32, 4, rotary=heed.Rotary()), np.ones((0, 5, 32), np.float32)
    own = heed.KvCache(batch=2, kv_heads=4, capacity=9, dim=8)
    assert layer(x, cache=own, sequences=[], counts=[], causal=True).shape == (0, 5, 32) and own.lengths == [0, 0]
    assert layer(np.ones((2, 0, 32), np.float32), positions=[]).shape == (2, 0, 32)
