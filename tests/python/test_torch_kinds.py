# SPDX-License-Identifier: Apache-2.0
"""Tensors that are not plain memory: understood, handed to PyTorch, or refused in heed's words with the kind's name."""

import itertools
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.nn.attention.bias import CausalVariant, causal_lower_right, causal_upper_left  # noqa: E402
from torch.testing._internal.two_tensor import TwoTensor  # noqa: E402

import heed  # noqa: E402
import heed.torch  # noqa: E402

F = torch.nn.functional
DROP_IN = heed.torch.scaled_dot_product_attention


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


Q, K, V = draw(1, 2, 5, 8), draw(1, 2, 7, 8, seed=1), draw(1, 2, 7, 8, seed=2)


def close(ours, theirs):
    return torch.allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("records", [False, True], ids=["no_grad", "autograd"])
@pytest.mark.parametrize("bias", [causal_upper_left, causal_lower_right])
def test_a_causal_bias_means_what_its_name_says(bias, records):
    with torch.set_grad_enabled(records):
        q = Q.clone().requires_grad_(records)
        assert close(DROP_IN(q, K, V, attn_mask=bias(5, 7)), F.scaled_dot_product_attention(q, K, V, attn_mask=bias(5, 7)))
    with pytest.raises(ValueError, match="CausalBias should not be used with causal=True"):
        DROP_IN(Q, K, V, attn_mask=bias(5, 7), is_causal=True)
    with pytest.raises(heed.KindError, match="^keep: .*CausalBias is the name of a mask"):
        heed.attention(Q, K, V, keep=bias(5, 7))


@pytest.mark.parametrize("size", [(5, 8), (9, 9)])
@pytest.mark.parametrize("bias", [causal_upper_left, causal_lower_right])
def test_a_causal_bias_of_other_lengths_is_refused(bias, size):
    sentence = f"attn_mask: a CausalBias of {size[0]} queries and {size[1]} keys, but query has 5 and key 7"
    for function in (DROP_IN, torch.compile(DROP_IN, backend="eager")):
        with pytest.raises(heed.Error, match=sentence):
            function(Q, K, V, attn_mask=bias(*size))
    if bias(*size).variant == CausalVariant.LOWER_RIGHT and size == (5, 8):
        with heed.torch.activated(), pytest.raises(RuntimeError, match="must match the size of tensor b"):
            F.scaled_dot_product_attention(Q, K, V, attn_mask=bias(*size))


class Tagged(torch.Tensor):
    """A subclass by PyTorch's own protocol: what is made of it is one, too."""


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("records", [False, True], ids=["no_grad", "autograd"])
def test_what_is_made_of_a_subclass_is_one(place, records):
    with torch.set_grad_enabled(records):
        tensors = [Q, K, V]
        tensors[place] = tensors[place].clone().as_subclass(Tagged)
        out = DROP_IN(*tensors)
        assert type(out) is Tagged and close(out.as_subclass(torch.Tensor), F.scaled_dot_product_attention(Q, K, V))
        out = heed.torch.attention(*tensors)
        assert type(out) is Tagged


def test_a_wrapper_subclass_is_asked_by_the_dispatcher():
    q, k, v = (TwoTensor(x, 2 * x) for x in (Q, K, V))
    with torch.no_grad():
        out = DROP_IN(q, k, v)
    assert close(out.a, F.scaled_dot_product_attention(Q, K, V)) and close(out.b, F.scaled_dot_product_attention(2 * Q, 2 * K, 2 * V))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_are_handed_to_pytorch(layout):
    parts = [draw(2, 3, 8), draw(2, 5, 8)]
    if layout == torch.strided:
        ragged = torch.nested.nested_tensor(parts)
    else:
        ragged = torch.nested.nested_tensor([part.transpose(0, 1) for part in parts], layout=layout).transpose(1, 2)
    outcomes = []
    for function in (DROP_IN, F.scaled_dot_product_attention):
        try:
            with torch.no_grad():
                outcomes.append(function(ragged, ragged, ragged).unbind())
        except RuntimeError as error:  # PyTorch's CPU takes no jagged ones that lie transposed
            outcomes.append(str(error))
    ours, theirs = outcomes
    assert ours == theirs if isinstance(theirs, str) else all(map(close, ours, theirs))
    with pytest.raises(heed.KindError, match="^q: a nested tensor, which heed does not compute with"):
        heed.torch.attention(ragged, ragged, ragged)


