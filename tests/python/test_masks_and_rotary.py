# SPDX-License-Identifier: Apache-2.0
"""Mask builders and rotary embedding from Python."""

import numpy as np
import pytest
import textbook
import torch

import heed

TOKENS = np.array([[5, 8, 2, 0, 0], [7, 0, 0, 0, 0]])


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.uint64])
def test_padding_is_true_where_a_token_is_the_pad(kind):
    mask = heed.padding_mask(TOKENS.astype(kind))
    assert mask.shape == (2, 1, 1, 5) and mask.dtype == bool
    assert np.array_equal(mask[:, 0, 0], TOKENS == 0)


def test_masks_are_of_the_tokens_library():
    mask, lengths = heed.padding_mask(torch.from_numpy(TOKENS)), heed.key_lengths(torch.from_numpy(TOKENS))
    assert mask.dtype == torch.bool and tuple(mask.shape) == (2, 1, 1, 5)
    assert lengths.dtype == torch.int32 and lengths.tolist() == [3, 1]


def test_another_pad_and_one_sentence():
    assert np.array_equal(heed.padding_mask(TOKENS[0], pad_id=8)[0, 0, 0], TOKENS[0] == 8)
    assert heed.key_lengths([4, 4, 9, 9], pad_id=9).tolist() == [2]


@pytest.mark.parametrize("make", [np.zeros, torch.zeros], ids=["numpy", "torch"])
@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0, 0)])
def test_a_mask_of_no_tokens_has_the_shape_of_its_tokens(shape, make):
    tokens = make(shape, dtype=np.int64 if make is np.zeros else torch.int64)
    mask = heed.padding_mask(tokens)
    assert tuple(mask.shape) == (shape[0], 1, 1, shape[1])
    assert tuple(heed.combine(mask, heed.look_ahead_mask(shape[1])).shape) == (shape[0], 1, shape[1], shape[1])
    assert tuple(heed.key_lengths(tokens).shape) == shape[:1]


@pytest.mark.parametrize(("tokens", "shape"), [([], (1, 1, 1, 0)), ([[], []], (2, 1, 1, 0)), (range(0), (1, 1, 1, 0))])
def test_an_empty_list_holds_no_tokens(tokens, shape):
    assert heed.padding_mask(tokens).shape == shape


def test_look_ahead_hides_what_is_above_the_diagonal():
    assert np.array_equal(heed.look_ahead_mask(4)[0, 0], ~np.tri(4, dtype=bool))
    assert heed.look_ahead_mask(0).shape == (1, 1, 0, 0)


def test_combined_masks_hide_what_either_hides_and_attention_takes_them():
    hidden = heed.combine(heed.padding_mask(TOKENS), heed.look_ahead_mask(5))
    assert np.array_equal(hidden, heed.padding_mask(TOKENS) | heed.look_ahead_mask(5))
    q, k, v = textbook.random_arrays(31, (2, 3, 5, 8), (2, 3, 5, 8), (2, 3, 5, 8))
    lengths = heed.key_lengths(TOKENS)
    assert textbook.bits(heed.attention(q, k, v, hide=hidden)) == textbook.bits(
        heed.attention(q, k, v, causal=True, key_lengths=lengths)
    )


