#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What PyTorch takes for the problems of time_kernels: cuDNN's and its own flash kernels, each in a CUDA graph.

Prints the same names, so that lines of the two programs can be put side by side. Where heed's package for CUDA is installed, its
drop-in is in a graph of its own and takes turns with them: what is compared then ran on a card that was as hot for all. Arguments
are parts of the names of those that are wanted.
"""

import sys

import torch
from graphs import captured, microseconds
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

try:
    from heed.torch import scaled_dot_product_attention as heeds
except ImportError:
    heeds = None

BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION,
            "efficient": SDPBackend.EFFICIENT_ATTENTION}


def sizes():
    lengths = [1024, 2048, 4096, 8192, 16384]
    for dim, heads, kv_heads in ((128, 64, 8), (64, 64, 64)):
        for causal in (False, True):
            for n in lengths:
                yield "prefill", torch.bfloat16, max(1, 4096 // n), heads, kv_heads, n, n, dim, causal
    for causal in (False, True):
        yield "prefill", torch.bfloat16, 2, 12, 6, 1024, 1024, 64, causal
    for causal in (False, True):
        for n in (4096, 16384):
            yield "prefill", torch.bfloat16, 1, 32, 8, n, n, 256, causal
    for batch, kv_heads, keys in ((64, 8, 4096), (16, 8, 8192), (1, 8, 1024), (1, 8, 4096), (1, 8, 32768), (64, 1, 4096)):
        yield "decode", torch.bfloat16, batch, 32, kv_heads, 1, keys, 128, False
    yield "exact", torch.float32, 1, 32, 32, 8192, 8192, 64, False


def contestants(q, k, v, options, inside):
    """{name: graph} of those that take the call, and {name: why} of the others."""
    graphs, refusals = {}, {}
    if heeds:
        ours = heeds(q, k, v, **options)
        graphs["heed"] = captured(lambda: heeds(q, k, v, **options), inside)
    for label, backend in BACKENDS.items():
        if (label == "efficient") != (q.dtype == torch.float32):
            continue
        if label == "flash" and k.shape[2] * q.shape[2] > 4096 * 4096:
            continue
        try:
            with sdpa_kernel(backend):
                theirs = functional.scaled_dot_product_attention(q, k, v, **options)
                graphs[label] = captured(lambda: functional.scaled_dot_product_attention(q, k, v, **options), inside)
        except RuntimeError as error:
            refusals[label] = str(error).splitlines()[0][:60]
            continue
        if heeds:
            check(ours, theirs, v)
    return graphs, refusals


def check(ours, theirs, v):
    """A wrong result gets no figure: a few roundings of the largest output, and of sums in f32, which both of them may be off."""
    allowed = 8 * torch.finfo(ours.dtype).eps * theirs.abs().max().item() + 2.0**-22 * v.abs().max().item()
    error = (ours.float() - theirs.float()).abs().max().item()
    if not error <= allowed:
        sys.exit(f"race_torch: heed's result is off by {error:.3g}, where {allowed:.3g} is allowed")


def main(words):
    print("torch", torch.__version__, "cudnn", torch.backends.cudnn.version(), torch.cuda.get_device_name())
    torch.backends.cuda.matmul.allow_tf32 = False
    for role, dtype, batch, heads, kv_heads, queries, keys, dim, causal in sizes():
        layout = (lambda h, n: (batch, n, h, dim)) if role != "decode" else (lambda h, n: (batch, h, n, dim))
        make = lambda h, n: torch.randn(layout(h, n), device="cuda", dtype=dtype)  # noqa: E731
        q, k, v = make(heads, queries), make(kv_heads, keys), make(kv_heads, keys)
        if role != "decode":
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        flops = 4.0 * batch * heads * queries * keys * dim * (0.5 if causal else 1.0)
        inside = 2 if flops > 1e12 else 5 if flops > 1e11 else 20
        name = f"{role}/{str(dtype)[6:].replace('bfloat16', 'bf16').replace('float32', 'f32')}/{batch}x{heads}x{kv_heads}x{queries}x{keys}x{dim}" + ("/causal" if causal else "")
        if words and not any(word in name for word in words):
            continue
        options = {"is_causal": causal, "enable_gqa": heads != kv_heads}
        graphs, refusals = contestants(q, k, v, options, inside)
        line = name
        for label, us in zip(graphs, microseconds(list(graphs.values()), inside, replays=9), strict=True):
            read = 2.0 * k.numel() * k.element_size()
            line += f"  {label} {us:.2f} us {flops / us / 1e6:.1f} TFLOP/s {read / us / 1e6:.2f} TB/s"
        for label, why in refusals.items():
            line += f"  {label} refuses ({why})"
        print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
