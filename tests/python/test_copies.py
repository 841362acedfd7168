# SPDX-License-Identifier: Apache-2.0
"""Caches and layers that are copied or pickled answer with the same bits, and go their own ways."""

import copy
import pickle

import numpy as np
import pytest
import textbook

import heed

WAYS = {
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "pickle": lambda original: pickle.loads(pickle.dumps(original)),
    "the oldest pickle": lambda original: pickle.loads(pickle.dumps(original, protocol=0)),
}
CACHES = {
    "contiguous": {},
    "pages": {"page_size": 16, "pages": 40},
    "int8": {"quantize": "int8", "page_size": 16},
    "a window": {"page_size": 16, "window": 20, "front": 3},
    "half": {"dtype": "float16", "value_dim": 24},
    "brain floats": {"dtype": "bfloat16"},
    "turned at append": {"rotary": heed.Rotary(base=500.0, dims=8)},
    "turned when read": {
        "rotary": heed.Rotary(scaling={"rope_type": "linear", "factor": 3.3}, pairs="adjacent"),
        "rotate_at": "read",
    },
}


def filled_cache(**options):
    """Three sequences of unlike lengths, one of them released, and a fork that shares pages."""
    cache = heed.KvCache(batch=4, kv_heads=2, capacity=200, dim=16, **({"pages": 64} if "page_size" in options else {}) | options)
    dims = cache.dim, cache.value_dim
    for n, counts in enumerate(([50, 33, 0, 7], [20, 1, 40, 0])):
        k, v = (textbook.random_arrays(70 + n, (4, 2, max(counts), dim))[0] for dim in dims)
        cache.append(k, v, counts)
    cache.release(1)
    cache.truncate(0, 65)
    if "page_size" in options:
        cache.fork(0)
    return cache


def answers(cache):
    """Everything a cache tells: its shape, its numbers, its bits."""
    told = [repr(cache), cache.lengths, cache.pages_in_use, cache.bytes, cache.device]
    for sequence, length in enumerate(cache.lengths):
        if length:
            (q,) = textbook.random_arrays(80, (1, 4, 1, 16))
            out = heed.attention(q, cache=cache, sequences=[sequence], causal=True)
            told += [out.tobytes(), *(array.tobytes() for array in cache.read(sequence, like=q))]
    return told


def grow(cache):
    k, v = (textbook.random_arrays(90, (1, 2, 30, dim))[0] for dim in (cache.dim, cache.value_dim))
    cache.append_to(0, k, v)
    cache.add()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", CACHES)
def test_a_copied_cache_has_the_same_bits_and_grows_by_itself(kind, way):
    cache = filled_cache(**CACHES[kind])
    before = answers(cache)
    copied = WAYS[way](cache)
    assert type(copied) is heed.KvCache and answers(copied) == before
    grow(copied)
    assert answers(cache) == before and answers(copied) != before
    grow(cache)
    assert answers(cache) == answers(copied)


def state_of(original):
    """What its pickle is made of."""
    restore, (kind, state, *rest), *_ = original.__reduce__()
    return lambda changes: restore(kind, {**state, **changes}, *rest)


def test_a_pickled_cache_that_was_changed_is_refused():
    restore = state_of(filled_cache(page_size=16))
    assert isinstance(restore({}), heed.KvCache)
    for changes in ({"lengths": np.array([65, -1, 40, 8, 65])}, {"config.dim": np.int64(8) + np.zeros((), np.int64)}, {"more": np.zeros(1)}):
        with pytest.raises(heed.Error, match="checksum does not match"):
            restore(changes)
    for changes in ({"pages": 3}, {"format": "1"}, {7: np.zeros(1)}):
        with pytest.raises(heed.KindError):
            restore(changes)


def test_a_pickle_names_no_other_class():
    restore, (_, *rest), *_ = heed.KvCache(batch=1, kv_heads=1, capacity=8, dim=8).__reduce__()
    for kind in (int, heed.AttentionLayer, "KvCache"):
        with pytest.raises(heed.KindError, match="is not heed.KvCache or a class made of it"):
            restore(kind, *rest)


class OwnCache(heed.KvCache):
    """Somebody's, with an attribute."""


