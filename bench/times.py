# SPDX-License-Identifier: Apache-2.0
"""How long runs take: each by itself for a while, or several in turns. Times are pairs, the median and the least."""

import statistics
import time

LONG = 1.0  # seconds after which a single run says enough


def seconds_of(run):
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def median_and_least(runs):
    return statistics.median(runs), min(runs)


def times_of(run, options):
    """As heed bench: once to warm up, then until the time is over; what takes longer than that needs no warming."""
    warming = seconds_of(run)
    if warming > LONG:
        return warming, warming
    runs = []
    while len(runs) < options.runs or sum(runs) < options.seconds:
        runs.append(seconds_of(run))
    return median_and_least(runs)


def take_turns(runs, options):
    """The times of each, called one after the other until the time of all is over."""
    times = {name: [] for name in runs}
    for run in runs.values():
        run()
    while min(map(len, times.values())) < options.runs or sum(map(sum, times.values())) < options.seconds * len(runs):
        for name, run in runs.items():
            times[name].append(seconds_of(run))
    return {name: median_and_least(found) for name, found in times.items()}