def turned(x, positions, base=10000.0, dims=None, pairs="halves"):
    """Rotary embedding by complex numbers, in float64; x is (..., length, dim)."""
    x = x.astype(np.float64).copy()
    dims = dims or x.shape[-1]
    angles = np.asarray(positions)[..., None] * base ** (-np.arange(0, dims, 2) / dims)
    first, second = (slice(0, dims // 2), slice(dims // 2, dims))
    if pairs == "adjacent":
        first, second = slice(0, dims, 2), slice(1, dims, 2)
    pair = (x[..., first] + 1j * x[..., second]) * np.exp(1j * angles)
    x[..., first], x[..., second] = pair.real, pair.imag
    return x


@pytest.mark.parametrize("shape", [(5, 8), (3, 5, 8), (2, 3, 5, 8)])
@pytest.mark.parametrize("pairs", ["halves", "adjacent"])
@pytest.mark.parametrize("dims", [None, 4])
def test_rotate_turns_pairs_by_their_position(shape, pairs, dims):
    (x,) = textbook.random_arrays(32, shape)
    before = x.copy()
    rotary = heed.Rotary(base=500.0, dims=dims, pairs=pairs)
    positions = [9, 0, 4, 4, 100]
    expected = turned(x, positions, base=500.0, dims=dims, pairs=pairs)
    assert textbook.misses(heed.rotate(x, positions, rotary), expected) == 0
    assert np.array_equal(x, before)


def test_positions_count_from_zero_or_differ_per_batch_entry():
    (x,) = textbook.random_arrays(33, (2, 3, 5, 8))
    assert textbook.misses(heed.rotate(x), turned(x, np.arange(5))) == 0
    positions = np.array([[0, 1, 2, 3, 4], [7, 8, 9, 10, 11]])
    assert textbook.misses(heed.rotate(x, positions), turned(x, positions[:, None])) == 0


def test_rotating_in_place_and_into_a_strided_array():
    (x,) = textbook.random_arrays(34, (2, 3, 5, 8))
    expected = textbook.bits(heed.rotate(x))
    out = np.empty((2, 5, 3, 8), np.float32).swapaxes(1, 2)
    assert heed.rotate(x, out=out) is out and textbook.bits(out) == expected
    overlapping = np.concatenate([x.reshape(-1), np.zeros(3, np.float32)])
    shifted = overlapping[3:].reshape(x.shape)
    heed.rotate(overlapping[:-3].reshape(x.shape), out=shifted)
    assert textbook.bits(shifted) == expected
    tensor = torch.from_numpy(x)
    assert heed.rotate(tensor, out=tensor) is tensor and textbook.bits(x) == expected


SCALINGS = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 64},
    "yarn": {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 16.0, "beta_slow": 2.0,
        "truncate": False, "attention_factor": 1.25,
    },
    "llama3": {
        "rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
    "longrope": {
        "rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 64,
        "short_factor": [1.0, 1.5], "long_factor": [2.0, 3.0],
    },
}  # fmt: skip


@pytest.mark.parametrize("name", SCALINGS)
def test_a_scaling_is_the_dict_it_was_made_from(name):
    rotary = heed.Rotary(scaling=SCALINGS[name])
    assert rotary.scaling == SCALINGS[name]
    assert eval(repr(rotary), {"Rotary": heed.Rotary}).scaling == SCALINGS[name]
    assert heed.AttentionLayer(8, 2, rotary=rotary).rotary.scaling == SCALINGS[name]


@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize("length", [64, 100])
def test_scaled_frequencies_are_those_of_transformers(name, length):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling = SCALINGS[name]
    config = LlamaConfig(
        hidden_size=4, num_attention_heads=1, max_position_embeddings=64 if name == "dynamic" else 256,
        rope_parameters={"rope_theta": 1000.0, **scaling},
    )  # fmt: skip
    frequencies, factor = ROPE_INIT_FUNCTIONS[name](config, seq_len=length)
    x = np.array([[1, 1, 0, 0]], np.float32)
    turned = heed.rotate(x, [1], heed.Rotary(1000.0, scaling=scaling), lengths=[length])[0]
    angles = frequencies.numpy()
    expected = factor * np.concatenate([np.cos(angles), np.sin(angles)])
    assert np.abs(turned - expected).max() < 1e-6


def test_no_scaling_has_two_spellings():
    assert heed.Rotary().scaling is None
    assert heed.Rotary(scaling={"rope_type": "default"}).scaling is None
    assert heed.Rotary(scaling={"type": "linear", "factor": 2}).scaling == {"rope_type": "linear", "factor": 2.0}


def test_a_cache_keeps_its_scaling_in_its_file(tmp_path):
    rotary = heed.Rotary(scaling=SCALINGS["longrope"])
    cache = heed.KvCache(1, 1, 100, 4, rotary=rotary)
    k, v = textbook.random_arrays(35, (1, 1, 70, 4), (1, 1, 70, 4))
    cache.append(k, v)
    cache.save(tmp_path / "cache")
    loaded = heed.KvCache.load(tmp_path / "cache")
    assert textbook.bits(loaded.read(0)[0]) == textbook.bits(cache.read(0)[0])
    assert np.abs(cache.read(0)[0] - heed.rotate(k, rotary=rotary)).max() == 0


def scaled(**scaling):
    return lambda: heed.Rotary(scaling=scaling)


REFUSED = {
    "a scaling of words": (lambda: heed.Rotary(scaling="linear"), TypeError, "scaling: str is not a dict"),
    "a scaling of no kind": (scaled(factor=2.0), ValueError, r'scaling\["rope_type"\]: missing'),
    "a scaling of another kind": (scaled(rope_type="su"), ValueError, r'scaling\["rope_type"\]: "su" is none of "default", "linear"'),
    "a scaling without a factor": (scaled(rope_type="linear"), ValueError, r'scaling\["factor"\]: missing'),
    "a factor of words": (scaled(rope_type="linear", factor="2"), TypeError, r'scaling\["factor"\]: str is not a number'),
    "a scaling with too much": (
        scaled(rope_type="linear", factor=2.0, beta_fast=3.0),
        ValueError,
        r'scaling\["beta_fast"\]: linear scaling has no such number',
    ),
    "a base in the scaling": (
        scaled(rope_type="linear", factor=2.0, rope_theta=3.0),
        ValueError,
        r'scaling\["rope_theta"\]: linear scaling has no such number; say Rotary\'s base',
    ),
    "factors that are no list": (
        scaled(rope_type="longrope", original_max_position_embeddings=9, short_factor=1.0, long_factor=[1.0]),
        TypeError,
        r'scaling\["short_factor"\]: float is not a list of numbers',
    ),
    "a factor of zero": (
        lambda: heed.AttentionLayer(8, 2, rotary=heed.Rotary(scaling={"rope_type": "linear", "factor": 0.0})),
        ValueError,
        "rotary.scaling.factor: 0 is not a positive finite number",
    ),
    "a folder of no kind": (lambda: heed.AttentionLayer.from_pretrained(3, 0), TypeError, "folder: int is not the path of a folder"),
    "a layer of words": (lambda: heed.AttentionLayer.from_pretrained("m", "first"), TypeError, "layer: str is not an integer"),
    "a folder that is not there": (lambda: heed.AttentionLayer.from_pretrained("/nowhere", 0), heed.Error, "/nowhere: is not a folder"),
    "tokens of floats": (lambda: heed.padding_mask(np.ones(3)), TypeError, "tokens.dtype: float64 is no integer type"),
    "tokens of words": (lambda: heed.padding_mask("abc"), TypeError, "tokens: str is not an array"),
    "tokens of rank 3": (lambda: heed.padding_mask(TOKENS[None]), ValueError, "tokens: 3 axes are neither 1 nor 2"),
    "a pad of words": (lambda: heed.padding_mask(TOKENS, "x"), TypeError, "pad_id: str is not an integer"),
    "padding inside": (lambda: heed.key_lengths([1, 0, 1]), ValueError, "tokens"),
    "a negative size": (lambda: heed.look_ahead_mask(-1), ValueError, "size"),
    "a size without end": (lambda: heed.look_ahead_mask(2**70), ValueError, "size: the integer does not fit 64 bits"),
    "masks that do not fit": (
        lambda: heed.combine(heed.look_ahead_mask(3), heed.look_ahead_mask(4)),
        ValueError,
        "b.queries: 4 is neither a.queries: 3 nor 1",
    ),
    "masks of floats": (lambda: heed.combine(np.ones((2, 2)), np.ones((2, 2))), TypeError, "a.dtype: float64 is not bool"),
    "x of integers": (lambda: heed.rotate(np.ones((2, 4), int)), TypeError, "x.dtype: int64 is none of"),
    "x of rank 1": (lambda: heed.rotate(np.ones(4, np.float32)), ValueError, "x.shape"),
    "tokens beyond 63 bits": (
        lambda: heed.padding_mask(np.array([3, 2**63], np.uint64), -(2**63)),
        ValueError,
        "tokens: 9223372036854775808 does not fit 64 bits and a sign",
    ),
    "positions beyond 63 bits": (
        lambda: heed.rotate(np.ones((1, 4), np.float32), np.array([2**64 - 1], np.uint64)),
        ValueError,
        "positions: 18446744073709551615 does not fit",
    ),
    "a base that no float holds": (lambda: heed.Rotary(base=1e300), ValueError, r"base: 1e\+300 is not in float32's range"),
    "a base of words": (lambda: heed.Rotary(base="big"), TypeError, "base: str is not a number"),
    "an odd head": (lambda: heed.rotate(np.ones((2, 3), np.float32)), ValueError, "dims: 3"),
    "positions of another length": (lambda: heed.rotate(np.ones((2, 4), np.float32), [1]), ValueError, "positions: 1 entries"),
    "out of another shape": (
        lambda: heed.rotate(np.ones((2, 4), np.float32), out=np.ones((2, 2), np.float32)),
        ValueError,
        "out: its shape or dtype is not that of x",
    ),
    "threads of words": (lambda: heed.set_num_threads("two"), TypeError, "n: str is not an integer"),
    "no threads": (lambda: heed.set_num_threads(0), ValueError, "n: 0 is outside"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_argument_is_refused_with_a_sentence(name):
    call, kind, sentence = REFUSED[name]
    with pytest.raises(kind, match=sentence):
        call()


def test_a_refused_rotation_leaves_out_as_it_was():
    out = np.full((2, 3), 7.0, np.float32)
    with pytest.raises(heed.Error):
        heed.rotate(np.ones((2, 3), np.float32), out=out)
    assert np.all(out == 7.0)