@pytest.fixture
def one_rank(tmp_path):
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
def test_distributed_tensors_are_handed_to_pytorch_or_refused(one_rank):
    from torch.distributed.tensor import Replicate, distribute_tensor

    q, k, v = (distribute_tensor(x, one_rank, [Replicate()]) for x in (Q, K, V))
    with torch.no_grad():
        assert close(DROP_IN(q, k, v).to_local(), F.scaled_dot_product_attention(Q, K, V))
    with pytest.raises(heed.KindError, match="^q: a DTensor, which heed does not compute with"):
        heed.torch.attention(q, k, v)
    with pytest.raises(heed.KindError, match="^q: .*DTensor stands for other tensors"):
        heed.attention(q, k, v)
    layer = heed.AttentionLayer(16, 2)
    with pytest.raises(heed.KindError, match="DTensor stands for other tensors"):
        layer.load({name: distribute_tensor(torch.from_numpy(a), one_rank, [Replicate()]) for name, a in layer.state_dict().items()})
    module = heed.torch.AttentionLayer(16, 2)
    x = draw(2, 5, 16)
    plain = module(x).detach()
    sharded = torch.distributed.tensor.distribute_module(module, one_rank)
    with torch.no_grad(), pytest.raises((heed.KindError, RuntimeError)):
        sharded(x)
    assert plain.shape == x.shape


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("records", [False, True], ids=["no_grad", "autograd"])
def test_a_tensor_whose_collective_is_in_flight_is_waited_for(one_rank, records):
    from torch.distributed._functional_collectives import AsyncCollectiveTensor, all_reduce

    def in_flight(tensor):
        tensor = all_reduce(tensor, "sum", one_rank)
        assert type(tensor) is AsyncCollectiveTensor
        return tensor.requires_grad_(records and tensor.is_floating_point())

    layer, x, keep = heed.torch.AttentionLayer(16, 2, bias=True), draw(2, 5, 16), torch.ones(5, 7, dtype=torch.bool)
    parameters = torch.nn.MultiheadAttention(16, 2)
    calls = {
        "drop-in": (lambda q, k, v: DROP_IN(q, k, v), (Q, K, V)),
        "attention": (lambda q, k, v: heed.torch.attention(q, k, v, causal="ends"), (Q, K, V)),
        "a bias": (lambda bias: heed.torch.attention(Q, K, V, bias=bias), (draw(5, 7),)),
        "layer": (lambda x: layer(x, keep=keep[:, :5]), (x,)),
        "a mask of the layer": (lambda bias: layer(x, bias=bias), (draw(5, 5),)),
        "activated": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v), (Q, K, V)),
        "activated, with weights": (lambda x: parameters(x, x, x)[0], (x,)),
    }
    for name, (call, tensors) in calls.items():
        with torch.set_grad_enabled(records), heed.torch.activated():
            plain = [tensor.clone().requires_grad_(records) for tensor in tensors]
            waiting = [in_flight(tensor) for tensor in tensors]
            expected, found = call(*plain), call(*waiting)
            assert type(found) is torch.Tensor and torch.equal(found, expected), name
            if records:
                by = [torch.autograd.grad(out.square().sum(), inputs) for out, inputs in ((expected, plain), (found, waiting))]
                assert all(map(torch.equal, *by)), name


@pytest.mark.filterwarnings("ignore")
def test_masked_tensors_are_refused_by_name_or_by_pytorch():
    from torch.masked import masked_tensor

    masked = masked_tensor(Q.clone(), torch.ones_like(Q, dtype=torch.bool))
    with pytest.raises((TypeError, ValueError, RuntimeError)) as error:
        DROP_IN(masked, K, V)
    with pytest.raises(heed.KindError, match="MaskedTensor"):
        heed.attention(masked, K, V)
    assert error.value


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_meta_tensor_beside_others_is_refused_and_alone_has_a_shape(place):
    tensors = [Q, K, V]
    tensors[place] = tensors[place].to("meta")
    with torch.no_grad(), pytest.raises(RuntimeError, match="device"):
        DROP_IN(*tensors)
    out = DROP_IN(*(x.to("meta") for x in (Q, K, V)))
    assert out.is_meta and out.shape == Q.shape


@pytest.mark.parametrize("place", ["q", "k", "v", "keep", "bias", "sink"])
def test_memory_that_is_gone_is_refused_by_name(place):
    given = {"q": Q, "k": K, "v": V, "keep": torch.ones(5, 7, dtype=torch.bool), "bias": draw(5, 7), "sink": draw(2)}
    given[place] = given[place].clone()
    given[place].untyped_storage().resize_(0)
    for function in (heed.attention, heed.torch.attention):
        with pytest.raises(heed.Error, match=f"^{place}: its memory is gone"):
            function(given["q"], given["k"], given["v"], **{name: given[name] for name in ("keep", "bias", "sink")})


