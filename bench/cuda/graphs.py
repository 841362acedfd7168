# SPDX-License-Identifier: Apache-2.0
"""Calls in CUDA graphs, and how long a call takes."""

import statistics

import torch


def captured(call, inside):
    """A graph of `inside` calls, after a few that nobody counts."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(inside):
            call()
    return graph


def microseconds(graphs, inside, replays):
    """Of a call in each of the graphs: medians over replays, in which they take turns."""
    times = [[] for _ in graphs]
    for _ in range(replays):
        for graph, own in zip(graphs, times, strict=True):
            start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            graph.replay()
            stop.record()
            stop.synchronize()
            own.append(start.elapsed_time(stop) * 1e3 / inside)
    return [statistics.median(own) for own in times]
