# SPDX-License-Identifier: Apache-2.0
"""How long a call takes, in turns: one contestant after the other, again and again, so that whatever else the machine does meets
all of them."""

import time

LONG = 0.2  # seconds of a call that needs no warming up
WINDOW = 0.01  # seconds in which a process whose threads all sleep uses no processor


def wait_until_idle():
    """Threads of the last contestant may spin: OpenBLAS's and ONNX Runtime's for some 30 ms after a call, PyTorch's for 2. Whoever
    computes meanwhile waits for ticks of the system's clock: with 16 threads, 8 ms for a call of 0.1 (November 2026)."""
    idle, begun = 0, time.perf_counter()
    while idle < 2 and time.perf_counter() - begun < 1:
        used = time.process_time()
        time.sleep(WINDOW)
        idle = idle + 1 if time.process_time() - used < 0.05 * WINDOW else 0


def seconds_of(run):
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


class OnCpu:
    """Calls one after another for so many seconds; the first of a turn counts only where it is long."""

    def __init__(self, seconds):
        self.seconds = seconds

    def ready(self, run):
        return run

    def turn(self, run):
        """Seconds of each call."""
        wait_until_idle()
        first = seconds_of(run)
        if first > LONG:
            return [first]
        times = []
        while not times or sum(times) < self.seconds:
            times.append(seconds_of(run))
        return times


class OnCuda:
    """Replays of a graph of several calls, so that launches cost what they cost in a model."""

    def __init__(self, seconds):
        import torch

        self.cuda, self.seconds = torch.cuda, seconds

    def ready(self, run):
        """(graph, calls in it, what they read: it lives as long), after a few that nobody counts."""
        stream = self.cuda.Stream()
        with self.cuda.stream(stream):
            for _ in range(3):
                run()
        self.cuda.current_stream().wait_stream(stream)
        self.cuda.synchronize()
        first = seconds_of(lambda: (run(), self.cuda.synchronize()))
        calls = max(2, min(20, int(self.seconds / first)))
        graph = self.cuda.CUDAGraph()
        with self.cuda.graph(graph):
            for _ in range(calls):
                run()
        return graph, calls, run

    def turn(self, ready):
        """Seconds of a call, the average of one replay's."""
        graph, calls, _ = ready
        start, stop = (self.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        return [start.elapsed_time(stop) * 1e-3 / calls]
