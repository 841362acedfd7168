# SPDX-License-Identifier: Apache-2.0
"""heed.picture: what stands in SVG and PDF, read back from the files."""

import re
import sys
import xml.etree.ElementTree
import zlib

import numpy as np
import pytest

import heed
from test_view import causal_weights, random_weights

SVG = "{http://www.w3.org/2000/svg}"
WORDS = [f"word{n}" for n in range(40)]


def svg_of(tmp_path, weights, **options):
    heed.picture(weights, tmp_path / "a.svg", **options)
    return xml.etree.ElementTree.parse(tmp_path / "a.svg").getroot()


def texts_of(root):
    return [each.text for each in root.iter(f"{SVG}text")]


def placed(root):
    """(text, x, y, turned)"""
    for each in root.iter(f"{SVG}text"):
        x, y = map(int, re.search(r"translate\((-?\d+) (-?\d+)\)", each.get("transform")).groups())
        yield each.text, x, y, "rotate" in each.get("transform")


class Pdf:
    """A file of PDF as far as heed writes it: objects where the table says they are, streams unpacked."""

    def __init__(self, data):
        assert data.startswith(b"%PDF-1.5") and data.endswith(b"%%EOF\n")
        start = int(re.search(rb"startxref\n(\d+)\n%%EOF", data)[1])
        lines = data[start:].split(b"\n")
        assert lines[0] == b"xref"
        places = [int(line[:10]) for line in lines[3 : 2 + int(lines[1].split()[1])]]
        self.objects = {}
        for number, place in enumerate(places, 1):
            assert data[place:].startswith(b"%d 0 obj\n" % number)
            self.objects[number] = data[place : data.index(b"\nendobj\n", place)]
        assert b"/Root 1 0 R" in data[start:]

    def stream(self, number):
        head, _, packed = self.objects[number].partition(b"\nstream\n")
        length = int(re.search(rb"/Length (\d+)", head)[1])
        assert packed[length:] == b"\nendstream"
        return head, zlib.decompress(packed[:length])

    def texts(self):
        content = self.stream(4)[1].decode("latin-1")
        return [re.sub(r"\\([()\\])", r"\1", text) for text in re.findall(r"\(((?:[^()\\]|\\.)*)\) Tj", content)]

    def images(self):
        """(colours, shown or None) of the cells; the legend's is one row high."""
        for number, body in self.objects.items():
            if b"/Subtype/Image" not in body[:200] or b"/DeviceRGB" not in body[:300]:
                continue
            head, data = self.stream(number)
            width, height = (int(re.search(rb"/%s (\d+)" % name, head)[1]) for name in (b"Width", b"Height"))
            mask = re.search(rb"/SMask (\d+)", head)
            shown = np.frombuffer(self.stream(int(mask[1]))[1], np.uint8).reshape(height, width) if mask else None
            if height > 1:
                yield np.frombuffer(data, np.uint8).reshape(height, width, 3), shown


def pdf_of(tmp_path, weights, **options):
    heed.picture(weights, tmp_path / "a.pdf", **options)
    return Pdf((tmp_path / "a.pdf").read_bytes())


@pytest.mark.parametrize("heads, length", [(1, 3), (12, 40), (64, 20), (1, 200)])
def test_words_axes_captions_and_a_legend_are_text(tmp_path, heads, length):
    words = (WORDS * 5)[:length]
    weights = causal_weights(heads, length)
    texts = texts_of(svg_of(tmp_path, weights, tokens=words))
    for texts in (texts, pdf_of(tmp_path, weights, tokens=words).texts()):
        assert set(words) <= set(texts) and {"keys (looked at)", "queries (looking)", "weight: 0", "hidden by a mask"} <= set(texts)
        assert sum(text.startswith("head ") for text in texts) == heads
        assert not any("too many" in text for text in texts)


def test_words_do_not_touch(tmp_path):
    root = svg_of(tmp_path, random_weights(6, 40, 40), tokens=WORDS)
    rows = sorted({(x, y) for text, x, y, turned in placed(root) if text.startswith("word") and not turned})
    columns = sorted({x for text, x, y, turned in placed(root) if text.startswith("word") and turned})
    assert min(b[1] - a[1] for a, b in zip(rows, rows[1:], strict=False) if a[0] == b[0]) >= 10
    assert min(b - a for a, b in zip(columns, columns[1:], strict=False)) >= 10
    width, height = int(root.get("width")), int(root.get("height"))
    assert all(0 <= x <= width and 0 <= y <= height for _, x, y, _ in placed(root))


def test_words_that_would_not_be_read_are_counted_and_the_picture_says_so(tmp_path):
    words = [f"w{n}" for n in range(600)]
    for texts in (texts_of(svg_of(tmp_path, causal_weights(1, 600), tokens=words)), pdf_of(tmp_path, causal_weights(1, 600), tokens=words).texts()):
        assert any("600 queries by 600 keys are too many for their words" in text for text in texts)
        assert "w7" not in texts and "0" in texts and "100" in texts
    assert not any("too many" in text for text in texts_of(svg_of(tmp_path, causal_weights(1, 600))))


