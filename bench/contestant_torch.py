# SPDX-License-Identifier: Apache-2.0
"""PyTorch: scaled_dot_product_attention, nn.Linear around it for the layer, and on a GPU each of its backends by itself."""

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

TORCH_TYPE = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}


def tensor(case, array):
    if isinstance(array, torch.Tensor):
        return array
    return torch.from_numpy(np.ascontiguousarray(array.astype(np.float32))).to(TORCH_TYPE[case.dtype])


def repeated(tensors, groups):
    return [t.repeat_interleave(groups, dim=1) for t in tensors]


def attention_ways(case, arrays):
    q, k, v = (tensor(case, arrays[name]) for name in ("q", "k", "v"))
    options = {"is_causal": case.causal}
    if not case.is_grouped:
        yield "sdpa", lambda: F.scaled_dot_product_attention(q, k, v, **options)
        return
    groups = case.shape[1] // case.shape[2]
    yield "sdpa enable_gqa", lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=True, **options)
    yield "sdpa repeat_interleave", lambda: F.scaled_dot_product_attention(
        q, *repeated((k, v), groups), **options
    )


def backward_ways(case, arrays):
    """The gradients by q, k and v of a forward pass that is over; what comes out is the one by q."""
    q, k, v = (tensor(case, arrays[name]).requires_grad_() for name in ("q", "k", "v"))
    out_gradient = tensor(case, arrays["out_gradient"])
    forms = {"sdpa backward": lambda: F.scaled_dot_product_attention(q, k, v, is_causal=case.causal)}
    if case.is_grouped:
        groups = case.shape[1] // case.shape[2]
        forms = {
            "sdpa enable_gqa backward": lambda: F.scaled_dot_product_attention(
                q, k, v, is_causal=case.causal, enable_gqa=True
            ),
            "sdpa repeat_interleave backward": lambda: F.scaled_dot_product_attention(
                q, *repeated((k, v), groups), is_causal=case.causal
            ),
        }
    for name, forward in forms.items():
        out = forward()
        yield name, lambda out=out: torch.autograd.grad(out, (q, k, v), out_gradient, retain_graph=True)[0]


def regrouped_ways(case, arrays, _threads):
    """The heads of a group as queries of one head: what a user who knows the trick writes for a decode step."""
    batch, heads, kv_heads, queries, _, dim = case.shape
    if case.role != "decode" or not case.is_grouped:
        return
    q, k, v = (tensor(case, arrays[name]) for name in ("q", "k", "v"))

    def run():
        grouped = q.view(batch, kv_heads, heads // kv_heads, dim)
        return F.scaled_dot_product_attention(grouped, k, v).view(batch, heads, queries, dim)

    yield "sdpa, heads as queries", run


class Layer(torch.nn.Module):
    """Four bias-free linear maps around grouped-query attention; those of q, k and v may be one."""

    def __init__(self, case, arrays, shares=True, is_fused=False, trains=False):
        super().__init__()
        self.case, self.shares, self.is_fused = case, shares, is_fused
        matrices = {name: tensor(case, arrays[name]) for name in ("w_q", "w_k", "w_v", "w_o")}
        self.rows = [matrices[name].shape[0] for name in ("w_q", "w_k", "w_v")]
        if is_fused:
            matrices = {"w_qkv": torch.cat([matrices[name] for name in ("w_q", "w_k", "w_v")]), "w_o": matrices["w_o"]}
        for name, matrix in matrices.items():
            linear = torch.nn.Linear(matrix.shape[1], matrix.shape[0], bias=False, dtype=matrix.dtype, device=matrix.device)
            linear.weight = torch.nn.Parameter(matrix, requires_grad=trains)
            setattr(self, name, linear)

    def forward(self, x):
        _, heads, kv_heads, _, _, dim = self.case.shape
        projected = self.w_qkv(x).split(self.rows, -1) if self.is_fused else (self.w_q(x), self.w_k(x), self.w_v(x))
        q, k, v = (y.unflatten(-1, (-1, dim)).transpose(1, 2) for y in projected)
        if not self.shares:
            k, v = repeated((k, v), heads // kv_heads)
        options = {"is_causal": self.case.causal, "enable_gqa": self.shares and heads != kv_heads}
        out = F.scaled_dot_product_attention(q, k, v, **options)
        return self.w_o(out.transpose(1, 2).flatten(2))


def layer_ways(case, arrays):
    x = tensor(case, arrays["x"])
    forms = {"Linear, sdpa": {}}
    if x.is_cuda:
        forms["one Linear of q, k and v, sdpa"] = {"is_fused": True}
    elif case.is_grouped:
        forms["Linear, sdpa repeat_interleave"] = {"shares": False}
    for name, form in forms.items():
        layer = Layer(case, arrays, **form)
        for backend, run in backends(lambda layer=layer: layer(x)).items() if x.is_cuda else [("", lambda layer=layer: layer(x))]:
            yield f"{name} {backend}".strip(), run


def backends(run):
    """{name: run} with each of the GPU's fast backends."""

    def with_backend(backend):
        def chosen():
            with sdpa_kernel(backend):
                return run()

        return chosen

    return {name: with_backend(BACKENDS[name]) for name in ("cudnn", "flash")}


def backend_ways(name, case, arrays):
    """One backend of a GPU's as a contestant of its own. flash is left out where it takes long and is known to be slow;
    efficient is the one for f32."""
    _, _, _, queries, keys, _ = case.shape
    is_for_it = (name == "efficient") == (case.dtype == "f32") and not (name == "flash" and queries * keys > 4096**2)
    if case.role not in ("prefill", "decode") or not is_for_it:
        return
    q, k, v = (tensor(case, arrays[each]) for each in ("q", "k", "v"))

    def run():
        with sdpa_kernel(BACKENDS[name]):
            return F.scaled_dot_product_attention(q, k, v, is_causal=case.causal, enable_gqa=case.is_grouped)

    yield f"sdpa {name}", run


def there_and_back(layer, case, arrays):
    """A run of a module, and of its gradients by x and the parameters; what comes out is the one by x."""
    x = tensor(case, arrays["x"]).requires_grad_()
    out_gradient = tensor(case, arrays["out_gradient"])
    return lambda: torch.autograd.grad(layer(x), (x, *layer.parameters()), out_gradient)[0]


def training_ways(case, arrays):
    for shares in (True, False) if case.is_grouped else (True,):
        layer = Layer(case, arrays, shares, trains=True)
        name = "Linear, sdpa" if shares else "Linear, sdpa repeat_interleave"
        yield name, there_and_back(layer, case, arrays)


def ways(case, arrays, threads):
    """Yields (name, run); run() returns the result as a tensor."""
    torch.set_num_threads(threads)
    found = {"backward": backward_ways, "training": training_ways, "layer": layer_ways, "projection": layer_ways}
    yield from found.get(case.role, attention_ways)(case, arrays)


def version():
    return torch.__version__
