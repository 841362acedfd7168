# SPDX-License-Identifier: Apache-2.0
"""heed's own Python package, in the process of its rivals: what a program that has both gets."""

import heed.torch
import rival_torch
import torch

import heed


def backward_way(problem, arrays):
    tensors = {name: rival_torch.tensor(problem, array) for name, array in arrays.items()}
    q, k, v, out_gradient = (tensors[name] for name in ("q", "k", "v", "out_gradient"))
    causal = "ends" if problem.causal else None
    out, lse = heed.attention(q, k, v, causal=causal, return_lse=True)
    return lambda: heed.attention_backward(out_gradient, q, k, v, out, lse, causal=causal)[0]


def training_way(problem, arrays):
    _, heads, kv_heads, _, _, dim = problem.shape
    layer = heed.torch.AttentionLayer(heads * dim, heads, kv_heads)
    names = {"q_proj": "w_q", "k_proj": "w_k", "v_proj": "w_v", "o_proj": "w_o"}
    layer.load_state_dict(
        {f"{name}.weight": rival_torch.tensor(problem, arrays[key]) for name, key in names.items()}
    )
    return rival_torch.there_and_back(layer, problem, arrays)


def ways(problem, arrays, threads):
    """Yields (name, run); run() returns the result as a tensor."""
    heed.set_num_threads(threads)
    if problem.role == "layer":
        _, heads, kv_heads, _, _, dim = problem.shape
        layer = heed.AttentionLayer(heads * dim, heads, kv_heads)
        names = {"W_q.weight": "w_q", "W_k.weight": "w_k", "W_v.weight": "w_v", "W_o.weight": "w_o"}
        layer.load({name: arrays[key] for name, key in names.items()})
        x = rival_torch.tensor(problem, arrays["x"])
        yield "AttentionLayer", lambda: layer(x)
    if problem.role == "backward":
        yield "attention_backward", backward_way(problem, arrays)
    if problem.role == "training":
        yield "torch.AttentionLayer", training_way(problem, arrays)
    if problem.role in ("prefill", "decode"):
        q, k, v = (rival_torch.tensor(problem, arrays[name]) for name in ("q", "k", "v"))
        causal = "ends" if problem.causal else None
        yield "attention", lambda: heed.attention(q, k, v, causal=causal)


def to_array(result, _problem):
    return result.to(torch.float32).numpy()
