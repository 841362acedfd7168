# SPDX-License-Identifier: Apache-2.0
"""Every example runs and prints what it says, and every Python block of the README and of docs/ is true."""

import doctest
import os
import pathlib
import runpy
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests/structure"))
import pages  # noqa: E402  all pages are cut into blocks in the same way

GUIDE = ROOT / "docs/python.md"
PRINTS = {
    "decode_step.py": "the last row of prefill, bit for bit: True\n",
    "decode_with_cache.py": "two sequences of 100 tokens in 2 pages, 512 bytes per token\n"
    "as if computed at once, bit for bit: True\n"
    "lengths [120, 105]\n",
    "jax_gradients.py": "loss agrees: True\ngradients agree: True\n",
    "layer_from_torch.py": "output agrees: True\nweights agree: True\n",
    "padded_batch.py": "lengths [4, 2]\nthe same bits: True | finite: True\n",
    "same_curve.py": "twice: the same bits\non 2 processes: the same bits\n",
    "quickstart.py": "10.000  [1. 0. 0.]\n19.442  [0.056 0.944 0.   ]\n28.414  [0.053 0.053 0.894]\n",
    "split_and_merge.py": "merged equals whole: True\n",
    "torch_drop_in.py": "Tensor (2, 8, 5, 64) differs by less than 1e-5: True\n",
    "torch_training.py": "it learns: True\n",
}


def test_every_example_has_an_expected_output():
    assert sorted(path.name for path in (ROOT / "examples/python").glob("*.py")) == sorted(PRINTS)


# By name, as its processes import it.
def test_the_example_of_a_loss_curve_has_the_same_one_on_two_processes(settings_of_torch, monkeypatch, capsys):
    monkeypatch.syspath_prepend(ROOT / "examples/python")
    import same_curve

    assert same_curve.main(["--device", "cpu", "--steps", "2", "--length", "16", "--width", "128"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("heed on cpu: loss 5.") and printed.partition("\n")[2] == PRINTS["same_curve.py"]


@pytest.mark.parametrize("name", sorted(PRINTS.keys() - {"same_curve.py"}))  # which has processes of its own
def test_an_example_prints_what_it_should(name, capsys):
    runpy.run_path(str(ROOT / "examples/python" / name), run_name="__main__")
    assert capsys.readouterr().out == PRINTS[name]


def blocks_of(page):
    """The Python blocks of a page; those of docs/c.md are programs of tests/c/guide.py."""
    found = pages.blocks_of((ROOT / page).read_text(), page)
    return [block for block in found if block.language in ("pycon", "python") and page != "docs/c.md"]


PAGES = [page.relative_to(ROOT).as_posix() for page in pages.pages(ROOT)]


@pytest.fixture
def settings_of_torch():
    """What a page says of them holds for that page."""
    import torch

    threads, environment = torch.get_num_threads(), dict(os.environ)
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)
    os.environ.clear()
    os.environ.update(environment)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks_of(page)])
def test_the_blocks_of_a_page_are_true(page, tmp_path, monkeypatch, settings_of_torch):
    """In their order and with one set of names; a comment `<!-- python` before a block has code that the page does not show."""
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "__main__"}
    for block in filter(pages.is_run, blocks_of(page)):
        if block.hidden.startswith("python"):
            exec(compile(block.hidden.removeprefix("python"), block.place, "exec"), names)
        if block.language == "python":
            exec(compile("\n" * block.line + block.text, str(ROOT / page), "exec"), names)
            continue
        example = doctest.DocTestParser().get_doctest(block.text, names, page, str(ROOT / page), block.line)
        assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, clear_globs=False).failed == 0, block.place
        names = example.globs


def test_most_pages_that_show_python_are_run():
    assert sum(bool(list(filter(pages.is_run, blocks_of(page)))) for page in PAGES) >= 8


def test_the_guide_names_every_public_name():
    import heed

    text = GUIDE.read_text()
    assert [name for name in heed.__all__ if name not in text] == []
