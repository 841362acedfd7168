# SPDX-License-Identifier: Apache-2.0
"""Where PyTorch records a call, heed.torch refuses what it refuses without gradients, in the same words."""

import pytest

import heed

torch = pytest.importorskip("torch")

import heed.torch  # noqa: E402


def ones(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype)


K = ones(2, 6, 9, 8)
DROP_IN = {
    "q of one axis": ((8,), ones(9, 8), ones(9, 8), {}),
    "heads": ((2, 6, 5, 8), K[:, :2], K[:, :2], {}),
    "a batch": ((2, 6, 5, 8), ones(3, 6, 9, 8), K, {}),
    "shared heads, none": ((2, 6, 5, 8), K[:, :0], K[:, :2], {"enable_gqa": True}),
    "shared heads that do not divide": ((2, 6, 5, 8), K[:, :4], K[:, :3], {"enable_gqa": True}),
    "a mask of one axis": ((2, 6, 5, 8), K, K, {"attn_mask": ones(9)}),
    "a mask of five": ((2, 6, 5, 8), K, K, {"attn_mask": ones(1, 1, 1, 1, 9)}),
    "a mask's batch": ((2, 6, 5, 8), K, K, {"attn_mask": ones(3, 1, 5, 9)}),
    "a mask's heads": ((2, 6, 5, 8), K, K, {"attn_mask": ones(3, 1, 9)}),
    "a mask's queries": ((2, 6, 5, 8), K, K, {"attn_mask": ones(4, 9, dtype=torch.bool)}),
    "a mask's keys": ((2, 6, 5, 8), K, K, {"attn_mask": ones(5, 8)}),
    "a mask and is_causal": ((2, 6, 5, 8), K, K, {"attn_mask": ones(5, 9), "is_causal": True}),
    "is_causal": ((2, 6, 5, 8), K, K, {"is_causal": "no"}),
    "enable_gqa": ((2, 6, 5, 8), K, K, {"enable_gqa": "no"}),
}


def refusal(call):
    with pytest.raises(heed.Error) as refused:
        call()
    return type(refused.value), refused.value.code, str(refused.value)


@pytest.mark.parametrize("case", DROP_IN)
def test_the_drop_in_refuses_alike_with_gradients(case):
    shape, k, v, options = DROP_IN[case]
    said = [
        refusal(lambda q=ones(*shape).requires_grad_(recorded): heed.torch.scaled_dot_product_attention(q, k, v, **options))
        for recorded in (False, True)
    ]
    assert said[0] == said[1]


X, CONTEXT, VALUE = ones(2, 5, 16), ones(2, 3, 7), ones(2, 3, 5)
LAYER = {
    "x of one axis": ((X[0, 0], CONTEXT, VALUE), {}),
    "x of four": ((X[None], CONTEXT, VALUE), {}),
    "x's width": ((X[..., :9], CONTEXT, VALUE), {}),
    "no context": ((X,), {}),
    "no value": ((X, CONTEXT), {}),
    "a value and no context": ((X, None, VALUE), {}),
    "the context's axes": ((X, CONTEXT[0], VALUE), {}),
    "the context's batch": ((X, CONTEXT[:1], VALUE), {}),
    "the context's width": ((X, CONTEXT[..., :3], VALUE), {}),
    "the value's length": ((X, CONTEXT, VALUE[:, :2]), {}),
    "the value's width": ((X, CONTEXT, VALUE[..., :3]), {}),
    "positions without rotary": ((X, CONTEXT, VALUE), {"positions": [0, 1, 2, 3, 4]}),
    "return_weights": ((X, CONTEXT, VALUE), {"return_weights": "junk"}),
    "packed sequences": ((X, CONTEXT, VALUE), {"query_starts": [0, 5]}),
}


@pytest.mark.parametrize("case", LAYER)
def test_the_module_refuses_alike_with_gradients(case):
    inputs, options = LAYER[case]
    layer = heed.torch.AttentionLayer(16, 4, 2, key_dim=7, value_dim=5)
    said = []
    for recorded in (False, True):
        with torch.set_grad_enabled(recorded):
            said.append(refusal(lambda: layer(*inputs, **options)))
    assert said[0] == said[1]


