# SPDX-License-Identifier: Apache-2.0
"""heed in the place of PyTorch's own attention: unmodified programs, what falls back, and packed sequences."""

import logging
import math

import pytest

torch = pytest.importorskip("torch")

from torch.nn.attention.varlen import AuxRequest  # noqa: E402

import heed  # noqa: E402
import heed.torch  # noqa: E402
from heed import _torch_activation, _torch_operators  # noqa: E402

F = torch.nn.functional
PYTORCHS = F.scaled_dot_product_attention
PYTORCHS_LAYER = F.multi_head_attention_forward


def draw(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


Q, K, V = draw(2, 4, 5, 8), draw(2, 4, 7, 8, seed=1), draw(2, 4, 7, 8, seed=2)


@pytest.fixture(autouse=True)
def inactive_afterwards():
    yield
    heed.torch.deactivate()
    assert F.scaled_dot_product_attention is PYTORCHS and F.multi_head_attention_forward is PYTORCHS_LAYER


def bits_of_heed(q, k, v, **keywords):
    return heed.torch.scaled_dot_product_attention(q, k, v, **keywords)


def test_activation_replaces_and_gives_back_and_may_be_said_twice():
    heed.torch.deactivate()
    for _ in range(2):
        heed.torch.activate()
    assert F.scaled_dot_product_attention is not PYTORCHS and not torch.backends.mha.get_fastpath_enabled()
    for _ in range(2):
        heed.torch.deactivate()
    assert F.scaled_dot_product_attention is PYTORCHS and torch.backends.mha.get_fastpath_enabled()


def test_a_fast_path_that_was_off_stays_off():
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with heed.torch.activated():
            pass
        assert not torch.backends.mha.get_fastpath_enabled()
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def test_the_context_ends_with_it_also_by_an_exception_and_only_the_outer_one():
    with heed.torch.activated():
        with heed.torch.activated():
            pass
        assert F.scaled_dot_product_attention is not PYTORCHS
    with pytest.raises(KeyError):
        with heed.torch.activated():
            raise KeyError
    assert F.scaled_dot_product_attention is PYTORCHS


def test_overlapping_with_statements_of_two_threads_keep_heed_until_the_last_ends():
    first, second = heed.torch.activated(), heed.torch.activated()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert F.scaled_dot_product_attention is not PYTORCHS
    heed.torch.deactivate()  # which is not about with statements
    assert F.scaled_dot_product_attention is not PYTORCHS
    second.__exit__(None, None, None)
    assert F.scaled_dot_product_attention is PYTORCHS


def test_what_takes_heeds_place_by_its_name_takes_it():
    with heed.torch.activated():
        heeds = F.scaled_dot_product_attention
        for attribute in ("__name__", "__qualname__", "__module__", "__doc__"):
            assert getattr(heeds, attribute) == getattr(PYTORCHS, attribute)
        assert F.multi_head_attention_forward.__name__ == PYTORCHS_LAYER.__name__
        assert torch.equal(torch.jit.script(heeds)(Q, K, V), PYTORCHS(Q, K, V))


def counting(function, calls):
    return lambda *arguments, **keywords: calls.append(1) or function(*arguments, **keywords)


def test_a_patch_that_was_there_before_comes_back(monkeypatch):
    calls = []
    patch = counting(PYTORCHS, calls)
    monkeypatch.setattr(F, "scaled_dot_product_attention", patch)
    for _ in range(2):
        with heed.torch.activated():
            assert torch.equal(F.scaled_dot_product_attention(Q, K, V), bits_of_heed(Q, K, V)) and not calls
        assert F.scaled_dot_product_attention is patch


def test_a_patch_over_heeds_stays_and_calls_pytorchs_when_heed_has_left(monkeypatch):
    calls, asked = [], []
    of_heed = _torch_activation._by_heed_or_pytorch
    monkeypatch.setattr(_torch_activation, "_by_heed_or_pytorch", lambda *a: asked.append(1) or of_heed(*a))
    heed.torch.activate()
    heeds, heeds_layer = F.scaled_dot_product_attention, F.multi_head_attention_forward
    patch = F.scaled_dot_product_attention = counting(heeds, calls)
    try:
        for n in (1, 2):  # heed leaves, and comes again beneath the patch
            F.scaled_dot_product_attention(Q, K, V)
            assert len(calls) == 2 * n - 1 and len(asked) == n
            heed.torch.deactivate()
            assert F.scaled_dot_product_attention is patch and F.multi_head_attention_forward is PYTORCHS_LAYER
            assert torch.equal(F.scaled_dot_product_attention(Q, K, V), PYTORCHS(Q, K, V))
            assert len(calls) == 2 * n and len(asked) == n
            heed.torch.activate()
        heed.torch.deactivate()
        F.scaled_dot_product_attention = heeds  # the patch gives back what it found
        assert torch.equal(F.scaled_dot_product_attention(Q, K, V), PYTORCHS(Q, K, V)) and len(asked) == 2
        x = draw(5, 2, 16)
        parameters = torch.nn.MultiheadAttention(16, 2)
        with torch.no_grad():
            arguments = (x, x, x, 16, 2, parameters.in_proj_weight, parameters.in_proj_bias, None, None, False, 0.0,
                         parameters.out_proj.weight, parameters.out_proj.bias)  # fmt: skip
            assert torch.equal(heeds_layer(*arguments)[0], PYTORCHS_LAYER(*arguments)[0]) and len(asked) == 2
        with heed.torch.activated():
            F.scaled_dot_product_attention(Q, K, V)
        assert F.scaled_dot_product_attention is PYTORCHS and len(asked) == 3
    finally:
        F.scaled_dot_product_attention = PYTORCHS


def test_a_patch_of_heeds_function_that_heed_is_laid_over_does_not_call_itself():
    with heed.torch.activated():
        heeds = F.scaled_dot_product_attention
    patch = F.scaled_dot_product_attention = counting(heeds, [])
    try:
        with heed.torch.activated():
            assert torch.equal(F.scaled_dot_product_attention(Q, K, V), bits_of_heed(Q, K, V))
        assert F.scaled_dot_product_attention is patch
        assert torch.equal(F.scaled_dot_product_attention(Q, K, V), PYTORCHS(Q, K, V))
    finally:
        F.scaled_dot_product_attention = PYTORCHS


@pytest.mark.parametrize(
    "keywords",
    [
        {},
        {"is_causal": True},
        {"scale": 0.3},
        {"attn_mask": draw(5, 7, seed=3) > 0},
        {"attn_mask": draw(2, 1, 5, 7, seed=3)},
        {"attn_mask": torch.nn.attention.bias.causal_lower_right(5, 7)},
    ],
    ids=["plain", "causal", "scale", "keep", "bias", "lower_right"],
)
@pytest.mark.parametrize("records", [False, True], ids=["no_grad", "autograd"])
def test_the_functional_call_has_the_bits_of_heed(keywords, records):
    q = Q.clone().requires_grad_(records)
    with heed.torch.activated():
        out = F.scaled_dot_product_attention(q, K, V, **keywords)
    assert torch.equal(out, bits_of_heed(Q, K, V, **keywords))
    assert out.requires_grad == records
    if records:
        (ours,) = torch.autograd.grad(out.square().sum(), q)
        (theirs,) = torch.autograd.grad(PYTORCHS(q, K, V, **keywords).square().sum(), q)
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mask", ["none", "padding", "float", "causal"])
@pytest.mark.parametrize("batched", [True, False], ids=["batched", "one_sentence"])
@pytest.mark.parametrize("asks", ["average", "per_head", "nothing"])
@pytest.mark.parametrize("records", [False, True], ids=["no_grad", "autograd"])
def test_multihead_attention_agrees_with_pytorchs(dtype, mask, batched, asks, records):
    torch.manual_seed(5)
    module = torch.nn.MultiheadAttention(16, 4, batch_first=batched).to(dtype).eval()
    x = draw(2, 5, 16, dtype=dtype) if batched else draw(5, 16, dtype=dtype)
    keywords = {"need_weights": asks != "nothing", "average_attn_weights": asks != "per_head"}
    if mask == "padding":
        hidden = torch.zeros(2, 5, dtype=torch.bool)
        hidden[-1, 3:] = True
        keywords["key_padding_mask"] = hidden if batched else hidden[-1]
    elif mask == "float":
        keywords["attn_mask"] = draw(5, 5, seed=9, dtype=dtype)
    elif mask == "causal":
        keywords |= {"attn_mask": torch.triu(torch.full((5, 5), -math.inf), 1).to(dtype), "is_causal": True}
    with torch.set_grad_enabled(records):
        expected, expected_weights = module(x, x, x, **keywords)
        with heed.torch.activated():
            out, weights = module(x, x, x, **keywords)
    near = {"rtol": 1e-4, "atol": 1e-5} if dtype is torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    assert out.shape == expected.shape and torch.allclose(out, expected, **near)
    assert (weights is None) == (asks == "nothing")
    if weights is not None:
        assert weights.shape == expected_weights.shape and weights.dtype == dtype and torch.allclose(weights, expected_weights, **near)
    if records and dtype is torch.float32:
        made = [out.square().sum() + (0 if weights is None else weights.square().sum())]
        wanted = [expected.square().sum() + (0 if weights is None else expected_weights.square().sum())]
        parameters = list(module.parameters())
        for ours, theirs in zip(torch.autograd.grad(made, parameters), torch.autograd.grad(wanted, parameters), strict=True):
            assert torch.allclose(ours, theirs, rtol=1e-3, atol=1e-4)


def test_weights_of_multihead_attention_are_those_that_were_multiplied_under_dropout():
    torch.manual_seed(6)
    module = torch.nn.MultiheadAttention(16, 4, dropout=0.5, batch_first=True).train()
    x = draw(2, 9, 16)
    with torch.no_grad(), heed.torch.activated():
        out, weights = module(x, x, x, average_attn_weights=False)
    assert 0.2 < (weights == 0).float().mean() < 0.8
    v = F.linear(x, module.in_proj_weight[32:], module.in_proj_bias[32:]).unflatten(-1, (4, 4)).transpose(1, 2)
    assert torch.allclose(out, module.out_proj((weights @ v).transpose(1, 2).flatten(2)), rtol=1e-4, atol=1e-5)


def test_an_encoder_layer_in_inference_goes_through_heed(monkeypatch):
    torch.manual_seed(7)
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()
    x = draw(2, 5, 16)
    calls = []
    attend = _torch_operators.attend_plainly
    monkeypatch.setattr(_torch_operators, "attend_plainly", lambda *a: calls.append(a) or attend(*a))
    with torch.no_grad():
        expected = layer(x)
        with heed.torch.activated():
            out = layer(x)
    assert len(calls) == 1 and torch.allclose(out, expected, rtol=1e-4, atol=1e-5)


def nested():
    return torch.nested.nested_tensor([draw(4, 3, 8), draw(4, 6, 8)])


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        (lambda: [nested()] * 3, "query: heed does not compute with a nested tensor"),
    ],
    ids=["nested"],
)
def test_what_heed_refuses_is_computed_by_pytorch_and_logged_once(tensors, reason, caplog, monkeypatch):
    monkeypatch.setattr(_torch_activation, "_reasons_logged", set())
    given = tensors()
    with caplog.at_level(logging.WARNING, "heed.torch"), heed.torch.activated():
        found = [F.scaled_dot_product_attention(*given) for _ in range(3)][-1]
    expected = PYTORCHS(*given)
    assert all(torch.equal(a, b) for a, b in zip(found.unbind(), expected.unbind(), strict=True))
    assert [record.getMessage() for record in caplog.records] == [f"computed by PyTorch: {reason}"]


