#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The cost model of docs/scale.md: how long attention over ranks takes, from what a rank computes and the network carries.

`scale_model.py` prints what it says of a large machine. `scale_model.py --fit FILE`, with the answer of
`heed bench --suite ranks --json`, takes the numbers of one rank from it and compares the model with what was measured.
"""

import argparse
import dataclasses
import json

CHUNK = 1024  # keys of one step of the sum; no message has more
SLOTS = 8  # chunks that a rank has room for, at least
WORDS = 16  # bytes in which a rank says what it was called with


@dataclasses.dataclass
class Machine:
    """One rank: operations, bytes of memory and bytes of its link per second, each way; seconds per message."""

    flops: float
    memory: float
    network: float
    latency: float


@dataclasses.dataclass
class Model:
    heads: int = 32
    kv_heads: int = 8
    dim: int = 128
    element: int = 2

    def token_bytes(self):
        return self.kv_heads * 2 * self.dim * self.element


def ceil(a, b):
    return -(-a // b)


def prefill(model, machine, tokens, ranks, head_groups=1):
    """Seconds of computing, of the network, and of all; causal."""
    members = ranks // head_groups  # that share keys
    share, token = tokens / members, model.token_bytes() / head_groups
    pairs = max(1, min(4, ceil(tokens, 16 * CHUNK), tokens // (2 * members * 512)))  # of stretches that a rank has
    stretch = ceil(tokens, 2 * members * pairs)
    piece = min(CHUNK, stretch)
    copied = (tokens + share) * token  # all keys are received or packed once
    computing = 2 * tokens * tokens * model.heads * model.dim / ranks / machine.flops + copied / machine.memory
    # Who has a piece sends it to each of the others. As many chunks are under way as a rank has room for, less the one that
    # is computed: those of more than one stretch go through several links at once.
    sending = (members - 1) * (piece * token / machine.network + machine.latency)
    ahead = (max(SLOTS, ceil(share, CHUNK)) - 1) * CHUNK
    links = min(members, max(1.0, ahead / stretch))
    received = (tokens - share) * token / machine.network
    network = max(ceil(tokens, piece) * sending / links, received) if members > 1 else 0.0
    return computing, network, max(computing, network) + sending


def decode(model, machine, tokens, ranks):
    """Seconds of reading the cache, of the network, and of all; one query."""
    chunks = ceil(tokens, CHUNK)
    reading = ceil(chunks, ranks) * CHUNK * model.token_bytes() / machine.memory
    merging = min(ranks, model.kv_heads)  # ranks that merge the states of some heads
    states = chunks * model.heads * (2 + model.dim) * 4 * ceil(model.kv_heads, merging) / model.kv_heads  # on one of them
    merged = model.heads * (2 + model.dim) * 4
    received = (states + merged) * (ranks - 1) / ranks + (ranks - 1) * WORDS
    network = received / machine.network + (2 * (ranks - 1) + min(merging, ranks - 1)) * machine.latency
    return reading, network, reading + network + states / machine.memory


def print_rows(rows):
    print("| | ranks | computing, s | network, s | total, s | efficiency |\n|---|--:|--:|--:|--:|--:|")
    for name, ranks, (work, network, total), alone in rows:
        print(f"| {name} | {ranks} | {work:.4g} | {network:.4g} | {total:.4g} | {alone / ranks / total:.2f} |")


def predict(model, machine):
    rows = []
    for tokens, counts in ((1 << 17, ((8, 1), (64, 1), (256, 8))), (1 << 20, ((64, 1), (1024, 1), (1024, 8)))):
        alone = prefill(model, machine, tokens, 1)[2]
        for ranks, groups in counts:
            name = f"prefill, {tokens:,} tokens" + (f", {groups} groups of heads" if groups > 1 else "")
            rows.append((name, ranks, prefill(model, machine, tokens, ranks, groups), alone))
    alone = decode(model, machine, 1 << 20, 1)[2]
    rows += [(f"decode, {1 << 20:,} tokens", ranks, decode(model, machine, 1 << 20, ranks), alone) for ranks in (1, 8, 32, 128)]
    print_rows(rows)


def compare(answer):
    """Ranks that share this machine's memory and processors: the network is a copy, and takes a processor's time."""
    model = Model(heads=8, kv_heads=8, dim=64, element=4)
    tokens, kept, processors = answer["tokens"], answer["kept_tokens"], answer["processors"]
    flops = 2 * tokens * tokens * model.heads * model.dim / answer["prefill"][0]["one_process_seconds"]
    memory = kept * model.token_bytes() / answer["decode"][0]["seconds"]
    machine = Machine(flops, memory, answer["copied_bytes_per_second"], answer["latency_seconds"])
    print(f"a rank: {flops / 1e9:.1f} Gflop/s, {memory / 1e9:.1f} GB/s of a cache; copies: {machine.network / 1e9:.1f} GB/s; "
          f"a message: {machine.latency * 1e6:.0f} us\n")
    print("| | ranks | measured, s | model, s |\n|---|--:|--:|--:|")
    for name, cost, size in (("prefill", prefill, tokens), ("decode", decode, kept)):
        for row in answer[name]:
            ranks = row["ranks"]
            work, network, _ = cost(model, machine, size, ranks)
            total = (work + network) * ranks / min(ranks, processors)
            print(f"| {name}, {size:,} tokens | {ranks} | {row['seconds']:.4g} | {total:.4g} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--fit", metavar="FILE", help="compare with the answer of `heed bench --suite ranks --json`")
    parser.add_argument("--gflops", type=float, default=1500, help="of a rank, in the type that is multiplied")
    parser.add_argument("--memory", type=float, default=200, help="GB/s of a rank")
    parser.add_argument("--network", type=float, default=12.5, help="GB/s of a rank's link, each way")
    parser.add_argument("--latency", type=float, default=2, help="microseconds for a message")
    given = parser.parse_args()
    if given.fit:
        with open(given.fit, encoding="utf-8") as file:
            compare(json.load(file))
    else:
        predict(Model(), Machine(given.gflops * 1e9, given.memory * 1e9, given.network * 1e9, given.latency * 1e-6))


if __name__ == "__main__":
    main()
