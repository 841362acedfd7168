# SPDX-License-Identifier: Apache-2.0
"""heed.AttentionLayer from Python: projections, checkpoints of three naming schemes, dropout, refusals."""

import numpy as np
import pytest
import safetensors.numpy
import textbook
import torch

import heed

X, CONTEXT = textbook.random_arrays(21, (2, 5, 16), (2, 7, 16))


def split(array, heads):
    return array.reshape(*array.shape[:2], heads, -1).swapaxes(1, 2)


def by_hand(state, x, context=None, value=None, *, heads, kv_heads=None, **options):
    """(y, weights) of the layer with these W_q.weight, ..., in float64."""
    context = x if context is None else context
    value = context if value is None else value
    projected = []
    for name, source, count in (("q", x, heads), ("k", context, kv_heads or heads), ("v", value, kv_heads or heads)):
        y = source.astype(float) @ state[f"W_{name}.weight"].astype(float).T + state.get(f"W_{name}.bias", 0)
        projected.append(split(y, count))
    out, weights, _ = textbook.attention(*projected, **options)
    joined = out.swapaxes(1, 2).reshape(*x.shape[:2], -1)
    return joined @ state["W_o.weight"].astype(float).T + state.get("W_o.bias", 0), weights


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("bias", [False, True, "qkv"])
def test_the_layer_is_projections_around_attention(kv_heads, bias):
    layer = heed.AttentionLayer(16, 4, kv_heads, bias=bias, seed=3)
    state = layer.state_dict()
    for n, name in enumerate(sorted(name for name in state if name.endswith("bias"))):
        state[name] = np.linspace(-1, 1, state[name].size, dtype=np.float32) * (n + 1)
    layer.load(state)
    y, weights = layer(X, causal=True, return_weights=True)
    expected = by_hand(state, X, heads=4, kv_heads=kv_heads, seen=np.tri(5, dtype=bool))
    assert len(state) == {False: 4, True: 8, "qkv": 7}[bias]
    assert textbook.misses(y, expected[0]) == 0 and textbook.misses(weights, expected[1]) == 0


def test_context_and_value_may_have_widths_of_their_own():
    layer = heed.AttentionLayer(16, 4, key_dim=12, value_dim=10, value_head_dim=3)
    context, value = textbook.random_arrays(22, (2, 7, 12), (2, 7, 10))
    expected = by_hand(layer.state_dict(), X, context, value, heads=4)[0]
    assert textbook.misses(layer(X, context, value), expected) == 0
    assert (layer.key_dim, layer.value_dim, layer.head_dim, layer.value_head_dim) == (12, 10, 4, 3)


def test_padding_and_averaged_weights():
    layer = heed.AttentionLayer(16, 4)
    seen = np.arange(7) < np.array([7, 3])[:, None, None, None]
    y, average = layer(X, CONTEXT, key_lengths=[7, 3], return_weights="average")
    expected = by_hand(layer.state_dict(), X, CONTEXT, heads=4, seen=seen)
    assert textbook.misses(y, expected[0]) == 0
    assert textbook.misses(average, expected[1].mean(axis=1)) == 0


def test_the_batch_may_be_left_out():
    layer = heed.AttentionLayer(16, 4)
    whole, entry = (layer(x, c, return_weights=True, return_lse=True) for x, c in ((X, CONTEXT), (X[1], CONTEXT[1])))
    assert [textbook.bits(a[1]) for a in whole] == [textbook.bits(a) for a in entry]
    assert [a.shape for a in entry] == [(5, 16), (4, 5, 7), (4, 5)]