@pytest.mark.parametrize("autocast", [False, True])
def test_float64_is_computed_in_float64(autocast):
    q, k, v = Q.double(), K.double(), V.double()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found = DROP_IN(q, k, v)
        assert found.dtype == F.scaled_dot_product_attention(q, k, v).dtype == torch.float64
    assert (found - F.scaled_dot_product_attention(q, k, v)).abs().max() < 1e-14


def test_everything_dropped_is_zero():
    assert torch.equal(DROP_IN(Q, K, V, dropout_p=1.0), torch.zeros_like(Q))


@pytest.mark.parametrize("layout", ["sparse", "mkldnn"])
def test_other_layouts_are_refused_by_name(layout):
    odd = Q.to_sparse() if layout == "sparse" else Q.to_mkldnn()
    with torch.no_grad(), pytest.raises((RuntimeError, TypeError, NotImplementedError)):
        DROP_IN(odd, K, V)
    with torch.no_grad(), pytest.raises(heed.KindError, match=rf"^q: a .*{layout}.*tensor.*, such as its to_dense\(\)"):
        heed.torch.attention(odd, K, V)


@pytest.mark.parametrize("records", [False, True], ids=["no_grad", "autograd"])
def test_zeros_without_memory_are_zeros(records):
    zeros = torch._efficientzerotensor(tuple(K.shape))
    q = Q.clone().requires_grad_(records)
    assert (DROP_IN(q, K, zeros) == 0).all()
    assert torch.equal(DROP_IN(q, zeros, V), DROP_IN(q, torch.zeros_like(K), V))
    assert torch.equal(heed.torch.attention(q, zeros, V), heed.torch.attention(q, torch.zeros_like(K), V))
    assert torch.equal(heed.attention(Q, zeros, V), heed.attention(Q, torch.zeros_like(K), V))
    with pytest.raises(heed.Error, match="^out: a zero tensor of PyTorch's has no memory"):
        heed.attention(Q, K, V, out=torch._efficientzerotensor(tuple(Q.shape)))


KINDS = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int32, torch.bool)


@pytest.mark.parametrize("autocast", [False, True], ids=["plain", "autocast"])
@pytest.mark.parametrize("of_query", KINDS[:4])
def test_mixed_types_are_answered_alike_with_and_without_gradients(of_query, autocast):
    def outcome(records, types):
        q, k, v, mask = (t if kind is None else t.to(kind) for t, kind in zip((Q, K, V, torch.ones(5, 7)), types, strict=True))
        try:
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                return DROP_IN(q.clone().requires_grad_(records), k, v, None if types[3] is None else mask).detach()
        except (heed.KindError, RuntimeError) as error:
            return f"{type(error).__name__}: {error}"

    for types in itertools.product([of_query], KINDS, KINDS, (None, *KINDS)):
        without, recorded = outcome(False, types), outcome(True, types)
        assert torch.equal(without, recorded) if isinstance(without, torch.Tensor) else without == recorded, types


@pytest.mark.parametrize("kind", [bool, np.float32])
def test_a_mask_of_numpy_is_taken_and_may_change_afterwards(kind):
    mask = (np.arange(35).reshape(5, 7) % 3 == 0).astype(kind)
    gradients = []
    for given in (torch.tensor(mask), mask):
        q = Q.clone().requires_grad_()
        out = DROP_IN(q, K, V, given)
        assert torch.equal(out, DROP_IN(Q, K, V, given))
        if given is mask:
            mask[:] = 1
        gradients += torch.autograd.grad(out.square().sum(), q)
    assert torch.equal(*gradients)


@pytest.mark.parametrize("records", [False, True], ids=["no_grad", "autograd"])
def test_functionalize_sees_an_operator(records):
    def doubled(q):
        x = q.clone()
        x.mul_(2)
        return DROP_IN(x, K, V)

    q = Q.clone().requires_grad_(records)
    assert torch.equal(torch.func.functionalize(doubled)(q), doubled(q))
    with pytest.raises(RuntimeError, match="^heed: attention knows no transforms"):
        torch.func.functionalize(torch.vmap(lambda x: DROP_IN(x[None], K, V)))(q)


def test_errors_are_those_of_pytorch_as_well():
    with pytest.raises(RuntimeError):
        DROP_IN(Q, K[..., :3], V)
    with pytest.raises(ValueError):
        DROP_IN(Q, K[..., :3], V)


@pytest.mark.parametrize("name", ["alibi", "scale", "softcap"])
def test_a_gradient_that_would_be_lost_is_refused(name):
    value = torch.full((2,) if name == "alibi" else (), 0.5, requires_grad=True)
    given = {name: (value, "starts") if name == "alibi" else value}
    with pytest.raises(heed.KindError, match=f"^{name}: requires grad, and heed has no gradient by it"):
        heed.torch.attention(Q, K, V, **{name: value})
    with torch.no_grad():
        assert heed.torch.attention(Q, K, V, **given).shape == Q.shape


