# SPDX-License-Identifier: Apache-2.0
"""bench/layers_cuda.py: what it times is checked, on a CPU."""

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "bench")
    import layers_cuda

    monkeypatch.setattr(layers_cuda, "DEVICE", "cpu")
    yield layers_cuda
    del sys.modules["layers_cuda"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_both_layers_that_are_timed_compute_the_same_with_and_without_a_cache(bench, dtype):
    layers = bench.Layers(dtype, 64, 4, 2)
    for case in (bench.Case(2, 20), bench.Case(2, 1, 30)):
        ours, theirs = bench.prepared(case, layers)
        assert ours().shape == theirs().shape == (2, case.tokens, 64)
        assert bench.seconds(theirs, 2) > 0


def test_a_wrong_result_ends_the_run(bench):
    x = torch.ones(4)
    bench.check(bench.Case(1, 4), x, x)
    with pytest.raises(SystemExit, match="1 x 4: results are"):
        bench.check(bench.Case(1, 4), x, 1.1 * x)