def test_torch_in_torch_out_in_place_if_asked():
    layer, x = heed.AttentionLayer(16, 4), torch.from_numpy(X)
    out = torch.full((2, 5, 16), float("nan"))
    assert layer(x, out=out) is out
    assert textbook.bits(out) == textbook.bits(layer(X))
    assert layer(x.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("naming", ["paper", "torch", "llama"])
@pytest.mark.parametrize("form", ["dict", "torch", "file", "prefixed"])
def test_a_checkpoint_of_any_naming_gives_the_same_bits(naming, form, tmp_path):
    trained = heed.AttentionLayer(16, 4, bias=True, seed=9)
    state, prefix = trained.state_dict(naming), ""
    if form == "torch":
        state = {name: torch.nn.Parameter(torch.from_numpy(array)) for name, array in state.items()}
    elif form == "file":
        safetensors.numpy.save_file(state, tmp_path / "layer.safetensors")
        state = tmp_path / "layer.safetensors"
    elif form == "prefixed":
        prefix = "model.layers.0."
        state = {prefix + name: array for name, array in state.items()} | {"model.norm.weight": np.ones(16)}
    layer = heed.AttentionLayer(16, 4, bias=True)
    assert textbook.bits(layer(X)) != textbook.bits(trained(X))
    layer.load(state, prefix) if prefix else layer.load(state)
    assert textbook.bits(layer(X)) == textbook.bits(trained(X))


def test_torch_multihead_attention_loads_as_it_is():
    torch.manual_seed(4)
    module = torch.nn.MultiheadAttention(16, 4, batch_first=True).double()
    layer = heed.AttentionLayer(16, 4, bias=True)
    layer.load(module.state_dict())
    expected, weights = module(*(torch.from_numpy(X).double(),) * 3)
    y, average = layer(X, return_weights="average")
    assert textbook.misses(y, expected.detach().numpy()) == 0
    assert textbook.misses(average, weights.detach().numpy()) == 0


def test_a_state_dict_is_a_copy_of_the_element_type_that_was_loaded():
    import ml_dtypes

    layer = heed.AttentionLayer(16, 4)
    layer.load({name: array.astype(ml_dtypes.bfloat16) for name, array in layer.state_dict().items()})
    state, before = layer.state_dict(), layer(X)
    assert {array.dtype for array in state.values()} == {np.dtype(ml_dtypes.bfloat16)}
    for array in state.values():
        array[:] = 0
    assert textbook.bits(layer(X)) == textbook.bits(before)


def test_rotary_turns_queries_and_keys_by_position():
    layer = heed.AttentionLayer(16, 2, rotary=heed.Rotary())
    plain = heed.AttentionLayer(16, 2)
    q, k, v = (split(X @ layer.state_dict()[f"W_{n}.weight"].T, 2) for n in "qkv")
    for positions in (None, [3, 4, 5, 6, 7], np.array([[0, 1, 2, 3, 4], [7, 8, 9, 10, 11]])):
        out = heed.attention(heed.rotate(q, positions), heed.rotate(k, positions), v, causal=True)
        expected = out.swapaxes(1, 2).reshape(2, 5, 16).astype(float) @ layer.state_dict()["W_o.weight"].T
        assert textbook.misses(layer(X, positions=positions, causal=True), expected) == 0
    assert textbook.bits(layer(X)) != textbook.bits(plain(X))


def test_dropout_belongs_to_training():
    layer = heed.AttentionLayer(16, 4, dropout=0.5)
    quiet = layer(X)
    assert not layer.training and layer.train() is layer and layer.training
    assert textbook.bits(layer(X, seed=1)) == textbook.bits(layer(X, seed=1)) != textbook.bits(layer(X, seed=2))
    assert textbook.bits(layer.eval()(X, seed=1)) == textbook.bits(quiet)
    layer.train()
    layer.load(layer.state_dict())
    assert layer.training and not layer.train(False).training


def test_the_seed_of_the_weights_is_the_one_given():
    states = [heed.AttentionLayer(16, 4, seed=seed).state_dict()["W_q.weight"] for seed in (1, 1, 2)]
    assert np.array_equal(states[0], states[1]) and not np.array_equal(states[0], states[2])


STATE = heed.AttentionLayer(16, 4).state_dict()
REFUSED = {
    "heads that do not divide": (lambda: heed.AttentionLayer(16, 5), ValueError, "heads: 5 does not divide model_dim: 16"),
    "kv_heads that do not divide": (lambda: heed.AttentionLayer(16, 4, 3), ValueError, "kv_heads: 3"),
    "a bias of words": (lambda: heed.AttentionLayer(16, 4, bias="q"), TypeError, "bias: str is not True or False"),
    "dropout of 1": (lambda: heed.AttentionLayer(16, 4, dropout=1.0), ValueError, r"^dropout: 1 is not in \[0, 1\)"),
    "an odd rotary": (lambda: heed.AttentionLayer(15, 5, rotary=heed.Rotary()), ValueError, "dims: 3"),
    "rotary pairs": (lambda: heed.Rotary(pairs="odd"), ValueError, 'pairs: "odd" is none of "halves", "adjacent"'),
    "a head map": (lambda: heed.AttentionLayer(16, 4, head_map="x"), ValueError, 'head_map: "x" is none of'),
    "a naming": (lambda: heed.AttentionLayer(16, 4).state_dict("x"), ValueError, 'naming: "x" is none of'),
    "a wide x": (lambda: heed.AttentionLayer(16, 4)(X[..., :8]), ValueError, "x.dim: 8 is not model_dim: 16"),
    "x of rank 4": (lambda: heed.AttentionLayer(16, 4)(X[None]), ValueError, "x.shape: .* has 4 axes"),
    "x of float64": (lambda: heed.AttentionLayer(16, 4)(X.astype(float)), TypeError, "x.dtype: float64"),
    "dropout per call": (lambda: heed.AttentionLayer(16, 4)(X, dropout=0.1), TypeError, "dropout: there is no such"),
    "positions without rotary": (lambda: heed.AttentionLayer(16, 4)(X, positions=[0] * 5), ValueError, "positions"),
    "an out that is x": (lambda: heed.AttentionLayer(16, 4)(X, out=X), ValueError, "out: shares memory with x"),
    "no checkpoint": (lambda: heed.AttentionLayer(16, 4).load(3), TypeError, "weights: int is not a dict of arrays"),
    "no such file": (lambda: heed.AttentionLayer(16, 4).load("/no/such/file"), ValueError, "/no/such/file"),
    "a file name that is not UTF-8": (lambda: heed.AttentionLayer(16, 4).load(b"/no/\x80"), ValueError, "/no/\ufffd"),
    "an empty dict": (lambda: heed.AttentionLayer(16, 4).load({}), ValueError, "no W_q.weight, in_proj_weight"),
    "no array": (lambda: heed.AttentionLayer(16, 4).load({"W_q.weight": 1}), TypeError, "W_q.weight: int is not an array"),
    "another width": (lambda: heed.AttentionLayer(8, 4).load(STATE), ValueError, "w_q|W_q"),
    "a bias too many": (
        lambda: heed.AttentionLayer(16, 4).load(heed.AttentionLayer(16, 4, bias=True).state_dict()),
        ValueError,
        "q's bias: in the checkpoint, but the layer was made without it",
    ),
    "a bias too few": (lambda: heed.AttentionLayer(16, 4, bias=True).load(STATE), ValueError, "q's bias: not in the"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_layer_refuses_with_a_sentence(name):
    call, kind, sentence = REFUSED[name]
    with pytest.raises(kind, match=sentence):
        call()


def test_a_refused_checkpoint_changes_nothing():
    layer = heed.AttentionLayer(16, 4, seed=5)
    before = layer(X)
    with pytest.raises(heed.Error):
        layer.load(STATE | {"W_v.weight": np.ones((3, 3), np.float32)})
    assert textbook.bits(layer(X)) == textbook.bits(before)
