# SPDX-License-Identifier: Apache-2.0
"""Documents packed in one row, and ALiBi, from Python."""

import numpy as np
import pytest
import textbook
import torch

import heed

IDS = np.array([[1, 1, 1, 4, 4, 2, 2], [3, 3, 9, 9, 9, 9, 9]])
SLOPES = np.array([0.5, 0.25, 0.125, 0.0625], np.float32)


def arrays(queries=7, keys=7):
    return textbook.random_arrays(41, (2, 4, queries, 8), (2, 2, keys, 8), (2, 2, keys, 8))


def same(ids, query_ids=None):
    query_ids = ids if query_ids is None else query_ids
    return (query_ids[..., :, None] == ids[..., None, :])[..., None, :, :]


def distances(queries, keys, offset):
    return np.abs(np.arange(queries)[:, None] + offset - np.arange(keys))


@pytest.mark.parametrize("make", [lambda ids: ids, lambda ids: torch.from_numpy(ids), lambda ids: ids.tolist()])
def test_a_query_sees_its_own_document(make):
    q, k, v = arrays()
    assert not textbook.misses(heed.attention(q, k, v, document=make(IDS)), textbook.attention(q, k, v, seen=same(IDS))[0])
    causal = same(IDS[0]) & np.tri(7, dtype=bool)
    found = heed.attention(q, k, v, causal=True, document=make(IDS[0]))
    assert not textbook.misses(found, textbook.attention(q, k, v, seen=causal)[0])


def test_the_last_queries_are_of_the_documents_of_the_last_keys():
    q, k, v = arrays(queries=3)
    expected = textbook.attention(q, k, v, seen=same(IDS, IDS[:, 4:]))[0]
    for how in ({"document": (IDS, "ends")}, {"document": IDS, "query_document": IDS[:, 4:]}):
        assert not textbook.misses(heed.attention(q, k, v, **how), expected)
    with_causal = heed.attention(q, k, v, document=IDS, causal="ends")
    seen = same(IDS, IDS[:, 4:]) & np.tri(3, 7, 4, dtype=bool)
    assert not textbook.misses(with_causal, textbook.attention(q, k, v, seen=seen)[0])


def test_a_cache_counts_documents_by_its_tokens():
    q, k, v = arrays()
    cache = heed.KvCache(batch=2, kv_heads=2, capacity=7, dim=8)
    cache.append(k, v)
    whole = heed.attention(q, k, v, causal=True, document=IDS, alibi=SLOPES)
    last = heed.attention(q[:, :, 5:], cache=cache, causal=True, document=IDS, alibi=SLOPES)
    assert textbook.bits(last) == textbook.bits(whole[:, :, 5:])


@pytest.mark.parametrize("slopes", [SLOPES, torch.from_numpy(SLOPES).to(torch.bfloat16), SLOPES.tolist(), SLOPES[::-1][::-1]])
def test_alibi_is_the_bias_of_slopes_times_distances(slopes):
    q, k, v = arrays(queries=3)
    bias = -SLOPES[:, None, None] * distances(3, 7, 4).astype(np.float32)
    found = heed.attention(q, k, v, alibi=(slopes, "ends"))
    assert textbook.bits(found) == textbook.bits(heed.attention(q, k, v, bias=bias))
    shared = heed.attention(q, k, v, alibi=slopes, causal="ends")
    assert textbook.bits(shared) == textbook.bits(heed.attention(q, k, v, bias=bias, causal="ends"))


def test_slopes_of_each_batch_entry_give_the_bits_of_each_alone():
    q, k, v = arrays(queries=3)
    each = np.stack([SLOPES, SLOPES[::-1] * 3])
    found = heed.attention(q, k, v, alibi=(each, "ends"))
    for b in range(2):
        alone = heed.attention(q[b : b + 1], k[b : b + 1], v[b : b + 1], alibi=(each[b], "ends"))
        assert textbook.bits(found[b : b + 1]) == textbook.bits(alone)
    layer = heed.AttentionLayer(model_dim=16, heads=4, seed=1)
    (x,) = textbook.random_arrays(42, (2, 7, 16))
    assert textbook.bits(layer(x, alibi=each)[1:]) == textbook.bits(layer(x[1:], alibi=each[1]))


def test_the_layer_takes_both():
    layer = heed.AttentionLayer(model_dim=16, heads=4, seed=1)
    (x,) = textbook.random_arrays(42, (2, 7, 16))
    hidden = ~same(IDS)
    bias = -SLOPES[:, None, None] * distances(7, 7, 0).astype(np.float32)
    assert textbook.bits(layer(x, document=IDS, alibi=SLOPES)) == textbook.bits(layer(x, hide=hidden, bias=bias))


REFUSED = {
    "documents that could stand anywhere": (
        {"document": IDS},
        r'document: 3 queries, 7 keys; say \(ids, "ends"\) or \(ids, "starts"\), or query_document=',
    ),
    "slopes that could": ({"alibi": SLOPES}, r'alibi: 3 queries, 7 keys; say \(slopes, "ends"\) or \(slopes, "starts"\)'),
    "a number per batch entry": ({"document": (IDS.T, "ends")}, "document: 2 numbers a row for 7 keys"),
    "three rows": ({"document": (np.zeros((3, 7), int), "ends")}, "document mask: 21 ids are neither one per key: 7 nor"),
    "queries alone": ({"query_document": IDS[:, :3]}, "query_document: given, but document is not"),
    "a few of the queries": ({"document": IDS, "query_document": [1, 2]}, "query_document: 2 numbers a row for 3 queries"),
    "a number of more bits": ({"document": ([2**31] * 7, "ends")}, "document: 2147483648 is not in int32's range"),
    "a cube": ({"document": (np.zeros((1, 2, 7), int), "ends")}, "document: 3 axes are neither 1 nor 2"),
    "another end": ({"document": (IDS, "end")}, 'document align: "end" is none of "starts", "ends"'),
    "slopes of other heads": ({"alibi": (SLOPES[:3], "ends")}, "alibi: 3 slopes are neither one per head: 4 nor one per batch entry"),
    "a slope that is none": ({"alibi": ([1, 2, np.nan, 4], "ends")}, r"alibi.slopes\[2\]: nan is not a finite number"),
    "slopes in columns": ({"alibi": (np.ones((4, 2), np.float32), "ends")}, "alibi: 2 numbers a row for 4 heads"),
    "slopes of other entries": ({"alibi": (np.ones((3, 4), np.float32), "ends")}, "alibi: 12 slopes are neither one per head"),
    "slopes in a cube": ({"alibi": (np.ones((1, 2, 4), np.float32), "ends")}, "alibi.shape: .* has 3 axes, outside"),
    "ragged slopes": ({"alibi": ([[1], [2, 3]], "ends")}, "alibi: cannot be read"),
    "slopes of 64 bits": ({"alibi": (np.ones(4), "ends")}, "alibi.dtype: float64"),
    "flash attention's word": ({"alibi_slopes": SLOPES}, "alibi_slopes: there is no such keyword argument; say alibi="),
}


@pytest.mark.parametrize("name", REFUSED)
def test_mistakes_are_named(name):
    keywords, sentence = REFUSED[name]
    q, k, v = arrays(queries=3)
    with pytest.raises(heed.Error, match=sentence):
        heed.attention(q, k, v, **keywords)
