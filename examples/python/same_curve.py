# SPDX-License-Identifier: Apache-2.0
"""The same loss curve to the last bit: a small model of Hugging Face's, trained twice, and once more on two processes.

    python same_curve.py                                     # on the GPU, where there is one and heed is built with CUDA
    python same_curve.py --attention cudnn                   # PyTorch's own attention, to compare
    python same_curve.py --model bert --length 1024          # every token sees every other
    python same_curve.py --steps 200 --json curves.json

Every step has four micro-batches. Their gradients are added in the order of their numbers, whoever computed them, so that one, two
and four processes have the same sum. On a GPU two processes share one card.
"""

import argparse
import contextlib
import json
import os
import pathlib
import sys
import tempfile

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS adds in one order then

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM

import heed
import heed.transformers

heed.transformers.register()  # attn_implementation="heed"
MICRO_BATCHES = 4
TEXT = torch.tensor(list((pathlib.Path(__file__).parents[1] / "train/text.txt").read_bytes()))
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION, "math": SDPBackend.MATH}


def make_model(said):
    torch.manual_seed(0)
    sizes = {"vocab_size": 256, "hidden_size": said.width, "intermediate_size": 2 * said.width, "num_hidden_layers": 2,
             "num_attention_heads": said.width // 64, "max_position_embeddings": said.length}  # fmt: skip
    if said.model == "llama":
        model = LlamaForCausalLM(LlamaConfig(**sizes, num_key_value_heads=max(1, said.width // 128), head_dim=64))
    else:
        model = BertForMaskedLM(BertConfig(**sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    model.set_attn_implementation("heed" if said.attention == "heed" else "sdpa")
    return model.to(said.device, torch.bfloat16 if said.device == "cuda" else torch.float32)


def micro_batch(said, step, number):
    """(tokens, labels). They depend on its number alone: pieces of the text that begin anywhere, of which BERT guesses every eighth byte."""
    random = torch.Generator().manual_seed(MICRO_BATCHES * step + number)
    begins = torch.randint(len(TEXT) - said.length, (2,), generator=random).tolist()
    labels = torch.stack([TEXT[begin : begin + said.length] for begin in begins])
    tokens = labels
    if said.model == "bert":
        is_hidden = torch.rand(labels.shape, generator=random) < 1 / 8
        tokens, labels = labels.masked_fill(is_hidden, 0), labels.masked_fill(~is_hidden, -100)
    return tokens.to(said.device), labels.to(said.device)


def gradient_of(model, tokens, labels):
    """The loss and all gradients as one vector, alone: nothing is added to what another micro-batch has left."""
    model.zero_grad()
    loss = model(tokens, labels=labels).loss
    loss.backward()
    return loss.detach().double().cpu(), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def gathered(mine):
    """Of all processes, in the order of the micro-batches. Gloo, the CPU's way, also joins processes that share a card."""
    if not dist.is_initialized():
        return mine
    parts = [torch.empty_like(mine, device="cpu") for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine.cpu())
    return torch.cat(parts).to(mine.device)


def train(said):
    """The losses of all steps."""
    torch.set_num_threads(1)  # on the CPU, PyTorch's sums over tokens depend on their number
    torch.use_deterministic_algorithms(True, warn_only=True)  # an error instead of a warning would refuse cuDNN's attention
    model = make_model(said)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rank, processes = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    share = MICRO_BATCHES // processes
    losses = []
    for step in range(said.steps):
        mine = [gradient_of(model, *micro_batch(said, step, n)) for n in range(rank * share, (rank + 1) * share)]
        loss = gathered(torch.stack([loss for loss, _ in mine]))
        gradients = gathered(torch.stack([gradient for _, gradient in mine]))
        mean = gradients[0]
        for gradient in gradients[1:]:  # in order: a sum of floating-point numbers depends on it
            mean = mean + gradient
        mean = mean / MICRO_BATCHES
        parameters = [p for p in model.parameters() if p.grad is not None]
        for p, gradient in zip(parameters, mean.split([p.numel() for p in parameters]), strict=True):
            p.grad = gradient.view_as(p)
        optimiser.step()
        losses.append(loss.mean().item())
    return losses


def with_backend(said):
    is_torchs = said.attention != "heed"
    with sdpa_kernel(BACKENDS[said.attention]) if is_torchs else contextlib.nullcontext():
        return train(said)


def one_of(rank, processes, store, said, results):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=processes)
    losses = with_backend(said)
    if rank == 0:
        results.put(losses)
    dist.barrier()
    dist.destroy_process_group()


def on_processes(processes, said):
    forks = torch.multiprocessing.get_context("forkserver")  # of a process that imports all this once
    forks.set_forkserver_preload([__name__])
    results = forks.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        args = (processes, pathlib.Path(folder) / "store", said, results)
        torch.multiprocessing.start_processes(one_of, args, nprocs=processes, start_method="forkserver")
    return results.get()


def compared(what, a, b):
    differing = [n for n, (x, y) in enumerate(zip(a, b, strict=True)) if x != y]
    if not differing:
        return f"{what}: the same bits"
    return f"{what}: not the same from step {differing[0]} on, by up to {max(abs(x - y) for x, y in zip(a, b, strict=True)):.2g}"


def trains_on_cuda():
    return torch.cuda.is_available() and any(name.startswith("cuda") for name in heed.backward_kernel_names())


def options_of(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["llama", "bert"], default="llama", help="causal, or with every token in sight")
    parser.add_argument("--attention", choices=["heed", *BACKENDS], default="heed")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if trains_on_cuda() else "cpu")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--length", type=int, default=256, help="tokens of a sequence")
    parser.add_argument("--width", type=int, default=256, help="of the model, a multiple of 128")
    parser.add_argument("--processes", type=int, choices=[1, 2, 4], default=2, help="of the third run; 1: there is none")
    parser.add_argument("--json", help="write the curves there")
    said = parser.parse_args(words)
    if said.steps < 1:
        parser.error(f"--steps: {said.steps} is less than 1")
    if not 2 <= said.length < len(TEXT):
        parser.error(f"--length: {said.length} is outside [2, {len(TEXT) - 1}]")
    if said.width < 128 or said.width % 128:
        parser.error(f"--width: {said.width} is no multiple of 128")
    if said.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device: there is no GPU that PyTorch sees")
    if said.device == "cpu" and said.attention == "cudnn":
        parser.error("--attention: cudnn needs a GPU")
    if said.json and not pathlib.Path(said.json).absolute().parent.is_dir():
        parser.error(f"--json: there is no folder {pathlib.Path(said.json).absolute().parent}")
    return said


def main(words=None):
    said = options_of(words)
    curves = [with_backend(said), with_backend(said)]
    if said.processes > 1:
        curves.append(on_processes(said.processes, said))
    if said.json:
        pathlib.Path(said.json).write_text(json.dumps({**vars(said), "curves": curves}))
    print(f"{said.attention} on {said.device}: loss {curves[0][0]:.3f} to {curves[0][-1]:.3f} in {said.steps} steps")
    print(compared("twice", curves[0], curves[1]))
    for curve in curves[2:]:
        print(compared(f"on {said.processes} processes", curves[0], curve))
    return 0 if all(curve == curves[0] for curve in curves) else 1


if __name__ == "__main__":
    sys.exit(main())
