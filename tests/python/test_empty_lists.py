# SPDX-License-Identifier: Apache-2.0
"""A list without entries is one of none: refused where there is something to say it of, right where there is nothing (S14)."""

import numpy as np
import pytest
import textbook

import heed
import heed.distributed

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


EMPTY |= {
    "documents of queries": (
        lambda x, layer: layer(x, document=[0] * 5, query_document=[]),
        "query_document: 0 numbers a row for 5 queries",
    ),
    "documents of queries, fewer than keys": (
        lambda x, layer: layer(x[:, :3], x, document=[0] * 5, query_document=[]),
        "query_document: 0 numbers a row for 3 queries",
    ),
    "documents of no keys": (
        lambda x, layer: layer(x[:, :0], x, query_document=[]),
        "query_document: given, but document is not",
    ),
    "documents": (lambda x, layer: layer(x, document=[]), "document: 0 numbers a row for 5 keys"),
    "key_lengths": (lambda x, layer: layer(x, key_lengths=()), "key lengths: 0 counts for q.batch: 2"),
    "slopes": (lambda x, layer: layer(x, alibi=[]), "alibi: 0 slopes are neither one per head: 4 nor one per batch entry and head: "),
    "positions of rotate": (lambda x, _: heed.rotate(x, positions=[]), "positions: 0 entries are neither x.length: 5"),
    "arrays for gradients": (
        lambda x, _: heed.attention_backward(*[x] * 5, x[..., 0], into=()),
        "into: 0 arrays for 3 gradients by q, k and v",
    ),
    "words": (lambda x, _: heed.view(np.eye(5), tokens=[]), "query_tokens: 0 for 5 queries"),
    "words of queries": (lambda x, _: heed.view(np.eye(5), query_tokens=()), "query_tokens: 0 for 5 queries"),
    "words of keys": (lambda x, _: heed.picture(np.eye(5), "keys.png", key_tokens=[]), "key_tokens: 0 for 5 keys"),
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


def test_no_queries_are_of_no_documents():
    x, layer = np.ones((2, 5, 32), np.float32), heed.AttentionLayer(32, 4)
    assert layer(x[:, :0], x, document=[0] * 5, query_document=[]).shape == (2, 0, 32)
    q, k = np.ones((2, 4, 0, 16), np.float32), np.ones((2, 4, 5, 16), np.float32)
    for rows in ([], np.zeros((2, 0), np.int32)):
        assert heed.attention(q, k, k, document=[0] * 5, query_document=rows).shape == q.shape
    cache = heed.KvCache(batch=2, kv_heads=4, capacity=9, dim=16)
    cache.append(k, k)
    assert heed.attention(q, cache=cache, document=[0] * 5, query_document=[]).shape == q.shape
    assert heed.attention(k[:0], k[:0], k[:0], key_lengths=[], document=np.zeros((0, 5), int)).shape == (0, 4, 5, 16)


class Alone:
    """The messages of a rank that has no others."""

    rank, size = 0, 1


def test_no_batch_entries_and_no_queries_are_decoded_over_ranks():
    group = heed.distributed.Group(Alone())
    cache = heed.KvCache(batch=2, kv_heads=4, capacity=64, dim=16, page_size=16)
    q = np.ones((2, 4, 1, 16), np.float32)
    assert heed.distributed.decode(group, q[:, :, :0], cache, [0, 0]).shape == (2, 4, 0, 16)
    for sequences in ([], None):
        assert heed.distributed.decode(group, q[:0], cache, [], sequences=sequences).shape == (0, 4, 1, 16)
    with pytest.raises(heed.Error, match="lengths: 0 for q.batch: 2"):
        heed.distributed.decode(group, q, cache, [])
    with pytest.raises(heed.Error, match="sequences: none are given; one per batch entry is needed"):
        heed.distributed.decode(group, q, cache, [0, 0], sequences=[])