@pytest.mark.parametrize("positions", [[0, 1, 2, 3], [[0, 1, 2, 3, 4]] * 3, []], ids=["too few", "of three", "none"])
def test_the_module_refuses_positions_alike_with_gradients(positions):
    layer, said = heed.torch.AttentionLayer(16, 4, rotary=heed.Rotary()), []
    for recorded in (False, True):
        with torch.set_grad_enabled(recorded):
            said.append(refusal(lambda: layer(X, positions=positions)))
    assert said[0] == said[1]


def test_a_dropout_that_is_said_to_the_module_is_refused_with_gradients_too():
    with pytest.raises(heed.KindError, match="^dropout: there is no such keyword argument"):
        heed.torch.AttentionLayer(16, 4)(X, dropout=0.5)


OPTIONS = {
    "two words": {"head_map": "tiled causal=True"},
    "the mark of a tensor": {"causal": "@"},
    "the mark of a tuple": {"causal": "starts:"},
    "a constant": {"causal": "True"},
    "a number": {"scale": "0.5"},
    "half a seed": {"dropout": 0.5, "seed": 1.5},
    "no lengths": {"key_lengths": []},
    "a tuple of words": {"window": ("starts", 1)},
}


@pytest.mark.parametrize("case", OPTIONS)
def test_attention_refuses_options_alike(case):
    q, options = ones(1, 2, 5, 8), OPTIONS[case]
    assert refusal(lambda: heed.torch.attention(q, q, q, **options)) == refusal(lambda: heed.attention(q, q, q, **options))


@pytest.mark.parametrize("options", [{"alibi": ([0.5, 0.25], "starts")}, {"document": ([0, 0, 1, 1, 1], "ends")}], ids=lambda o: next(iter(o)))
def test_attention_takes_lists_with_an_alignment(options):
    q = torch.randn(1, 2, 5, 8, generator=torch.Generator().manual_seed(1))
    assert torch.equal(heed.torch.attention(q, q, q, **options), heed.attention(q, q, q, **options))


X4, MODULE = ones(1, 2, 5, 8), heed.torch.AttentionLayer(8, 2)
CALLS = {
    "drop-in": lambda q: heed.torch.scaled_dot_product_attention(q, X4, X4),
    "attention": lambda q: heed.torch.attention(q, X4, X4),
    "module": lambda q: MODULE(q[0]),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_transforms_of_torch_func_are_refused_in_a_sentence(call):
    sentence = r"^heed: attention knows no transforms of torch\.func"
    with pytest.raises(RuntimeError, match=sentence):
        torch.func.vmap(call)(X4[None])
    with torch.no_grad(), pytest.raises(RuntimeError, match=sentence):
        torch.func.vmap(call)(X4[None])
    with pytest.raises(RuntimeError, match=sentence):
        torch.func.grad(lambda q: call(q).sum())(X4)


def test_many_gradients_of_packed_sequences_at_once_are_refused_in_a_sentence():
    q, starts = X4[:1].clone().requires_grad_(), torch.tensor([0, 1, X4.shape[2]])
    out = heed.torch.attention(q, q, q, query_starts=starts, key_starts=starts)
    with pytest.raises(RuntimeError, match="^heed: many gradients of packed sequences at once"):
        torch.autograd.grad(out, q, torch.ones(3, *out.shape), is_grads_batched=True)


@pytest.mark.parametrize("seed", [-1, 2**64, torch.tensor(-1), 1.5, "one"])
def test_a_seed_that_is_none_is_refused_alike_with_gradients(seed):
    layer = heed.torch.AttentionLayer(model_dim=16, heads=2, dropout=0.5)
    x = ones(2, 5, 16)

    def without_gradients():
        with torch.no_grad():
            layer(x, seed=seed)

    said = refusal(without_gradients)
    assert said[2].startswith("seed: ")
    assert refusal(lambda: layer(x, seed=seed)) == said
    q = ones(2, 2, 5, 8)
    assert refusal(lambda: heed.torch.attention(q.requires_grad_(), q, q, dropout=0.5, seed=seed)) == said
    layer.eval()
    assert refusal(without_gradients) == said
    assert refusal(lambda: layer(x, seed=seed)) == said
