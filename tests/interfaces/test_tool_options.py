# SPDX-License-Identifier: Apache-2.0
"""Every option of attention() is a flag of the tool, and means what it means in Python."""

import numpy as np
import pytest

import heed as library
from tool import TOOL, heed, json_of, write_sample

pytestmark = pytest.mark.skipif(not TOOL, reason="HEED_TOOL does not name the tool")

LOADED = ["--weights", "w.safetensors", "--heads", 4, "--input", "x.npy"]
SEEN = np.random.default_rng(5).random((2, 4, 7, 7)) < 0.6
SLOPES = np.array([0.5, 0.25, 1.0, 0.125], np.float32)
BIAS = np.random.default_rng(6).normal(size=(4, 7, 7)).astype(np.float32)
SINK = np.array([0.5, -1.0, 2.0, 0.0], np.float32)

# keyword -> flags and files, and what says the same to AttentionLayer
OPTIONS = {
    "scale": (["--scale", 0.2], {}, {"scale": 0.2}),
    "softcap": (["--softcap", 3], {}, {"softcap": 3.0}),
    "sink": (["--sink", "s.npy"], {"s": SINK}, {"sink": SINK}),
    "bias": (["--bias", "b.npy"], {"b": BIAS}, {"bias": BIAS}),
    "alibi": (["--alibi", "a.npy"], {"a": SLOPES}, {"alibi": SLOPES}),
    "key_lengths": (["--key-lengths", "l.npy"], {"l": np.array([3, 7])}, {"key_lengths": [3, 7]}),
    "document": (["--document", "d.npy"], {"d": np.arange(7) // 3}, {"document": np.arange(7) // 3}),
    "keep": (["--keep", "m.npy"], {"m": SEEN}, {"keep": SEEN}),
    "hide": (["--hide", "m.npy"], {"m": SEEN[:, :1]}, {"hide": SEEN[:, :1]}),
    "tree": (["--tree", "m.npy"], {"m": SEEN}, {"tree": SEEN}),
    "front": (["--window", "1,0", "--front", 2], {}, {"window": (1, 0), "front": 2}),
    "causal": (["--causal", "--softcap", 2], {}, {"causal": True, "softcap": 2.0}),
}
# Of a row of the batch, a cache or memory of the caller's; what is returned; or the layer's own, which a case below asks for.
NO_FLAG = {
    "cache", "sequences", "query_starts", "key_starts", "query_lengths", "query_document", "layout", "out", "return_weights",
    "return_lse", "return_scores",
}  # fmt: skip
OF_THE_LAYER = {"head_map", "dropout", "seed", "kernel", "threads", "window"}


def write_files(folder, files):
    weights, x = write_sample(folder)
    for name, array in files.items():
        np.save(folder / f"{name}.npy", array)
    return weights, x


@pytest.mark.parametrize("name", OPTIONS)
def test_a_flag_means_what_the_keyword_means(tmp_path, name):
    flags, files, keywords = OPTIONS[name]
    _, x = write_files(tmp_path, files)
    json_of(tmp_path, "run", *LOADED, *flags, "--out", "y.npy", "--save-weights", "w.npy")
    layer = library.AttentionLayer(16, 4, 2)
    layer.load(str(tmp_path / "w.safetensors"))
    y, weights = layer(x, return_weights=True, **keywords)
    assert np.load(tmp_path / "y.npy").tobytes() == y.tobytes()
    assert np.load(tmp_path / "w.npy").tobytes() == weights.tobytes()


def test_every_keyword_has_a_flag():
    asked = set(library._heed.keywords_of()) - NO_FLAG
    assert asked == set(OPTIONS) | OF_THE_LAYER
    for command in ("run", "check", "explain"):
        shown = heed(".", command, "--help").stdout
        assert [name for name in sorted(asked) if f"  --{name.replace('_', '-')} " not in shown] == []


def test_check_takes_all_of_them_at_once_both_ways(tmp_path):
    files = {"s": SINK, "b": BIAS, "a": SLOPES, "l": np.array([5, 7]), "m": SEEN}
    write_files(tmp_path, files)
    flags = [
        "check", "--batch", 2, "--heads", 4, "--kv-heads", 2, "--head-dim", 8, "--length", 7, "--causal", "--scale", 0.3, "--softcap", 4,
        "--sink", "s.npy", "--bias", "b.npy", "--alibi", "a.npy", "--key-lengths", "l.npy", "--keep", "m.npy", "--dropout", 0.25,
        "--head-map", "tiled", "--seed", 3,
    ]  # fmt: skip
    for way in ([], ["--backward"]):
        found = json_of(tmp_path, *flags, *way)
        assert not found["failed"] and sum("compared" in kernel for kernel in found["kernels"]) >= 2
        again = json_of(tmp_path, "check", *[word.strip("'") for word in found["problem"].split()])
        assert again["problem"] == found["problem"]


def test_pictures_show_what_the_options_do(tmp_path):
    distance = np.abs(np.arange(7)[:, None] - np.arange(7)[None, :]).astype(np.float32)
    write_files(tmp_path, {"a": SLOPES, "b": -SLOPES[:, None, None] * distance, "k": SEEN, "h": ~SEEN, "s": SINK})
    pictures = {}
    for flags in ("", "--alibi a.npy", "--bias b.npy", "--keep k.npy", "--hide h.npy", "--sink s.npy", "--softcap 0.5"):
        json_of(tmp_path, "run", *LOADED, *flags.split(), "--picture", "made.svg")
        pictures[flags] = (tmp_path / "made.svg").read_text()
    assert pictures["--alibi a.npy"] == pictures["--bias b.npy"]
    assert pictures["--keep k.npy"] == pictures["--hide h.npy"]
    assert len(set(pictures.values())) == 5