def test_scores_that_are_asked_for_have_no_gradient_and_say_so():
    layer = heed.torch.AttentionLayer(16, 2)
    _, scores = layer(draw(1, 5, 16), return_scores="raw")
    with pytest.raises(RuntimeError, match=r'^heed: scores \(return_scores="raw"\) have no gradient'):
        scores.sum().backward()


@pytest.mark.parametrize("options", [{}, {"softcap": 2.0}, {"sink": "sink"}, {"bias": "bias"}, {"head_map": "tiled"}])
def test_weights_that_are_asked_for_have_the_gradients_of_the_formula(options):
    from heed import _torch_formula, _torch_operators

    tensors = {"q": draw(1, 4, 5, 8), "k": draw(1, 2, 7, 8, seed=1), "bias": draw(4, 5, 7, seed=3), "sink": draw(4, seed=4)}
    found = []
    for by_heed in (True, False):
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in tensors.items()}
        said = {name: leaves.get(value, value) if isinstance(value, str) else value for name, value in options.items()}
        options_ = _torch_operators.options_of(said | {"causal": "ends"})
        q, k = leaves["q"], leaves["k"]
        table = _torch_operators.table(q, k, k, options_, "weights") if by_heed else _torch_formula.table(q, k, options_, "weights")
        wanted = [leaf for name, leaf in leaves.items() if name in "qk" or name in options]
        found.append(torch.autograd.grad((table * draw(1, 4, 5, 7, seed=9)).sum(), wanted))
    assert all(torch.allclose(mine, other, rtol=1e-4, atol=1e-5) for mine, other in zip(*found, strict=True))


def test_fewer_axes_and_arrays_of_numpy_are_taken():
    assert close(heed.torch.attention(Q[0], K[0], V[0]), F.scaled_dot_product_attention(Q, K, V)[0])
    assert close(heed.torch.attention(Q[0, 0], K[0, 0], V[0, 0]), F.scaled_dot_product_attention(Q, K, V)[0, 0])
    assert close(heed.torch.attention(*(x.numpy() for x in (Q, K, V))), F.scaled_dot_product_attention(Q, K, V))
    with pytest.raises(heed.Error, match=r"^k.shape: \(2, 7, 8\) has not as many axes as q.shape"):
        heed.torch.attention(Q, K[0], V)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_another_default_dtype_changes_nothing(dtype):
    layer = heed.torch.AttentionLayer(16, 2, rotary=heed.Rotary(base=123.0))
    x = draw(1, 6, 16)
    torch.set_default_dtype(dtype)
    try:
        during = layer(x, causal=True).detach()
    finally:
        torch.set_default_dtype(torch.float32)
    from heed import _torch_layer

    _torch_layer._counted_rotation.cache_clear()
    assert torch.equal(during, layer(x, causal=True).detach())


def test_a_default_device_changes_nothing():
    with warnings.catch_warnings(), torch.device("meta"):
        out = DROP_IN(Q, K, V)
    assert close(out, F.scaled_dot_product_attention(Q, K, V))


def test_positions_are_refused_by_their_own_name():
    layer = heed.torch.AttentionLayer(16, 2)
    with pytest.raises(heed.Error, match="^key_positions: given, but rotary is not"):
        layer(draw(1, 5, 16), key_positions=[0, 1, 2, 3, 4])


def test_the_order_of_axes_of_flash_attention_is_taken():
    q, k, v = (x.transpose(1, 2).contiguous().requires_grad_() for x in (Q, K, V))
    out = heed.torch.attention(q, k, v, layout="bshd", causal="ends")
    assert torch.equal(out.transpose(1, 2), heed.torch.attention(Q, K, V, causal="ends"))
    with pytest.raises(heed.Error, match='^layout: "sbhd" is none of "bhsd", "bshd"'):
        heed.torch.attention(q, k, v, layout="sbhd")


def test_queries_of_a_padded_batch_have_lengths():
    q, k, v = (torch.cat([x, 2 * x]).requires_grad_() for x in (Q, K, V))
    out = heed.torch.attention(q, k, v, query_lengths=[5, 3])
    assert (out[1, :, 3:] == 0).all() and torch.equal(out[1, :, :3], heed.torch.attention(q, k, v)[1, :, :3])
    by_q, = torch.autograd.grad(out.sum(), q)
    assert (by_q[1, :, 3:] == 0).all() and (by_q[1, :, :3] != 0).any()


def test_heads_of_no_dimensions_are_means_of_what_is_seen():
    q, k = Q[..., :0], K[..., :0]
    assert close(DROP_IN(q, k, V), F.scaled_dot_product_attention(q, k, V))
