#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An attention layer as a CUDA graph: heed.torch.AttentionLayer, and PyTorch's own operators with the same weights.

race_layer.py TIMES RACE    appends a line for each problem to what time_kernels and race_torch.py print, for table.py

The names are layer/dtype/BxLqxwidthxHqxHkv[/causal]. PyTorch's layer is the faster one of two: three products for q, k and v, or one of
the weights side by side; its attention is the fastest of its backends. Replays of the graphs take turns.
"""

import copy
import sys

import torch
from graphs import captured, microseconds
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import heed.torch

SIZES = ((2, 1024, 768, 12, 6), (2, 1024, 768, 12, 12), (1, 4096, 4096, 32, 8))
BACKENDS = (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION)
INSIDE = 20
REPLAYS = 15


def torchs(layer, x, heads, kv_heads, causal, is_fused):
    """The same layer in PyTorch's operators."""
    weights = [m.weight for m in (layer.q_proj, layer.k_proj, layer.v_proj)]
    rows, fused = [w.shape[0] for w in weights], torch.cat(weights)

    def run():
        projected = functional.linear(x, fused).split(rows, -1) if is_fused else [functional.linear(x, w) for w in weights]
        q, k, v = (
            y.unflatten(-1, (n, -1)).transpose(1, 2) for y, n in zip(projected, (heads, kv_heads, kv_heads), strict=True)
        )
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=heads != kv_heads)
        return functional.linear(out.transpose(1, 2).flatten(2), layer.o_proj.weight)

    return run


def exact(layer, x, heads, kv_heads, causal):
    """What the layer says in float64."""
    wide = copy.deepcopy(layer).double()
    return torchs(wide, x.double(), heads, kv_heads, causal, is_fused=False)()


def check(layer, x, heads, kv_heads, causal):
    """A wrong result gets no figure: at most twice the error of PyTorch's operators, and one rounding of the largest number."""
    expected = exact(layer, x, heads, kv_heads, causal)
    ours, theirs = layer(x, causal=causal), torchs(layer, x, heads, kv_heads, causal, is_fused=False)()
    error, allowed = ((y.double() - expected).abs().max().item() for y in (ours, theirs))
    allowed = 2 * allowed + torch.finfo(x.dtype).eps * expected.abs().max().item()
    if not error <= allowed:
        sys.exit(f"race_layer: heed's result is off by {error:.3g}, where {allowed:.3g} is allowed")


def rivals(layer, x, heads, kv_heads, causal):
    graphs = []
    for backend in BACKENDS:
        for is_fused in (False, True):
            try:
                with sdpa_kernel(backend):
                    graphs.append(captured(torchs(layer, x, heads, kv_heads, causal, is_fused), INSIDE))
            except RuntimeError:  # it does not take the call
                torch.cuda.synchronize()
    return graphs


@torch.no_grad()
def main(times, race):
    for batch, length, width, heads, kv_heads in SIZES:
        for causal in (False, True):
            layer = heed.torch.AttentionLayer(width, heads, kv_heads, device="cuda", dtype=torch.bfloat16).eval()
            x = torch.randn(batch, length, width, device="cuda", dtype=torch.bfloat16)
            check(layer, x, heads, kv_heads, causal)
            ours = captured(lambda: layer(x, causal=causal), INSIDE)  # noqa: B023
            us, *others = microseconds([ours, *rivals(layer, x, heads, kv_heads, causal)], INSIDE, REPLAYS)
            products = 2.0 * batch * length * width * sum(m.weight.shape[0] for m in layer.children())
            flops = products + 4.0 * batch * length * length * width * (0.5 if causal else 1.0)
            read = 2.0 * sum(m.weight.numel() for m in layer.children())
            name = f"layer/bf16/{batch}x{length}x{width}x{heads}x{kv_heads}" + ("/causal" if causal else "")
            print(f"{name}  {us:.2f} us  {flops / us / 1e6:.1f} TFLOP/s  {read / us / 1e6:.2f} TB/s", file=times)
            print(f"{name}  torch {min(others):.2f} us", file=race)
            print(f"{name}  heed {us:.2f} us  torch {min(others):.2f} us", flush=True)


if __name__ == "__main__":
    with open(sys.argv[1], "a", encoding="utf-8") as times, open(sys.argv[2], "a", encoding="utf-8") as race:
        main(times, race)
