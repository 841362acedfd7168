# SPDX-License-Identifier: Apache-2.0
"""What a type checker says about calls of heed: the words there are, and the type of what comes back."""

import pathlib
import re
import subprocess
import sys

import pytest

pytest.importorskip("mypy")
# Read for what they say of heed: the libraries they use it with take mypy twenty seconds.
CONFIG = "[mypy]\n[mypy-torch.*,transformers.*,jax.*]\nfollow_imports = skip\n"
EXAMPLES = pathlib.Path(__file__).parents[2] / "examples/python"

START = """
from typing import Any
import numpy as np, numpy.typing, heed
x = np.ones((1, 2, 3, 4), np.float32)
keep = np.ones((3, 3), bool)
flag = bool(input())
layer = heed.AttentionLayer(8, 2, bias="qkv", head_map="tiled")
cache = heed.KvCache(1, 1, 1, 8, layout="paged", quantize="int8", rotate_at="read")
"""

ACCEPTED = [
    'heed.attention(x, x, x, causal="ends", window=(1, None, "starts"), head_map="tiled", keep=keep).shape',
    "heed.attention(x, x, x, causal=True, return_scores=None, out=x).shape",
    "out, lse = heed.attention(x, x, x, return_lse=True); out.shape; lse.shape",
    'out, weights, scores = heed.attention(x, x, x, return_weights=True, return_scores="raw"); scores.shape',
    "heed.attention(x, x, x, return_weights=flag)",
    'heed.explain(x, x, x, causal="starts").splitlines()',
    'heed.plan(x, x, x)[0].choice == "not needed"',
    'layer(x[0], causal="ends").shape',
    'y, weights = layer(x[0], return_weights="average"); weights.shape',
    'layer.state_dict("llama")["q_proj.weight"].shape',
    'heed.Rotary(pairs="adjacent").pairs == "halves"',
    "heed.merge((x, x), heed.attention(x, x, x, return_lse=True))[0].shape",
]
REJECTED = [
    'heed.attention(x, x, x, causal="end")',
    'heed.attention(x, x, x, window=(1, 1, "start"))',
    'heed.attention(x, x, x, head_map="grouped")',
    'heed.attention(x, x, x, return_scores="all")',
    'heed.attention(x, x, x, return_weights="average")',
    "heed.attention(x, x, x, attn_mask=keep)",
    "heed.attention(x, x, x).splitlines()",
    "heed.attention(x, x, x, return_lse=True).shape",
    'heed.explain(x, x, x, causal="end")',
    'heed.plan(x, x, x, causal="end")',
    'heed.plan(x, x, x)[0].words',
    'layer(x[0], causal="end")',
    'layer(x[0], return_weights="mean")',
    "layer(x[0], key_padding_mask=keep)",
    'layer.state_dict("jax")',
    'heed.AttentionLayer(8, 2, bias="all")',
    'heed.AttentionLayer(8, 2, head_map="grouped")',
    'heed.KvCache(1, 1, 1, 8, layout="ring")',
    'heed.KvCache(1, 1, 1, 8, quantize="int4")',
    'heed.KvCache(1, 1, 1, 8, rotate_at="write")',
    'heed.Rotary(pairs="thirds")',
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Of all programs: mypy keeps there what it has read of NumPy."""
    return tmp_path_factory.mktemp("types")


def complaints(folder, *files):
    """line -> what mypy says of it."""
    (folder / "mypy.ini").write_text(CONFIG)
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", folder / "mypy.ini", "--follow-imports=silent", "--ignore-missing-imports",
         "--cache-dir", folder / "cache", *files],
        capture_output=True,
        text=True,
    )
    assert ran.returncode in (0, 1), ran.stdout + ran.stderr
    return {int(line): said for line, said in re.findall(r"^[^:\n]+:(\d+): error: (.*)$", ran.stdout, re.MULTILINE)}


def test_words_and_results_are_typed(folder):
    program = folder / "program.py"
    program.write_text(START + "\n".join(ACCEPTED + REJECTED) + "\n")
    said = complaints(folder, program)
    first = START.count("\n") + 1
    wrong = {first + n for n, _ in enumerate(ACCEPTED + REJECTED)} & said.keys()
    lines = dict(enumerate(ACCEPTED + REJECTED, first))
    assert [lines[n] for n in sorted(wrong)] == REJECTED, said


def test_the_examples_are_well_typed(folder):
    assert complaints(folder, *sorted(EXAMPLES.glob("*.py"))) == {}


def test_the_stub_is_well_typed(folder):
    import heed

    stub = folder / "stub.pyi"
    stub.write_text((pathlib.Path(heed.__file__).parent / "_heed.pyi").read_text())
    assert complaints(folder, stub) == {}
