#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An attention layer as a CUDA graph: heed.torch.AttentionLayer, and PyTorch's own operators with the same weights.

race_layer.py TIMES RACE    appends a line for each problem to what time_kernels and race_torch.py print, for table.py

The names are layer/dtype/BxLqxwidthxHqxHkv[/causal]. PyTorch's layer is the faster one of two: three products for q, k and v, or one of
the weights side by side; its attention is the fastest of its backends. Replays of the graphs take turns.
"""

import statistics
import sys

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import heed.torch

SIZES = ((2, 1024, 768, 12, 6), (2, 1024, 768, 12, 12), (1, 4096, 4096, 32, 8))
BACKENDS = (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION)
INSIDE = 20


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


def captured(call):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(INSIDE):
            call()
    return graph


def microseconds(graphs):
    """Medians of 15 replays each, taking turns."""
    times = [[] for _ in graphs]
    for _ in range(15):
        for graph, own in zip(graphs, times, strict=True):
            start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            graph.replay()
            stop.record()
            stop.synchronize()
            own.append(start.elapsed_time(stop) * 1e3 / INSIDE)
    return [statistics.median(own) for own in times]


def rivals(layer, x, heads, kv_heads, causal):
    graphs = []
    for backend in BACKENDS:
        for is_fused in (False, True):
            try:
                with sdpa_kernel(backend):
                    graphs.append(captured(torchs(layer, x, heads, kv_heads, causal, is_fused)))
            except RuntimeError:  # it does not take the call
                torch.cuda.synchronize()
    return graphs


@torch.no_grad()
def main(times, race):
    for batch, length, width, heads, kv_heads in SIZES:
        for causal in (False, True):
            layer = heed.torch.AttentionLayer(width, heads, kv_heads, device="cuda", dtype=torch.bfloat16).eval()
            x = torch.randn(batch, length, width, device="cuda", dtype=torch.bfloat16)
            ours = captured(lambda: layer(x, causal=causal))  # noqa: B023
            us, *others = microseconds([ours, *rivals(layer, x, heads, kv_heads, causal)])
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