@pytest.mark.filterwarnings("ignore")
def test_modules_take_nested_tensors_where_the_fast_path_is_on_again():
    encoder = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2).eval()
    x = torch.nested.nested_tensor([draw(3, 16), draw(6, 16)])
    with torch.no_grad():
        expected = encoder(x)
        with heed.torch.activated():
            with pytest.raises(AssertionError, match="get_fastpath_enabled"):
                encoder(x)
            torch.backends.mha.set_fastpath_enabled(True)
            found = encoder(x)
    assert all(torch.equal(a, b) for a, b in zip(found.unbind(), expected.unbind(), strict=True))


def test_multihead_attention_in_float64_is_pytorchs():
    torch.manual_seed(8)
    module = torch.nn.MultiheadAttention(16, 4).double().eval()
    x = draw(5, 2, 16, dtype=torch.float64)
    expected = module(x, x, x)
    with heed.torch.activated():
        found = module(x, x, x)
    assert all((a - b).abs().max() < 1e-14 for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.3}, {"attn_mask": draw(5, 7).double()}], ids=str)
def test_gradcheck_passes_by_heed_and_gradgradcheck_is_refused(options):
    q, k, v = (x[:1, :2].double().requires_grad_() for x in (Q, K, V))

    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, **options)

    with heed.torch.activated():
        assert "Heed" in type(attend(q, k, v).grad_fn).__name__ or "heed" in str(attend(q, k, v).grad_fn).lower()
        assert torch.autograd.gradcheck(attend, (q, k, v))
        with pytest.raises(RuntimeError, match="gradient of a gradient"):
            torch.autograd.gradgradcheck(attend, (q, k, v))


