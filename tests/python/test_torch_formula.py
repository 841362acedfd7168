# SPDX-License-Identifier: Apache-2.0
"""The formulas that ONNX models and gradients of weights are made of say what the kernels compute, whatever the options.

`python tests/python/test_torch_formula.py 28` repeats the call of that number.
"""

import collections
import sys

import pytest

torch = pytest.importorskip("torch")

from random_calls import random_call  # noqa: E402

import heed.torch  # noqa: E402
from heed import _torch_formula, _torch_operators  # noqa: E402

LIMIT = 1e-11  # some thousand roundings of numbers of the size of 10
STAGES = ("raw", "softcapped", "biased", "weights")
BY = ("q", "k", "v", "bias", "sink")
CALLS = 300


def given(call, *, drops):
    """q, k, v and the options, as tensors."""
    options = {name: x for name, x in call.options.items() if drops or name not in ("dropout", "seed")}
    return [torch.from_numpy(x) for x in call[:3]], _torch_operators.options_of(options)


def misses(found, expected):
    """The names of what is not the same."""
    return [name for name in expected if not torch.allclose(found[name], expected[name], rtol=LIMIT, atol=LIMIT)]


def misses_of_results(call):
    qkv, options = given(call, drops=False)
    found = dict(zip(("out", "lse"), _torch_formula.attention(*qkv, options), strict=True))
    found |= {stage: _torch_formula.table(*qkv[:2], options, stage) for stage in STAGES}
    keywords = options.keywords()
    expected = dict(zip(("out", "lse"), heed.attention(*qkv, return_lse=True, **keywords), strict=True))
    for stage in STAGES:
        asked = {"return_weights": True} if stage == "weights" else {"return_scores": stage}
        expected[stage] = heed.attention(*qkv, **asked, **keywords)[1]
    return misses(found, expected)


def misses_of_gradients(call):
    qkv, options = given(call, drops=True)
    keywords = options.keywords()
    out, lse = heed.attention(*qkv, return_lse=True, **keywords)
    by_out, by_lse = (torch.cos(torch.arange(x.numel(), dtype=x.dtype)).reshape(x.shape) for x in (out, lse))
    names = [name for name in BY if name in "qkv" or name in options.tensors]
    found = heed.attention_backward(by_out, *qkv, out, lse, lse_gradient=by_lse, by=tuple(names), **keywords)
    return misses(_torch_operators._many_gradients((by_out, by_lse), *qkv, options), dict(zip(names, found, strict=True)))


def disagreement(number):
    """Nothing, or a line that says what is not the kernels'."""
    call = random_call(number)
    off = [f"{part} {', '.join(names)}" for part, names in (("results", misses_of_results(call)), ("gradients", misses_of_gradients(call))) if names]
    return f"python tests/python/test_torch_formula.py {number}: {'; '.join(off)} of {call.describe()}" if off else ""


def test_no_formula_disagrees_with_the_kernels():
    lines = [line for number in range(CALLS) if (line := disagreement(number))]
    assert not lines, f"{len(lines)} of {CALLS} calls:\n" + "\n".join(lines[:20])


def test_the_calls_reach_every_option_of_the_formulas():
    reached = collections.Counter(name for number in range(CALLS) for name in random_call(number).options)
    elsewhere = {"tree", "query_starts", "key_starts", "query_lengths", "kernel", "threads"}  # refused there, or of no consequence
    named = {name for name in _torch_operators.Options._fields if not name.endswith("_align")} - elsewhere
    assert {name for name in named if reached[name] < 15} == set()


@pytest.mark.parametrize(
    "options",
    [{"causal": True}, {"window": (1, 0)}, {"document": [0, 0, 0, 1, 1, 1, 1]}, {"alibi": [0.5, 0.25]}, {"causal": True, "window": (1, 0, "ends")}],
    ids=lambda options: "_".join(options),
)
def test_a_formula_guesses_no_place(options):
    q, k = torch.ones(1, 2, 5, 8), torch.ones(1, 2, 7, 8)
    name = next(iter(options))
    for call in (heed.torch.attention, lambda *qkv, **said: _torch_formula.attention(*qkv, _torch_operators.options_of(said))):
        with pytest.raises(heed.Error, match=f"^{name}: 5 queries, 7 keys; say"):
            call(q, k, k, **options)
        call(k, k, k, **options)


if __name__ == "__main__":
    print(disagreement(int(sys.argv[1])) or "as the kernels compute it")
