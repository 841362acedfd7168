# PyTorch's backends on the same shapes: CUDA events, the median of several turns.
import sys, torch
from torch.nn.attention import sdpa_kernel, SDPBackend
F = torch.nn.functional
names = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION}
def time(fn, repeats):
    a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    a.record()
    for _ in range(repeats): fn()
    b.record(); b.synchronize()
    return a.elapsed_time(b) * 1000 / repeats
def case(name, q, keys, d, dv, causal, batch=1, **more):
    dev = dict(device="cuda", dtype=torch.bfloat16)
    Q, K, V = torch.randn(batch, 32, q, d, **dev), torch.randn(batch, 8, keys, d, **dev), torch.randn(batch, 8, keys, dv, **dev)
    line = f"torch {name:22s} {q:6d} {keys:6d} {d}/{dv} "
    for n, backend in names.items():
        try:
            k, v = (K, V) if n != "efficient" else (K.repeat_interleave(4, 1), V.repeat_interleave(4, 1))
            gqa = n != "efficient"
            with sdpa_kernel(backend):
                fn = lambda: F.scaled_dot_product_attention(Q, k, v, is_causal=causal, enable_gqa=gqa, **more)
                us = time(fn, 1)
                reps = max(1, min(20, int(3000 / max(us, 1))))
                times = sorted(time(fn, reps) for _ in range(5))
            us = times[2]
            pairs = q * keys - (q * (q - 1) / 2 if causal else 0)
            line += f" {n} {us:9.1f} us {2e-6 * batch * 32 * pairs * (d + dv) / us:7.1f}"
        except Exception as e:
            line += f" {n} - ({str(e)[:20]!r})"
    print(line, flush=True)
which = sys.argv[1] if len(sys.argv) > 1 else "all"
for d in (64, 128, 256):
    for s in (1024, 4096, 16384):
        for causal in (False, True): case("causal" if causal else "plain", s, s, d, d, causal)
if which == "all":
    import warnings; warnings.filterwarnings("ignore")
    m = torch.randn(1, 1, 4096, 4096, device="cuda", dtype=torch.bfloat16)
    case("bias shared", 4096, 4096, 128, 128, False, attn_mask=m)
    case("bias per head", 4096, 4096, 128, 128, False, attn_mask=torch.randn(1, 32, 4096, 4096, device="cuda", dtype=torch.bfloat16))
    case("mask shared", 4096, 4096, 128, 128, False, attn_mask=torch.rand(1, 1, 4096, 4096, device="cuda") < 0.9)
    case("mask of one row", 4096, 4096, 128, 128, False, attn_mask=(torch.arange(4096, device="cuda") < 3686)[None, None, None, :])
    case("dropout causal", 4096, 4096, 128, 128, True, dropout_p=0.1)
    for d in (40, 80, 96): case("causal", 4096, 4096, d, d, True)
    case("causal", 4096, 4096, 192, 128, True)
    for q in (4, 16, 64, 128, 512): case("over 8192", q, 8192, 128, 128, False)
    case("decode", 1, 4096, 128, 128, False, batch=64)
