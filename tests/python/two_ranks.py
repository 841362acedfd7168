# SPDX-License-Identifier: Apache-2.0
"""Two processes that know each other through torch.distributed."""

import multiprocessing

import pytest
import torch


def found_by_two_ranks(run, tmp_path):
    """{rank: what run(rank, path, results) has put into results as (rank, found)}; path is where the two meet."""
    if not torch.distributed.is_available():
        pytest.skip("this PyTorch has no torch.distributed")
    context = multiprocessing.get_context("forkserver")  # which imports PyTorch once
    context.set_forkserver_preload([run.__module__])
    results = context.Queue()
    ranks = [context.Process(target=run, args=(rank, tmp_path / "store", results)) for rank in range(2)]
    for process in ranks:
        process.start()
    try:
        return dict(results.get(timeout=240) for _ in ranks)
    finally:
        for process in ranks:
            process.join(60)
            process.kill()
