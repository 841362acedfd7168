# SPDX-License-Identifier: Apache-2.0
"""Every example runs and prints what it says, and every Python block of docs/python.md and the README is true."""

import doctest
import pathlib
import re
import runpy

import pytest

ROOT = pathlib.Path(__file__).parents[2]
GUIDE = ROOT / "docs/python.md"
PRINTS = {
    "decode_step.py": "the last row of prefill, bit for bit: True\n",
    "decode_with_cache.py": "two sequences of 100 tokens in 2 pages, 512 bytes per token\n"
    "as if computed at once, bit for bit: True\n"
    "lengths [120, 105]\n",
    "jax_gradients.py": "loss agrees: True\ngradients agree: True\n",
    "layer_from_torch.py": "output agrees: True\nweights agree: True\n",
    "padded_batch.py": "lengths [4, 2]\nthe same bits: True | finite: True\n",
    "quickstart.py": "10.000  [1. 0. 0.]\n19.442  [0.056 0.944 0.   ]\n28.414  [0.053 0.053 0.894]\n",
    "split_and_merge.py": "merged equals whole: True\n",
    "torch_drop_in.py": "Tensor (2, 8, 5, 64) differs by less than 1e-5: True\n",
    "torch_training.py": "it learns: True\n",
}


def test_every_example_has_an_expected_output():
    assert sorted(path.name for path in (ROOT / "examples/python").glob("*.py")) == sorted(PRINTS)


@pytest.mark.parametrize("name", sorted(PRINTS))
def test_an_example_prints_what_it_should(name, capsys):
    runpy.run_path(str(ROOT / "examples/python" / name), run_name="__main__")
    assert capsys.readouterr().out == PRINTS[name]


def blocks(page):
    """(line, text) of every Python block of a page that shows results."""
    text = page.read_text()
    return [
        (text[: found.start()].count("\n") + 1, found[1])
        for found in re.finditer(r"^```pycon\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]


@pytest.mark.parametrize("page, least", [(GUIDE, 5), (ROOT / "README.md", 1)], ids=["guide", "readme"])
def test_the_blocks_of_a_page_are_true(page, least):
    names: dict = {}
    failed = 0
    assert len(blocks(page)) >= least
    for line, text in blocks(page):
        example = doctest.DocTestParser().get_doctest(text, names, page.name, str(page), line)
        failed += doctest.DocTestRunner().run(example, clear_globs=False).failed
        names = example.globs
    assert failed == 0


def test_the_guide_names_every_public_name():
    import heed

    text = GUIDE.read_text()
    assert [name for name in heed.__all__ if name not in text] == []


def test_the_files_the_guide_links_to_exist():
    links = re.findall(r"\]\(([^)#:]+)\)", GUIDE.read_text())
    assert links and [link for link in links if not (GUIDE.parent / link).exists()] == []
