#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Races heed against transformers' sdpa and eager attention inside language models on a GPU, made of configurations.

Eight layers, 16 query heads over 4, random weights, bf16. In turns each attention reads a prompt and decodes tokens over the
library's own cache. Before that the models in f32 must say the same tokens as eager does.

    PYTHONPATH=build/cuda-package python3 bench/models_cuda.py --json models.json
"""

import argparse
import dataclasses
import json
import statistics
import sys
import time

import torch
import transformers

import heed.transformers

ATTENTIONS = ("heed", "sdpa", "eager")


@dataclasses.dataclass
class Case:
    name: str
    head_dim: int = 128
    padded: bool = False  # on the left, by 0 to 3 quarters of the prompt
    window: int | None = None


CASES = (
    Case("heads of 128"),
    Case("heads of 128, padded", padded=True),
    Case("heads of 80", 80),
    Case("heads of 80, padded", 80, padded=True),
    Case("heads of 96, a window of 512", 96, window=512),
)


def make_model(case, dtype):
    torch.manual_seed(0)
    sizes = {"vocab_size": 8192, "hidden_size": 16 * case.head_dim, "intermediate_size": 4096, "num_hidden_layers": 8,
             "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": case.head_dim}  # fmt: skip
    config = transformers.MistralConfig(**sizes, sliding_window=case.window) if case.window else transformers.LlamaConfig(**sizes)
    return transformers.AutoModelForCausalLM.from_config(config).to("cuda", dtype).eval()


def make_prompt(case, batch, length):
    ids = torch.randint(10, 8192, (batch, length), generator=torch.Generator().manual_seed(1)).cuda()
    mask = torch.ones_like(ids)
    if case.padded:
        for b in range(batch):
            mask[b, : b * length // (batch if batch > 1 else 2)] = 0
    return ids, mask


def clock():
    torch.cuda.synchronize()
    return time.perf_counter()


@torch.no_grad()
def run(model, prompt, tokens):
    """(seconds of the prompt, seconds per token, what it said)."""
    ids, mask = prompt
    cache = transformers.DynamicCache(config=model.config)
    begin = clock()
    token = model(ids, attention_mask=mask, past_key_values=cache, logits_to_keep=1).logits[:, -1].argmax(-1, keepdim=True)
    read = clock()
    said = [token]
    for _ in range(tokens):
        mask = torch.cat([mask, torch.ones_like(mask[:, :1])], 1)
        token = model(token, attention_mask=mask, past_key_values=cache, logits_to_keep=1).logits[:, -1].argmax(-1, keepdim=True)
        said.append(token)
    return read - begin, (clock() - read) / tokens, torch.cat(said, 1)


def check(case):
    model = make_model(case, torch.float32)
    said = {}
    for name in ATTENTIONS:
        model.set_attn_implementation(name)
        said[name] = run(model, make_prompt(case, 2, 300), 12)[2]
    if not torch.equal(said["heed"], said["eager"]):
        sys.exit(f"models_cuda: {case.name}: in f32 heed says other tokens than eager")


def race(case, options):
    check(case)
    model, prompt = make_model(case, torch.bfloat16), make_prompt(case, options.batch, options.length)
    times = {name: [] for name in ATTENTIONS}
    for number in range(options.rounds + 1):
        for name in ATTENTIONS:
            model.set_attn_implementation(name)
            done = run(model, prompt, options.tokens if number else 3)
            if number:
                times[name].append(done[:2])
    return {name: [1e3 * statistics.median(field) for field in zip(*found, strict=True)] for name, found in times.items()}


def main(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=1500, help="tokens of the prompt")
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args(words)
    heed.transformers.register()
    print(f"{'prompt / token, ms':<32}" + "".join(f"{name:>18}" for name in ATTENTIONS) + f"{'times as fast':>18}")
    made = {}
    for case in CASES:
        found = made[case.name] = race(case, options)
        best = [min(found[name][i] for name in ATTENTIONS[1:]) for i in range(2)]
        cells = "".join(f"{found[name][0]:>9.1f} /{found[name][1]:>7.2f}" for name in ATTENTIONS)
        print(f"{case.name:<32}{cells}{best[0] / found['heed'][0]:>9.2f} /{best[1] / found['heed'][1]:>7.2f}", flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({**vars(options), "device": torch.cuda.get_device_name(), "milliseconds": made}, file, indent=1)


if __name__ == "__main__":
    main(sys.argv[1:])
