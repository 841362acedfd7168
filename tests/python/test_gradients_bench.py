# SPDX-License-Identifier: Apache-2.0
"""bench/gradients_cuda.py: what it holds heed's gradients under options to, on a CPU."""

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

TOKENS = 1024


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "bench")
    import gradients_cuda

    monkeypatch.setattr(gradients_cuda, "DEVICE", "cpu")
    yield gradients_cuda
    del sys.modules["gradients_cuda"]


@pytest.mark.parametrize("n", range(12))
def test_gradients_under_an_option_are_those_of_the_formula_in_float64(bench, n):
    torch.manual_seed(0)
    name, _, said, _ = bench.options(TOKENS)[n]
    inputs, out_gradient, keywords, out = bench.call_with(said, TOKENS)
    if "keep" in keywords:  # a query that sees no key at all
        keywords["keep"][..., 0, 0] = False
        out = bench.heed.torch.attention(*inputs[:3], **keywords)
    found = torch.autograd.grad(out, inputs, out_gradient)
    wanted = bench.gradients_in_float64(inputs[:3], out_gradient, keywords)
    bench.check_option(name, found, wanted)
    with pytest.raises(SystemExit, match="apart"):
        bench.check_option(name, [1.1 * x for x in found], wanted)