def test_transforms_of_torch_func_are_pytorchs():
    with heed.torch.activated():
        found = torch.func.vmap(F.scaled_dot_product_attention)(Q, K, V)
        gradient = torch.func.grad(lambda q: F.scaled_dot_product_attention(q, K, V).sum())(Q)
    assert torch.allclose(found, PYTORCHS(Q, K, V), atol=1e-5) and gradient.shape == Q.shape


@pytest.mark.parametrize("change", [{"key": K[..., :4]}, {"attn_mask": torch.zeros(3, 3)}])
def test_bad_input_raises_what_pytorch_raises_and_logs_nothing(change, caplog):
    arguments = {"query": Q, "key": K, "value": V} | change
    with pytest.raises(RuntimeError) as theirs:
        PYTORCHS(**arguments)
    with heed.torch.activated(), pytest.raises(RuntimeError) as ours:
        F.scaled_dot_product_attention(**arguments)
    assert str(ours.value) == str(theirs.value) and not caplog.records


class Tagged(torch.Tensor):
    """By PyTorch's own protocol: what is made of it is one, too."""


def test_subclasses_are_handed_pytorchs_own_function():
    with heed.torch.activated():
        out = F.scaled_dot_product_attention(Q.as_subclass(Tagged), K, V)
    assert type(out) is Tagged and torch.equal(out.as_subclass(torch.Tensor), PYTORCHS(Q, K, V))