def test_marks_of_spaces_are_left_out_and_markup_is_text(tmp_path):
    tokens = ["Ġthe", "▁cat", " sat", "<b>(&)\\", "Ċ"]
    for texts in (texts_of(svg_of(tmp_path, random_weights(1, 5, 5), tokens=tokens)), pdf_of(tmp_path, random_weights(1, 5, 5), tokens=tokens).texts()):
        assert {"the", "cat", "sat", "<b>(&)\\", "\\n"} <= set(texts)


def test_several_layers_are_rows_and_heads_columns(tmp_path):
    layers = [causal_weights(3, 12, seed=n) for n in range(4)]
    root = svg_of(tmp_path, layers, tokens=WORDS[:12])
    captions = {text.split(", up")[0]: (x, y) for text, x, y, _ in placed(root) if "head " in text and "layer" in text.lower()}
    assert set(captions) == {f"Layer {n}, head {h}" for n in range(4) for h in range(3)}
    for h in range(3):
        assert len({captions[f"Layer {n}, head {h}"][0] for n in range(4)}) == 1
    for n in range(4):
        assert len({captions[f"Layer {n}, head {h}"][1] for h in range(3)}) == 1


def test_layers_and_heads_are_chosen(tmp_path):
    layers = [causal_weights(4, 8, seed=n) for n in range(5)]
    texts = texts_of(svg_of(tmp_path, layers, layers=[3, -1], heads=[2, 0]))
    assert [text.split(", up")[0] for text in texts if "head " in text and "Layer" in text] == [f"Layer {n}, head {h}" for n in (3, 4) for h in (2, 0)]
    pdf = pdf_of(tmp_path, layers, layers=3, heads=-1)
    assert "Layer 3" in pdf.texts(), "it is not said which layer that is"
    ((colours, shown),) = pdf.images()
    assert ((shown == 0) == np.triu(np.ones((8, 8), bool), 1)).all()
    darkest = colours.astype(int).sum(-1)[np.tri(8, dtype=bool)].argmin()
    assert darkest == layers[3][3][np.tri(8, dtype=bool)].argmax()


@pytest.mark.parametrize("theme", ["light", "dark", "print"])
def test_a_theme_has_its_paper_and_its_order(tmp_path, theme):
    weights = np.linspace(0, 1, 64, dtype=np.float32).reshape(1, 8, 8)
    root = svg_of(tmp_path, weights, theme=theme, causal=False)
    paper = root.find(f"{SVG}rect").get("fill")
    assert paper == {"light": "#ffffff", "dark": "#121418", "print": "#ffffff"}[theme]
    ((colours, shown),) = pdf_of(tmp_path, weights, theme=theme, causal=False).images()
    assert shown is None
    curved = colours.reshape(64, 3) / 255
    luminance = np.where(curved <= 0.04045, curved / 12.92, ((curved + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722]
    further = np.diff(luminance) if theme == "dark" else -np.diff(luminance)
    assert (further >= -1e-3).all() and further.sum() > 0.6  # colours have eight bits
    if theme == "print":
        assert (colours == colours[..., :1]).all()


def test_a_watched_run_is_drawn(tmp_path):
    showing = sys.modules[heed.view.__module__]
    weights = [causal_weights(2, 6, seed=n) for n in range(3)]

    class Watched:
        def shown_runs(self):
            layers = [showing.ShownLayer(f"Layer {n}", 2, 1, [showing.Rows(each[:, :4], np.triu(np.ones((6, 6), bool), 1)[:4]), showing.Rows(each[:, 4:], np.triu(np.ones((6, 6), bool), 1)[4:])]) for n, each in enumerate(weights)]
            return [showing.ShownRun("", 6, 6, 0, layers)]

    found = [colours for colours, _ in pdf_of(tmp_path, Watched(), tokens=WORDS[:6]).images()]
    assert len(found) == 6
    again = [colours for colours, _ in pdf_of(tmp_path, weights, tokens=WORDS[:6]).images()]
    assert all((a == b).all() for a, b in zip(found, again, strict=True))


REFUSALS = {
    "theme: 'blue' is neither 'light', 'dark' nor 'print'": {"theme": "blue"},
    "layers: 3 is none of the 2": {"layers": 3},
    "heads: -5 is none of the 4": {"heads": [-5]},
    "heads: none; there must be at least one": {"heads": []},
    "layers: 'all' is neither an integer nor a list of them": {"layers": "all"},
}


@pytest.mark.parametrize("sentence", REFUSALS)
def test_what_does_not_fit_is_refused_before_anything_is_written(tmp_path, sentence):
    with pytest.raises(heed.Error) as refused:
        heed.picture([causal_weights(4, 5)] * 2, tmp_path / "a.svg", **REFUSALS[sentence])
    assert str(refused.value) == sentence and not (tmp_path / "a.svg").exists()


def test_runs_of_different_lengths_are_refused(tmp_path):
    with pytest.raises(heed.Error, match="runs of 2 different lengths do not fit into one picture"):
        heed.picture({"a": causal_weights(1, 5), "b": causal_weights(1, 6)}, tmp_path / "a.svg")
