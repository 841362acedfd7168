# SPDX-License-Identifier: Apache-2.0
"""heed view, and the pictures of heed run: what the files hold, and what is refused. HEED_TOOL names the tool."""

import json
import pathlib
import sys
import xml.etree.ElementTree

import numpy as np
import pytest

import numpy_layer as judge
from tool import TOOL, contents, heed, json_of, write_sample

sys.path.append(str(pathlib.Path(__file__).parents[1] / "python"))
from shown_page import ShownPage  # noqa: E402

pytestmark = pytest.mark.skipif(not TOOL, reason="HEED_TOOL does not name the tool")
PICTURES = pathlib.Path(__file__).parents[2] / "docs/pictures"
LAYER = ["--layer", "w.safetensors", "--heads", 4, "--input", "x.npy"]


def page_of(folder, *arguments):
    answer = json_of(folder, "view", *arguments)
    path = folder / answer["page"]
    assert answer["bytes"] == path.stat().st_size
    return ShownPage(path.read_text(encoding="utf-8"))


def test_the_example_shows_one_sentence_under_four_kinds_of_attention(tmp_path):
    page = page_of(tmp_path)
    runs = page.description["runs"]
    assert [(run["name"], run["layers"][0]["kv_heads"]) for run in runs] == [("MHA", 6), ("GQA", 3), ("MQA", 1), ("MHA, causal", 6)]
    words = page.description["tokens"][0]
    assert words[:3] == ["The", "cat", "that"]
    before, _ = page.exact(head=0)
    assert (before.argmax(-1)[1:] == np.arange(len(words) - 1)).all(), "head 0 attends to the word before"
    about, _ = page.exact(head=4)
    assert words[about[words.index("it")].argmax()] == "cat"
    # What a shared KV head costs: the same keys cost nothing, others sharpness.
    entropies = [[head["entropy"] for head in run["layers"][0]["heads"]] for run in runs]
    assert entropies[1][0] == pytest.approx(entropies[0][0], abs=1e-4)
    assert entropies[0][3] < entropies[1][3] < entropies[2][3]
    assert page.exact(run=3)[1][0].sum() == len(words) - 1, "a causal mask hides all later words"