def test_a_default_device_does_not_keep_heed_away():
    with torch.device("cpu"), heed.torch.activated():
        assert torch.equal(F.scaled_dot_product_attention(Q, K, V), bits_of_heed(Q, K, V))


@pytest.mark.parametrize("needs_weights", [True, False])
def test_compiled_and_scripted_modules_agree(needs_weights):
    torch.manual_seed(9)
    module = torch.nn.MultiheadAttention(16, 4, batch_first=True)
    x = draw(2, 5, 16)

    class Model(torch.nn.Module):
        def __init__(self, needs_weights: bool):
            super().__init__()
            self.attention = module
            self.needs_weights = needs_weights

        def forward(self, x):
            return self.attention(x, x, x, need_weights=self.needs_weights)[0]

    model = Model(needs_weights)
    expected = model(x)
    with heed.torch.activated():
        for made in (torch.compile(model, fullgraph=True, backend="aot_eager"), torch.jit.script(model)):
            out = made(x)
            assert torch.allclose(out, expected, rtol=1e-4, atol=1e-5)
            out.sum().backward()


LENGTHS, KEY_LENGTHS = [3, 0, 5], [4, 2, 5]


def starts(lengths):
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32)


def one_by_one(q, k, v, **options):
    """Every sequence by itself."""
    of_q, of_k = starts(LENGTHS).tolist(), starts(KEY_LENGTHS).tolist()
    parts = []
    for n in range(len(LENGTHS)):
        rows = (x[a:b] for x, (a, b) in zip((q, k, v), (of_q[n : n + 2], of_k[n : n + 2], of_k[n : n + 2]), strict=True))
        parts.append(heed.torch.attention(*rows, layout="bshd", **options))
    return torch.cat(parts)


