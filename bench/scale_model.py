#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The cost model of docs/scale.md: how long attention over ranks takes, from what a rank computes and the network carries.

Prefill: every rank has an equal part of the work, and the keys and values of all others pass through its link once in each
direction, while it computes. Decode: every rank reads its chunks of the cache, then the states of all chunks pass its link.
"""

import argparse
import dataclasses

CHUNK, PIECE = 1024, 2048


@dataclasses.dataclass
class Machine:
    """One rank: multiplications and additions, bytes of memory and bytes of the network per second; seconds per message."""

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


def prefill(model, machine, tokens, ranks):
    """Seconds of computing, of the network, and of all; causal."""
    computing = 2 * tokens * tokens * model.heads * model.dim / ranks / machine.flops
    received = tokens * model.token_bytes() * (ranks - 1) / ranks
    messages = -(-tokens // ranks // PIECE) * (ranks - 1)  # that one rank sends
    first = min(PIECE, tokens) * model.token_bytes() / machine.network + machine.latency
    network = received / machine.network + messages * machine.latency
    return computing, network, max(computing, network) + (first if ranks > 1 else 0)


def decode(model, machine, tokens, ranks):
    chunks = -(-tokens // CHUNK)
    reading = -(-chunks // ranks) * CHUNK * model.token_bytes() / machine.memory
    states = chunks * model.heads * (2 + model.dim) * 4
    network = states * (ranks - 1) / ranks / machine.network + (ranks - 1) * machine.latency
    folding = states / machine.memory
    return reading, network, reading + network + folding


def row(name, ranks, times, alone):
    work, network, total = times
    efficiency = alone / ranks / total
    return f"| {name} | {ranks} | {work:.4g} | {network:.4g} | {total:.4g} | {efficiency:.2f} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--gflops", type=float, default=1500, help="of a rank, in the type that is multiplied")
    parser.add_argument("--memory", type=float, default=200, help="GB/s of a rank")
    parser.add_argument("--network", type=float, default=12.5, help="GB/s of a rank's link, each way")
    parser.add_argument("--latency", type=float, default=2, help="microseconds for a message")
    given = parser.parse_args()
    machine = Machine(given.gflops * 1e9, given.memory * 1e9, given.network * 1e9, given.latency * 1e-6)
    model = Model()
    print("| | ranks | computing, s | network, s | total, s | efficiency |\n|---|--:|--:|--:|--:|--:|")
    for name, cost, tokens, counts in (
        ("prefill, 131,072 tokens", prefill, 1 << 17, (1, 8, 64, 256)),
        ("prefill, 1,048,576 tokens", prefill, 1 << 20, (1, 64, 256, 1024)),
        ("decode, 1,048,576 tokens", decode, 1 << 20, (1, 8, 32, 128)),
    ):
        alone = cost(model, machine, tokens, 1)[2]
        for ranks in counts:
            print(row(name, ranks, cost(model, machine, tokens, ranks), alone))


if __name__ == "__main__":
    main()
