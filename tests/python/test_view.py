# SPDX-License-Identifier: Apache-2.0
"""heed.view and heed.picture: what the page holds, against NumPy and Python's zlib; and input that is hostile."""

import re
import struct
import xml.etree.ElementTree
import zlib

import numpy as np
import pytest

import heed
from shown_page import HIDDEN, ShownPage, code_of, pooled


def random_weights(*shape, seed=0, sharpness=3.0):
    scores = np.random.default_rng(seed).normal(0, sharpness, shape)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True)).astype(np.float32)


def causal_weights(heads, length, seed=0):
    scores = np.random.default_rng(seed).normal(0, 2, (heads, length, length))
    scores[:, ~np.tri(length, dtype=bool)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True)).astype(np.float32)


def shown(*arguments, **options):
    return ShownPage(heed.view(*arguments, **options).html)


def test_small_weights_are_kept_to_the_bit():
    weights = random_weights(3, 17, 29)
    page = shown(weights)
    for head in range(3):
        found, hidden = page.exact(head=head)
        assert found.tobytes() == weights[head].tobytes() and not hidden.any()


def test_any_bits_come_back():
    bits = np.random.default_rng(1).integers(0, 2**31, (1, 300, 301), dtype=np.uint32)
    weights = bits.view(np.float32)
    found, _ = shown(weights).exact()
    assert found.tobytes() == weights.tobytes()


def test_causal_weights_are_hidden_above_the_diagonal_and_zeros_are_not():
    weights = causal_weights(2, 9)
    weights[0, 5, 3] = 0
    found, hidden = shown(weights).exact()
    assert (hidden == ~np.tri(9, dtype=bool)).all()
    assert found[5, 3] == 0
    _, hidden = shown(weights, causal=False).exact()
    assert not hidden.any()


def test_hide_says_what_is_hidden():
    hide = np.random.default_rng(2).random((2, 7, 5)) < 0.4
    weights = np.where(hide, 0, 0.2).astype(np.float32)
    page = shown(weights, hide=hide)
    for head in range(2):
        assert (page.exact(head=head)[1] == hide[head]).all()


@pytest.mark.parametrize("made_by", ["numpy", "torch", "jax", "list"])
def test_causal_and_hide_are_joined_whoever_made_them(made_by):
    hide = np.random.default_rng(3).random((2, 1, 7)) < 0.4
    both = hide | ~np.tri(7, dtype=bool)
    weights = np.where(both, 0, 0.2).astype(np.float32)
    if made_by == "torch":
        torch = pytest.importorskip("torch")
        given, mask = torch.tensor(weights), torch.tensor(hide)
    elif made_by == "jax":
        given, mask = (pytest.importorskip("jax").numpy.asarray(x) for x in (weights, hide))
    else:
        given, mask = weights, hide.tolist() if made_by == "list" else hide
    page = shown(given, causal=True, hide=mask)
    for head in range(2):
        assert (page.exact(head=head)[1] == both[head]).all()


def test_a_hide_with_a_batch_is_that_of_the_entry():
    hide = np.random.default_rng(4).random((3, 1, 1, 5)) < 0.5
    weights = np.where(hide, 0, 0.2).astype(np.float32) * np.ones((3, 2, 5, 5), np.float32)
    assert (shown(weights, hide=hide, entry=2, causal=False).exact()[1] == hide[2]).all()