@pytest.mark.parametrize(
    ("window_size", "options"),
    [((-1, -1), {}), ((-1, 0), {"causal": "ends"}), ((2, 0), {"window": (2, 0, "ends")}), ((1, 1), {"window": (1, 1, "ends")})],
)
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_packed_sequences_have_the_bits_of_each_alone(window_size, options, kv_heads):
    q, k, v = draw(8, 4, 8), draw(11, kv_heads, 8, seed=1), draw(11, kv_heads, 8, seed=2)
    q.requires_grad_()
    out, lse = heed.torch.varlen_attn(
        q, k, v, starts(LENGTHS), starts(KEY_LENGTHS), 5, 5,
        window_size=window_size, enable_gqa=kv_heads != 4, return_aux=AuxRequest(lse=True),
    )  # fmt: skip
    assert lse.shape == (4, 8)
    expected = one_by_one(q, k, v, **options)
    assert torch.equal(out, expected)
    assert torch.equal(*(torch.autograd.grad(x.square().sum(), q)[0] for x in (out, expected)))


def test_used_keys_and_pages_are_read_alike():
    q, k, v = draw(3, 4, 8), draw(11, 4, 8, seed=1), draw(11, 4, 8, seed=2)
    used = torch.tensor([3, 5], dtype=torch.int32)
    of_q, of_k = starts([1, 2]), starts([4, 7])
    out = heed.torch.varlen_attn(q, k, v, of_q, of_k, 2, 7, window_size=(-1, 0), seqused_k=used)
    kept = torch.tensor([0, 1, 2, 4, 5, 6, 7, 8])
    expected = heed.torch.varlen_attn(q, k[kept], v[kept], of_q, starts([3, 5]), 2, 5, window_size=(-1, 0))
    assert torch.equal(out, expected)
    table = torch.tensor([[5, 1, 0], [2, 4, 3]], dtype=torch.int32)
    pages = [torch.full((6, 2, 4, 8), math.nan) for _ in range(2)]
    for pool, rows in zip(pages, (k[kept], v[kept]), strict=True):
        for n, (first, count) in enumerate([(0, 3), (3, 5)]):
            for i in range(count):
                pool[table[n, i // 2], i % 2] = rows[first + i]
    paged = heed.torch.varlen_attn(q, *pages, of_q, None, 2, 5, window_size=(-1, 0), seqused_k=used, block_table=table)
    assert torch.equal(paged, expected)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"key": draw(11, 2, 8)}, "^key.heads: 2 is not query.heads: 4; say enable_gqa=True"),
        ({"block_table": torch.zeros(3, 1, dtype=torch.int32)}, "^seqused_k: None, but block_table is given"),
        ({"cu_seq_k": None, "seqused_k": torch.tensor([1, 1, 1])}, "^cu_seq_k: None, but block_table is not given"),
    ],
)
def test_packed_sequences_are_refused_by_name(change, sentence):
    arguments = {"query": draw(8, 4, 8), "key": draw(11, 4, 8), "value": draw(11, 4, 8), "cu_seq_q": starts(LENGTHS),
                 "cu_seq_k": starts(KEY_LENGTHS), "max_q": 5, "max_k": 5}  # fmt: skip
    with pytest.raises(heed.Error, match=sentence):
        heed.torch.varlen_attn(**arguments | change)