class OwnLayer(heed.AttentionLayer):
    """Somebody's, with an attribute."""


@pytest.mark.parametrize("way", WAYS)
def test_a_class_of_ones_own_and_its_attributes_are_copied_too(way):
    for original in (OwnCache(batch=1, kv_heads=2, capacity=8, dim=16), OwnLayer(32, 4)):
        original.note = ["first"]
        copied = WAYS[way](original)
        assert type(copied) is type(original) and copied.note == ["first"]
        assert (copied.note is original.note) == (way == "copy")


def test_what_is_reached_twice_is_copied_once():
    cache = filled_cache()
    first, second = copy.deepcopy([cache, cache])
    assert first is second and first is not cache
    first, second = pickle.loads(pickle.dumps([cache, cache]))
    assert first is second


LAYERS = {
    "plain": lambda: heed.AttentionLayer(32, 4, seed=3),
    "grouped, biased, in training": lambda: heed.AttentionLayer(32, 4, 2, bias=True, dropout=0.25, seed=4).train(),
    "with odd widths": lambda: heed.AttentionLayer(32, 4, head_dim=6, value_head_dim=10, bias="qkv", seed=5),
    "rotary and tiled": lambda: heed.AttentionLayer(
        32, 4, 2, rotary=heed.Rotary(base=1234.5, dims=4, scaling={"rope_type": "linear", "factor": 1.7}), head_map="tiled", seed=6
    ),
    "half": lambda: of_halves(np.float16),
    "brain floats": lambda: of_halves(pytest.importorskip("ml_dtypes").bfloat16),
}


def of_halves(dtype):
    layer = heed.AttentionLayer(32, 4, seed=7)
    layer.load({name: array.astype(dtype) for name, array in layer.state_dict().items()})
    return layer


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", LAYERS)
def test_a_copied_layer_has_the_same_bits_and_is_trained_by_itself(kind, way):
    layer = LAYERS[kind]()
    copied = WAYS[way](layer)
    x = textbook.random_arrays(91, (2, 9, 32))[0].astype(layer.state_dict()["W_q.weight"].dtype)

    def answer(asked):
        return repr(asked), asked.training, asked.sliding_window, asked(x, causal=True, seed=5).tobytes()

    before = answer(layer)
    assert type(copied) is heed.AttentionLayer and answer(copied) == before
    copied.train(not copied.training)
    copied.load({name: np.zeros_like(array) for name, array in copied.state_dict().items()})
    assert answer(layer) == before and answer(copied) != before


def test_a_pickled_layer_that_was_changed_is_refused():
    layer = heed.AttentionLayer(32, 4)
    restore = state_of(layer)
    assert repr(restore({})) == repr(layer)
    refused = {
        "w_q.shape|W_q": {"weights": {name: array[:5] for name, array in layer.state_dict().items()}},
        "weights: int is not a dict of arrays": {"weights": 3},
        "heads: -4": {"heads": -4},
        "heads: str is not an integer": {"heads": "4"},
        "training: int is not True or False": {"training": 1},
        "dropout|drop": {"dropout": 2.0},
    }
    for sentence, changes in refused.items():
        with pytest.raises(heed.Error, match=sentence):
            restore(changes)
    kind, state = layer.__reduce__()[1]
    with pytest.raises(heed.Error, match='state: there is no "rotary"'):
        layer.__reduce__()[0](kind, {name: value for name, value in state.items() if name != "rotary"})


@pytest.mark.parametrize("way", WAYS)
def test_a_copied_rotary_turns_alike(way):
    scalings = [
        None,
        {"rope_type": "dynamic", "factor": 2.1, "original_max_position_embeddings": 4},
        {"rope_type": "longrope", "short_factor": [1.1] * 8, "long_factor": [3.3] * 8, "original_max_position_embeddings": 4, "factor": 2.0},
    ]
    (x,) = textbook.random_arrays(92, (1, 2, 9, 16))
    for scaling in scalings:
        rotary = heed.Rotary(base=4321.1, pairs="adjacent", scaling=scaling)
        copied = WAYS[way](rotary)
        assert repr(copied) == repr(rotary)
        assert heed.rotate(x, rotary=copied).tobytes() == heed.rotate(x, rotary=rotary).tobytes()