MASKS = {
    "none": ([], np.ones((7, 7), bool)),
    "causal": (["--causal"], judge.causal(7, 7)),
    "window": (["--window", "2,1"], judge.window(7, 7, 2, 1)),
    "both": (["--causal", "--window", "3,3"], judge.causal(7, 7) & judge.window(7, 7, 3, 3)),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kv_heads", [4, 2, 1], ids=["mha", "gqa", "mqa"])
def test_a_layer_shows_the_weights_that_run_saves(tmp_path, kv_heads, mask):
    write_sample(tmp_path, kv_heads)
    flags, visible = MASKS[mask]
    page = page_of(tmp_path, *LAYER, *flags, "--entry", 1)
    json_of(tmp_path, "run", "--weights", *LAYER[1:], *flags, "--save-weights", "a.npy")
    saved = np.load(tmp_path / "a.npy")
    for head in range(4):
        found, hidden = page.exact(head=head)
        assert (hidden == ~visible).all()
        assert found[visible].tobytes() == saved[1, head][visible].tobytes()
    assert page.description["runs"][0]["layers"][0]["kv_heads"] == kv_heads


def test_stretches_show_the_bits_of_the_whole_with_rotary_and_many_tokens(tmp_path):
    random = np.random.default_rng(3)
    np.save(tmp_path / "x.npy", random.normal(size=(1, 2500, 32)).astype(np.float32))
    flags = ["--heads", 32, "--kv-heads", 8, "--rotary", "--causal"]
    json_of(tmp_path, "run", "--model-dim", 64, "--heads", 32, "--kv-heads", 8, "--batch", 1, "--length", 1, "--save-layer", "w.safetensors")
    np.save(tmp_path / "x.npy", random.normal(size=(1, 1200, 64)).astype(np.float32))
    page = page_of(tmp_path, "--layer", "w.safetensors", "--input", "x.npy", *flags, "--budget", 5)
    json_of(tmp_path, "run", "--weights", "w.safetensors", "--input", "x.npy", *flags, "--save-weights", "a.npy")
    saved = np.load(tmp_path / "a.npy")[0]
    for head in (0, 17, 31):
        top = page.head(head=head)["top"]
        values = page.words_of(top["weights"]).view(np.float32).reshape(1200, -1)
        assert (values[:, 0] == saved[head].max(-1)).all()


def test_weights_of_a_file_with_words_at_both_edges(tmp_path):
    weights = np.random.default_rng(0).random((2, 3, 4, 5)).astype(np.float32)
    np.save(tmp_path / "a.npy", weights)
    (tmp_path / "q.txt").write_bytes("eins\r\nzwei\n<b>\nשלום".encode())
    (tmp_path / "k.txt").write_text("1\n2\n3\n4\n5\n")
    page = page_of(tmp_path, "--weights", "a.npy", "--entry", 1, "--query-tokens", "q.txt", "--key-tokens", "k.txt", "--title", "Zwei & drei")
    assert page.description["tokens"] == [["eins", "zwei", "<b>", "שלום"], list("12345")]
    assert (page.exact(head=2)[0] == weights[1, 2]).all()
    assert page.description["title"] == "Zwei & drei" and "<title>Zwei &amp; drei</title>" in page.text


def test_two_files_are_two_runs(tmp_path):
    for name in "ab":
        np.save(tmp_path / f"{name}.npy", np.full((2, 4, 4), 0.25, np.float32))
    page = page_of(tmp_path, "--weights", "a.npy", "--compare", "b.npy")
    assert [run["name"] for run in page.description["runs"]] == ["a", "b"]


REFUSED = {
    "--tokens: 2 lines in 'w.txt' for 3 queries and 3 keys": ["--weights", "a.npy", "--tokens", "w.txt"],
    "--tokens: 'nothing.txt' is no file that can be read": ["--weights", "a.npy", "--tokens", "nothing.txt"],
    "--tokens: means nothing without --weights or --layer": ["--tokens", "w.txt"],
    "--input: must be said with --layer": ["--layer", "w.safetensors", "--heads", 4],
    "--heads: must be said with --layer, a file of matrices does not tell": ["--layer", "w.safetensors", "--input", "x.npy"],
    "--weights: means nothing beside --layer": [*LAYER, "--weights", "a.npy"],
    "--entry: 5 is not below the 2 batch entries of --input": [*LAYER, "--entry", 5],
    "--weights: head 0 gives query 0 the weight 0.3333": ["--weights", "a.npy", "--causal"],
    "--weights: shape (3) is not (batch, heads, queries, keys)": ["--weights", "flat.npy"],
    "--weights: shape (0, 0) has no weights": ["--weights", "empty.npy"],
    "--weights: i32 numbers are none of f16, bf16, f32, f64": ["--weights", "whole.npy"],
    "--input: i32 numbers are none of f16, bf16, f32, f64": ["--layer", "w.safetensors", "--heads", 4, "--input", "whole.npy"],
    "--causal: means nothing beside --play": ["--play", "--causal"],
    "--tokens: means nothing beside --play": ["--play", "--tokens", "w.txt"],
    "is negative, which no weight of attention is": ["--weights", "negative.npy"],
    "--out: there is no folder 'nowhere'": ["--out", "nowhere/a.html"],
    "--picture: 'a.gif' ends in neither .png, .svg nor .pdf": ["--picture", "a.gif"],
    "--theme: 'blue' is not light, dark or print": ["--picture", "a.svg", "--theme", "blue"],
    "--theme: means nothing without --picture": ["--theme", "dark"],
    "--theme: means nothing beside --play": ["--play", "--theme", "dark"],
    "--out: 'a.npy' is what --weights reads": ["--weights", "a.npy", "--out", "a.npy"],
    "--out: './w.txt' is what --tokens reads": ["--weights", "two.npy", "--tokens", "w.txt", "--out", "./w.txt"],
    "--out: 'x.npy' is what --input reads": [*LAYER, "--out", "x.npy"],
    "--budget: 0 is less than 1": ["--budget", 0],
    "query_tokens[1]: 10485760 bytes, at most 4096 can be shown": ["--weights", "two.npy", "--tokens", "long.txt"],
    "--tokens: line 1 of 'bytes.txt' is not UTF-8": ["--weights", "two.npy", "--tokens", "bytes.txt"],
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_bad_input_is_refused_by_a_sentence_and_writes_nothing(tmp_path, sentence):
    write_sample(tmp_path)
    np.save(tmp_path / "a.npy", np.full((1, 3, 3), 1 / 3, np.float32))
    np.save(tmp_path / "two.npy", np.full((1, 2, 2), 0.5, np.float32))
    np.save(tmp_path / "flat.npy", np.ones(3, np.float32))
    np.save(tmp_path / "empty.npy", np.ones((0, 0), np.float32))
    np.save(tmp_path / "whole.npy", np.ones((2, 2), np.int32))
    np.save(tmp_path / "negative.npy", -np.ones((2, 2), np.float32))
    (tmp_path / "w.txt").write_text("a\nb\n")
    (tmp_path / "long.txt").write_text("a\n" + "b" * (10 << 20))
    (tmp_path / "bytes.txt").write_bytes(b"\xff\nb\n")
    before = contents(tmp_path)
    ended = heed(tmp_path, "view", *REFUSED[sentence])
    assert ended.returncode == 2 and sentence in ended.stderr, ended.stderr
    assert contents(tmp_path) == before


def test_run_draws_what_it_computed(tmp_path):
    write_sample(tmp_path)
    (tmp_path / "words.txt").write_text("\n".join("abcdefg"))
    flags = ["--weights", "w.safetensors", "--heads", 4, "--input", "x.npy", "--causal", "--words", "words.txt"]
    answer = json_of(tmp_path, "run", *flags, "--picture", "heads.svg")
    assert answer["files"] == ["heads.svg"]
    svg = (tmp_path / "heads.svg").read_text()
    assert all(f">head {n}, up to " in svg for n in range(4)) and ">g</text>" in svg
    shown = heed(tmp_path, "run", *flags, "--show").stdout
    assert shown.count("head ") == 4 and "           a " in shown and "██············" in shown


PAPERS = {None: "#ffffff", "light": "#ffffff", "dark": "#121418", "print": "#ffffff"}


@pytest.mark.parametrize("theme", PAPERS)
def test_pictures_have_the_colours_of_their_theme(tmp_path, theme):
    write_sample(tmp_path)
    flags = ["--theme", theme] if theme else []
    json_of(tmp_path, "view", *LAYER, "--picture", "view.svg", "--title", "Zwei & drei", *flags)
    json_of(tmp_path, "run", "--weights", *LAYER[1:], "--picture", "run.svg", *flags)
    assert ">Zwei &amp; drei</text>" in (tmp_path / "view.svg").read_text()
    for name in ("view.svg", "run.svg"):
        svg = xml.etree.ElementTree.parse(tmp_path / name).getroot()
        assert svg.find("{http://www.w3.org/2000/svg}rect").get("fill") == PAPERS[theme]
    json_of(tmp_path, "run", "--weights", *LAYER[1:], "--picture", "light.svg")
    assert ((tmp_path / "run.svg").read_bytes() == (tmp_path / "light.svg").read_bytes()) == (theme in (None, "light"))


def test_the_pictures_of_the_documents_are_made_by_these_commands(tmp_path):
    answer = json.loads(heed(tmp_path, "view", "--picture", "example.png", "--json").stdout)
    assert answer["page"] == "attention.html"
    assert (tmp_path / "example.png").read_bytes() == (PICTURES / "example.png").read_bytes()


def starter(folder, body):
    """A PATH on which the machine's way to a browser is this shell script."""
    for name in ("xdg-open", "open"):
        path = folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
    return str(path.parent)


@pytest.mark.parametrize("flags", [[], ["--play"]], ids=["page", "playground"])
def test_open_without_a_browser_says_so_in_one_sentence_and_the_page_is_written(tmp_path, flags):
    for path in (str(tmp_path / "nothing"), starter(tmp_path, "echo no method available for opening >&2; exit 3")):
        ended = heed(tmp_path, "view", *flags, "--open", "--out", "a.html", PATH=path)
        assert ended.returncode == 0 and (tmp_path / "a.html").stat().st_size > 100_000
        assert len(ended.stderr.strip().splitlines()) == 1 and "no browser could be started here; 'a.html' is written" in ended.stderr
        (tmp_path / "a.html").unlink()
        quiet = heed(tmp_path, "view", *flags, "--open", "--json", "--out", "a.html", PATH=path)
        assert (quiet.returncode, quiet.stderr, json.loads(quiet.stdout)["opened"]) == (0, "", False)


def test_open_starts_the_browser_on_the_page(tmp_path):
    ended = heed(tmp_path, "view", "--open", "--json", "--out", "a.html", PATH=starter(tmp_path, 'echo "$1" >opened; echo noise'))
    assert (ended.returncode, ended.stderr) == (0, "") and json.loads(ended.stdout)["opened"] is True
    assert (tmp_path / "opened").read_text().strip() == str(tmp_path / "a.html")


def test_every_build_has_the_playground(tmp_path):
    ended = heed(tmp_path, "view", "--play", "--out", "play.html")
    assert ended.returncode == 0, ended.stderr
    assert 'id="heed">' in (tmp_path / "play.html").read_text(encoding="utf-8")