@pytest.mark.parametrize("extents", [(130, 130), (257, 100), (1, 300), (70, 1)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_every_level_is_numpys(extents, is_causal):
    weights = random_weights(2, *extents)
    hide = ~np.tri(*extents, extents[1] - extents[0], dtype=bool) if is_causal else np.zeros(extents, bool)
    weights[:, hide] = 0
    page = shown(weights, hide=hide, budget=200_000 + extents[0] * extents[1])
    for head in range(2):
        levels = page.head(head=head)["levels"]
        assert len(levels) >= 2 or max(extents) <= 64
        for level in levels:
            largest, mean, hidden = pooled(weights[head], level["pool"], hide)
            for kind, expected in (("max", largest), ("mean", mean)):
                codes = page.level(level, kind).astype(np.int64)
                assert ((codes == HIDDEN) == hidden).all()
                # Where the logarithm lies between two codes, single precision may choose the other.
                off = np.abs(codes - code_of(expected))[~hidden]
                assert off.max(initial=0) <= 1 and (off > 0).mean() < 0.001 + 1 / off.size, kind


def test_a_page_stays_below_every_budget_that_is_not_too_small():
    weights = random_weights(2, 257, 100)
    for budget in range(200_000, 300_000, 10_000):
        assert len(shown(weights, budget=budget).text.encode()) <= budget


def test_what_is_not_kept_whole_has_the_exact_largest_weights_of_every_row():
    weights = random_weights(1, 400, 400)
    page = shown(weights, budget=400_000)
    head = page.head()
    assert head["exact"] is None
    count = head["top"]["count"]
    keys = page.words_of(head["top"]["keys"]).reshape(400, count)
    values = page.words_of(head["top"]["weights"]).view(np.float32).reshape(400, count)
    expected = np.argsort(-weights[0], kind="stable", axis=-1)[:, :count]
    assert count >= 1 and (keys == expected).all()
    assert (values == np.take_along_axis(weights[0], expected, -1)).all()


def test_statistics_are_numpys():
    weights = causal_weights(3, 50)
    page = shown(weights)
    place = np.arange(50)
    distance = place[:, None] - place[None, :]
    for head in range(3):
        w, facts = weights[head].astype(np.float64), page.head(head=head)
        logarithm = np.log2(w, where=w > 0, out=np.zeros_like(w))
        assert facts["entropy"] == pytest.approx(-(w * logarithm).sum() / 50, rel=1e-5)
        assert facts["first"] == pytest.approx(w[:, 0].mean(), rel=1e-6)
        assert facts["distance"] == pytest.approx((w * np.abs(distance)).sum() / 50, rel=1e-6)
        assert facts["back"][0] == pytest.approx(np.trace(w) / 50, rel=1e-6)
        assert facts["back"][2] == pytest.approx(w[(distance == 2) | (distance == 3)].sum() / 50, rel=1e-6)
        assert facts["ahead"] == []
        assert facts["largest"] == w.max() and facts["seen"] == 50 * 51 // 2
        received = page.words_of(facts["received"]).view(np.float32)
        assert received == pytest.approx(w.sum(0) / np.arange(50, 0, -1), rel=1e-5)


def test_layers_runs_groups_and_batch_entries():
    layers = [random_weights(2, 4, 6, 6, seed=n) for n in range(3)]
    page = shown({"MHA": layers, "GQA": layers[::-1]}, kv_heads=2, entry=1, names=["a", "b", "c"])
    assert [run["name"] for run in page.description["runs"]] == ["MHA", "GQA"]
    assert [layer["name"] for layer in page.description["runs"][1]["layers"]] == ["a", "b", "c"]
    assert page.description["runs"][0]["layers"][0]["kv_heads"] == 2
    assert (page.exact(1, 0, 3)[0] == layers[2][1, 3]).all()


@pytest.mark.parametrize("library", ["torch", "jax", "float16", "float64", "list"])
def test_weights_of_any_library(library):
    weights = random_weights(2, 5, 5)
    if library == "torch":
        given = pytest.importorskip("torch").tensor(weights, requires_grad=True)
    elif library == "jax":
        given = pytest.importorskip("jax").numpy.asarray(weights)
    elif library == "list":
        given = weights.tolist()
    else:
        given = weights.astype(library)
    found, _ = shown(given).exact(head=1)
    assert found == pytest.approx(weights[1], rel=1e-3 if library == "float16" else 0)


EVIL = [
    "</script><script>alert(1)</script>", "<!--", "]]>", "&lt;b&gt;", "\u2028\u2029", "\x00\x07\x1b[2J", "\u202eright to left",
    "שלום", "👩‍👩‍👧‍👦", "a" * 4000, "", " ", "'\"`", "\\u003c/script>", "{{title}}", "\ufeff", "\u200b",
]  # fmt: skip


def test_no_token_becomes_markup_and_all_come_back():
    n = len(EVIL)
    text = heed.view(random_weights(1, n, n), tokens=EVIL, title=EVIL[0], names=[EVIL[0]]).html
    assert ShownPage(text).description["tokens"][0] == EVIL
    assert text.count("<script") == text.count("</script>") and "alert(1)</" not in text.replace("\\u003c", "")
    assert "\u2028" not in text and "\x1b" not in text


def test_a_strict_policy_names_the_very_script_and_style():
    import base64
    import hashlib

    text = heed.view(np.eye(2)).html
    for tag, directive in (("script type=\"module\" async", "script-src"), ("style", "style-src")):
        (body,) = re.findall(rf"<{tag}>(.*?)</{tag.split()[0]}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in text
    assert "default-src 'none'" in text
    assert not re.findall(r"(?:src|href)=", text)


REFUSED = {
    "tokens: a str is not a list of tokens; split it": lambda w: heed.view(w, tokens="a b c"),
    "query_tokens: 2 for 3 queries": lambda w: heed.view(w, tokens=["a", "b"]),
    "key_tokens: 4 for 3 keys": lambda w: heed.view(w, key_tokens=list("abcd")),
    "query_tokens[1]: 10485760 bytes, at most 4096 can be shown": lambda w: heed.view(w, tokens=["a", "b" * (10 << 20), "c"]),
    "query_tokens[0]: int is not a str": lambda w: heed.view(w, tokens=[1, 2, 3]),
    "query_tokens[0]: is no text": lambda w: heed.view(w, tokens=["\ud800", "b", "c"]),
    "is negative, which no weight of attention is": lambda w: heed.view(-w),
    "weights: 1 axes are neither": lambda w: heed.view(w[0, 0]),
    "entry: 2 is not below the 1 batch entries of weights": lambda w: heed.view(w[None], entry=2),
    "names: 1 for 2 layers": lambda w: heed.view([w, w], names=["a"]),
    "weights: layer 1 is (2, 3), layer 0 (3, 3)": lambda w: heed.view([w, w[:, :2]]),
    "kv_heads: 2 does not divide heads: 1": lambda w: heed.view(w, kv_heads=2),
    'causal: 2 queries, 3 keys; say "ends" (decode) or "starts"': lambda w: heed.view(w[:, :2], causal=True),
    "hide: (1, 3, 5) does not broadcast to (heads, queries, keys): (1, 3, 3)": lambda w: heed.view(w, hide=np.zeros((1, 3, 5), bool)),
    "hide: (2, 3) does not broadcast": lambda w: heed.view(np.tril(w), causal=True, hide=np.zeros((2, 3), bool)),
    "hide.dtype: int64 is not bool": lambda w: heed.view(w, hide=np.zeros((3, 3), int)),
    "head 0, query 0, key 1 is hidden by the mask that came with it": lambda w: heed.view(w, causal=True),
    "head 0, query 1, key 0 is hidden by the mask": lambda w: heed.picture(w, "head.png", hide=np.arange(9).reshape(3, 3) == 3),
    "title: NoneType is not a str": lambda w: heed.view(w, title=None),
    "budget: NoneType is not an integer": lambda w: heed.view(w, budget=None),
    "entry: str is not an integer": lambda w: heed.view(w[None], entry="x"),
    "entry: 1, but weights of 3 axes have no batch": lambda w: heed.view(w, entry=1),
    "kv_heads: 0 does not divide heads: 1": lambda w: heed.view(w, kv_heads=0),
    "weights: an empty dict has no run to show": lambda w: heed.view({}),
    "weights: an empty list has no layer to show": lambda w: heed.view({"a": []}),
    "query_tokens: 0 for 3 queries": lambda w: heed.view(w, tokens=[]),
    "key_tokens: 0 for 3 keys": lambda w: heed.view(w, key_tokens=()),
    "tokens: int is not a list of tokens": lambda w: heed.view(w, tokens=3),
    "names: a str is not a list of names": lambda w: heed.view(w, names="a"),
    "causal: 1 is neither True, False": lambda w: heed.view(w, causal=1),
    "layers: 2 is none of the 2": lambda w: heed.picture([w, w], "head.png", layers=2),
    "budget: 10 bytes, a page takes at least 200000": lambda w: heed.view(w, budget=10),
    "tokens: names queries and keys at once": lambda w: heed.view(w, tokens=list("abc"), key_tokens=list("abc")),
    "run: 0 queries and 3 keys": lambda w: heed.view(w[:, :0]),
    "ends in neither .png, .svg nor .pdf": lambda w: heed.picture(w, "head.gif"),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_cannot_be_shown_is_refused_by_a_sentence(sentence):
    with pytest.raises((heed.Error, heed.KindError), match=re.escape(sentence)):
        REFUSED[sentence](random_weights(1, 3, 3))


def test_weights_that_are_not_finite_or_sum_to_something_else_are_shown_and_counted():
    weights = random_weights(1, 40, 40)
    weights[0, 3, 5], weights[0, 4, 6] = np.nan, np.inf
    weights[0, 7] *= 2
    page = shown(weights)
    assert page.head()["not_finite"] == 2 and page.head()["greatest_sum"] == pytest.approx(2, rel=1e-5)
    assert page.exact()[0].tobytes() == weights[0].tobytes()


def test_a_page_is_written_whole_or_not_at_all(tmp_path):
    page = heed.view(np.eye(3))
    target = tmp_path / "attention.html"
    page.save(target)
    assert target.read_text() == page.html
    with pytest.raises(heed.Error, match="no such folder|cannot be|No such"):
        page.save(tmp_path / "nowhere" / "attention.html")
    with pytest.raises(heed.Error):
        page.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["attention.html"]


def test_a_notebook_gets_a_frame_of_its_own():
    frame = heed.view(np.eye(2), tokens=['"><script>', "b"])._repr_html_()
    assert frame.startswith("<iframe srcdoc=") and 'sandbox="allow-scripts"' in frame
    assert frame.count("<") == 2  # the frame and its end: everything else is escaped


def png_pixels(data):
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(data):
        (size,), kind = struct.unpack(">I", data[at : at + 4]), data[at + 4 : at + 8]
        body = data[at + 8 : at + 8 + size]
        assert struct.unpack(">I", data[at + 8 + size : at + 12 + size])[0] == zlib.crc32(kind + body)
        chunks[kind], at = body, at + 12 + size
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, 3 * width + 1)
    assert (rows[:, 0] == 0).all()
    return rows[:, 1:].reshape(height, width, 3)


def test_a_png_has_a_dark_diagonal_for_the_identity(tmp_path):
    heed.picture(np.eye(6), tmp_path / "head.png", causal=False)
    pixels = png_pixels((tmp_path / "head.png").read_bytes())
    ones = (pixels == np.array([28, 36, 102], np.uint8)).all(-1)
    assert 0 <= ones.sum() - 6 * 48 * 48 <= 40, "the diagonal, and the end of the legend"


@pytest.mark.parametrize("heads, length", [(1, 3), (4, 40), (13, 700)])
def test_pictures_of_every_size_are_well_formed(tmp_path, heads, length):
    weights = random_weights(heads, length, length)
    tokens = (EVIL * length)[:length]
    heed.picture(weights, tmp_path / "heads.png", tokens=tokens)
    assert png_pixels((tmp_path / "heads.png").read_bytes()).shape[1] > 100
    heed.picture(weights, tmp_path / "heads.svg", tokens=tokens)
    tree = xml.etree.ElementTree.parse(tmp_path / "heads.svg")
    assert len(tree.findall(".//{http://www.w3.org/2000/svg}path")) >= heads




class Watched:
    """What heed.transformers.watch records, to heed.picture."""

    def __init__(self, layers):
        self.layers = layers

    def shown_runs(self):
        layers = [heed._showing.ShownLayer(f"Layer {n}", 1, 1, [heed._showing.Rows(w)]) for n, w in enumerate(self.layers)]
        return [heed._showing.ShownRun("", 4, 4, None, layers)]


def test_of_several_layers_a_picture_has_the_one_that_is_said(tmp_path):
    layers = [random_weights(1, 4, 4, seed=n) for n in range(3)]
    pictures = []
    for number in (0, 1, 2):
        for name, given, said in (("list", layers, number), ("end", layers, number - 3), ("run", Watched(layers), number)):
            heed.picture(given, tmp_path / f"{name}.png", layers=said, causal=False)
        pictures.append((tmp_path / "list.png").read_bytes())
        assert (tmp_path / "end.png").read_bytes() == (tmp_path / "run.png").read_bytes() == pictures[-1]
    assert len(set(pictures)) == 3
