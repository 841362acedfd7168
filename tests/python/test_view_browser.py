# SPDX-License-Identifier: Apache-2.0
"""The page in a real browser: it opens in silence, does what it says, and shows NumPy's numbers."""

import re

import numpy as np
import pytest

import browser
import heed
from screens import Screen
from test_view import EVIL, causal_weights, random_weights

LENGTH, LAYERS, HEADS = 24, 2, 4
WORDS = [f"word{n}" for n in range(LENGTH)]


@pytest.fixture(scope="module")
def tab():
    driver = browser.start()
    yield browser.Tab(driver)
    driver.quit()


@pytest.fixture(scope="module")
def weights():
    """run -> layer -> (heads, queries, keys)"""
    return {name: [causal_weights(HEADS, LENGTH, seed=10 * r + n) for n in range(LAYERS)] for r, name in enumerate("AB")}


@pytest.fixture(scope="module")
def page(tmp_path_factory, weights):
    path = tmp_path_factory.mktemp("page") / "attention.html"
    heed.view(weights, tokens=WORDS, kv_heads=2, title="Two runs").save(path)
    return path


def open_head(tab, page, address):
    tab.open(page, address)
    tab.until(lambda: tab.colours("#maps .frame canvas") > 8, "the map is blank")


def float_of(text):
    return np.float32(re.search(r"-?\d[\d.e-]*", text)[0])


def test_it_opens_without_an_error_and_asks_for_nothing(tab, page):
    tab.open(page)
    tab.until(lambda: tab.colours(".thumb canvas") > 5, "the first picture is blank")
    assert tab.complaints() == []
    assert {url.partition("#")[0] for url in tab.requests()} <= {page.as_uri()}
    assert tab.driver.title == "Two runs"


def test_what_is_not_there_yet_has_no_colours_and_is_waited_for(tab, page):
    tab.open(page)
    assert tab.colours("#nowhere canvas") == 0
    tab.driver.execute_script("setTimeout(() => document.body.append(Object.assign(document.createElement('b'), { id: 'late' })), 300)")
    assert tab.one("#late").tag_name == "b"


# Writes a page into a frame as far as its script and its first `cut` characters behind it, then, when told, the rest.
BEGIN = """
const [text, cut, done] = arguments;
document.body.replaceChildren();
const frame = document.createElement("iframe");
frame.style = "width: 1000px; height: 700px";
document.body.append(frame);
const page = frame.contentDocument;
const end = text.indexOf("</script>", text.indexOf('<script type="module"')) + 9 + cut;
page.open();
page.write(text.slice(0, end));
window.finish = () => { page.write(text.slice(end)); page.close(); };
const isDrawn = (canvas) => new Set(new Uint32Array(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.buffer)).size > 5;
const look = () => {
  const pictures = [...page.querySelectorAll(".thumb canvas")];
  if (pictures.length && pictures.every((each) => each.width > 1 && isDrawn(each))) done([page.readyState, pictures.length]);
  else setTimeout(look, 20);
};
look();
"""


def test_all_heads_are_drawn_before_the_page_is_whole_and_what_comes_later_is_waited_for(tab, tmp_path):
    text = heed.view(causal_weights(3, 200)).html
    assert len(text.split('<script type="module" async>')[1].split("</script>")[1:]) > 3, "nothing comes after the script"
    tab.driver.get("about:blank")
    tab.driver.set_script_timeout(20)
    assert tab.driver.execute_async_script(BEGIN, text, 2000) == ["loading", 3]
    tab.driver.switch_to.frame(0)
    tab.all(".thumb")[2].click()  # its weights are cut off in the middle
    tab.until(lambda: tab.text("#head-name") == "Head 2", "the head is not opened")
    tab.driver.switch_to.default_content()
    tab.driver.execute_script("finish()")
    tab.driver.switch_to.frame(0)
    tab.until(lambda: tab.colours("#maps .frame canvas") > 8 and tab.text("#pooled"), "the map is blank")
    tab.driver.switch_to.default_content()
    assert [complaint for complaint in tab.complaints() if "getImageData" not in complaint] == []  # that one is of this test


def test_every_head_of_every_layer_and_run_is_a_picture(tab, page):
    tab.open(page)
    assert tab.count(".thumb") == 2 * LAYERS * HEADS
    for nth in (0, 7, 15):
        tab.until(lambda: tab.colours(".thumb canvas", nth) > 5, f"picture {nth} is blank")  # noqa: B023
    assert [bracket.text for bracket in tab.all(".bracket")] == ["KV head 0", "KV head 1"] * 2, "who shares a KV head is marked, once for each run"
    labels = [thumb.get_attribute("aria-label") for thumb in tab.all(".thumb")]
    assert labels[5].startswith("A · Layer 1 · Head 1, Entropy ")


def test_a_click_opens_a_head_and_escape_goes_back(tab, page):
    tab.open(page)
    tab.all(".thumb")[6].click()
    tab.until(lambda: tab.one("#detail").is_displayed(), "the head does not open")
    assert tab.text("#head-name") == "A · Layer 1 · Head 2"
    tab.until(lambda: "head=2" in tab.address() and "layer=1" in tab.address(), tab.address())
    assert "Reads KV head 1" in tab.text("#group") and tab.count("#group button") == 2
    tab.press("\ue00c")
    tab.until(lambda: tab.one("#overview").is_displayed(), "Escape does not go back")
    assert tab.complaints() == []


def test_the_numbers_of_a_head_are_numpys(tab, page, weights):
    open_head(tab, page, "#run=1&layer=1&head=3")
    w = weights["B"][1][3].astype(np.float64)
    entropy = -(w * np.log2(w, where=w > 0, out=np.zeros_like(w))).sum() / LENGTH
    tab.until(lambda: tab.text("#numbers dd[data-measure=entropy]"), "the numbers are blank")
    numbers = {dd.get_attribute("data-measure"): dd.text for dd in tab.all("#numbers dd")}
    assert numbers["entropy"] == f"{entropy:.2f} bits"
    assert numbers["first"] == f"{100 * w[:, 0].mean():.1f} %"
    assert numbers["largest"] == f"{w.max():.3g}".ljust(4, "0") or float(numbers["largest"]) == pytest.approx(w.max(), rel=5e-3)


def test_the_weight_under_the_pointer_is_exact(tab, page, weights):
    open_head(tab, page, "#run=0&layer=0&head=1")
    canvas = tab.one("#maps .frame canvas")
    seen = 0
    for x, y in ((-150, 120), (-60, 80), (10, 200), (-190, -100), (90, 150), (150, -180)):
        tab.actions().move_to_element_with_offset(canvas, x, y).perform()
        tip = tab.text("#tip")
        place = re.search(r"query (\d+), key (\d+)", tip)
        if not place or tab.one("#tip").get_attribute("hidden"):
            continue
        query, key = map(int, place.groups())
        assert WORDS[query] in tip and WORDS[key] in tip
        if key > query:
            assert tab.text("#tip b") == "hidden"
        else:
            assert float_of(tab.text("#tip b")) == weights["A"][0][1][query, key]
            seen += 1
    assert seen >= 2


def test_arrow_keys_choose_a_weight_and_say_it(tab, page, weights):
    open_head(tab, page, "#run=0&layer=1&head=2&query=10&key=4")
    for keys, query, key in (("\ue015", 11, 4), ("\ue014", 11, 5), ("\ue013\ue013", 9, 5), ("\ue012", 9, 4)):
        tab.press(keys)
        tab.until(lambda: f"Query {query} to key {key}:" in tab.text("#chosen .cell"), tab.text("#chosen .cell"))  # noqa: B023
        assert float_of(tab.text("#chosen .cell").split(":")[1]) == weights["A"][1][2][query, key]
    listed = [float_of(item.get_attribute("title")) for item in tab.all("#chosen li button")]
    expected = np.sort(weights["A"][1][2][9])[::-1][: len(listed)]
    assert listed == list(expected)


def test_the_wheel_and_keys_zoom_and_zero_shows_the_whole(tab, page):
    from selenium.webdriver.common.actions.wheel_input import ScrollOrigin

    open_head(tab, page, "#head=0")
    tab.actions().scroll_from_origin(ScrollOrigin.from_element(tab.one("#maps .frame canvas"), 50, 50), 0, -400).perform()
    tab.until(lambda: "zoom=" in tab.address(), "the wheel does not zoom")
    zoomed = float(re.search(r"zoom=([\d.]+)", tab.address())[1])
    assert zoomed > 1.5
    tab.actions().drag_and_drop_by_offset(tab.one("#maps .frame canvas"), -80, -60).perform()
    tab.until(lambda: re.search(r"[#&]x=", tab.address()), "dragging does not move the map")
    tab.press("0")
    tab.until(lambda: "zoom=" not in tab.address(), "0 does not show the whole")
    tab.press("+")
    tab.until(lambda: "zoom=1.6" in tab.address(), "+ does not zoom")


def test_the_text_is_coloured_by_what_a_token_attends_to_and_by_who_attends_to_it(tab, page, weights):
    tab.open(page, "#run=0&layer=0&head=0&view=text")
    tab.until(lambda: tab.count("#text span") == LENGTH, "there is no text")
    tab.all("#text span")[12].click()
    tab.until(lambda: tab.count("#text span.chosen") == 1, "nothing is chosen")
    w = weights["A"][0][0]
    titles = [span.get_attribute("title") for span in tab.all("#text span")]
    assert [np.float32(title) for title in titles[:13]] == list(w[12, :13])
    assert set(titles[13:]) == {"hidden by a mask"} and tab.count("#text span.unseen") == LENGTH - 13
    strongest = int(w[12].argmax())
    assert "rgb" in tab.all("#text span")[strongest].get_attribute("style")
    tab.all("#direction button")[1].click()
    tab.until(lambda: tab.count("#text span.unseen") == 12, "earlier tokens cannot attend to it")
    titles = [span.get_attribute("title") for span in tab.all("#text span")]
    assert [np.float32(title) for title in titles[12:]] == list(w[12:, 12])


def test_a_word_of_the_text_is_not_broken_at_the_end_of_a_line(tab, tmp_path):
    words = [f"word{n}" for n in range(96)]
    heed.view(random_weights(1, 96, 96), tokens=words).save(tmp_path / "a.html")
    tab.open(tmp_path / "a.html", "#head=0&view=text")
    lines = tab.driver.execute_script("return [...document.querySelectorAll('#text span')].map((e) => [e.getClientRects().length, e.offsetTop])")
    assert len({top for _, top in lines}) > 1 and {pieces for pieces, _ in lines} == {1}


def test_parts_of_a_word_are_one_word_of_the_text_and_ends_of_sentences_have_no_space_before_them(tab, tmp_path):
    tokens = ["[CLS]", "tokens", "are", "un", "##break", "##able", ",", "are", "they", "?", "[SEP]"]
    heed.view(random_weights(1, 11, 11), tokens=tokens).save(tmp_path / "pieces.html")
    tab.open(tmp_path / "pieces.html")
    assert tab.text("#about blockquote") == "[CLS] tokens are unbreakable, are they? [SEP]"
    tab.open(tmp_path / "pieces.html", "#head=0&view=text")
    boxes = [(span.text, span.rect["x"], span.rect["x"] + span.rect["width"]) for span in tab.all("#text .passage span")]
    assert [text for text, _, _ in boxes] == [token.removeprefix("##") for token in tokens]
    gaps = {after[0]: after[1] - before[2] for before, after in zip(boxes, boxes[1:], strict=False)}
    assert max(gaps["break"], gaps["able"]) < 2 < 3 < min(gaps["are"], gaps["un"], gaps["they"])


def test_lines_are_drawn_between_tokens(tab, page):
    tab.open(page, "#head=0&view=lines&query=5")
    tab.until(lambda: tab.colours("#lines canvas") > 8, "there are no lines")
    assert "Lines from queries 0 to" in tab.one("#lines canvas").get_attribute("aria-label")


def test_two_runs_are_compared_with_their_difference(tab, page, weights):
    open_head(tab, page, "#run=0&layer=0&head=2")
    tab.choose("#compare", "1")
    tab.until(lambda: tab.count("#maps .frame canvas") == 3, "there are not three maps")
    assert [name.text for name in tab.all("#maps figcaption b")] == ["A", "B", "A − B"]
    tab.until(lambda: tab.colours("#maps .frame canvas", 2) > 8, "the difference is blank")
    tab.actions().move_to_element_with_offset(tab.all("#maps .frame canvas")[2], -40, 0).perform()
    query, key = map(int, re.search(r"query (\d+), key (\d+)", tab.text("#tip")).groups())
    difference = float(weights["A"][0][2][query, key]) - float(weights["B"][0][2][query, key])
    found = tab.text("#tip b")
    assert found == "hidden" if key > query else float(found) == pytest.approx(difference, rel=1e-4, abs=1e-9)


def test_heads_are_ordered_and_filtered_by_a_number(tab, page, weights):
    tab.open(page)
    first = {(r, l, h): w[h][:, 0].astype(np.float64).mean() for r, name in enumerate("AB") for l, w in enumerate(weights[name]) for h in range(HEADS)}
    order = sorted(first, key=first.get, reverse=True)
    tab.choose("#sort", "first")
    tab.until(lambda: tab.count(".sorted .thumb") == len(first), "the heads are not ordered")
    shown = [tuple(int(thumb.get_attribute(f"data-{name}")) for name in ("run", "layer", "head")) for thumb in tab.all(".thumb")]
    assert shown == order
    limit = (first[order[4]] + first[order[5]]) / 2
    tab.choose("#filter-by", "first")
    tab.choose("#filter-from", f"{limit:.6f}")
    tab.until(lambda: tab.count(".thumb") == 5, "the filter lets others through")
    assert tab.text("#shown-count") == f"5 of {len(first)} heads"
    tab.choose("#filter-from", "")
    tab.until(lambda: tab.count(".thumb") == len(first), "some heads stay away")
    per_cent = 100 * limit
    assert per_cent > 1
    tab.choose("#filter-from", f"{per_cent:.4f}")
    tab.until(lambda: tab.count(".thumb") == 5, "per cent are not understood")
    assert tab.text("#filter-unit").startswith("%")
    tab.choose("#filter-from", "100")
    tab.until(lambda: tab.count("#grid .none button") and not tab.count(".thumb"), "a head has all its weight on the first token")
    assert "No head is within these bounds. On the first token: " in tab.text("#grid .none")
    tab.one("#grid .none button").click()
    tab.until(lambda: tab.count(".thumb") == len(first), "the way back leads nowhere")


def test_the_next_head_is_that_of_the_order_shown(tab, page):
    tab.open(page, "#sort=first")
    order = [each.get_attribute("aria-label").split(",")[0] for each in tab.all(".thumb")]
    tab.all(".thumb")[0].click()
    tab.until(lambda: tab.text("#head-name") == order[0], tab.text("#head-name"))
    assert tab.one("#previous").get_attribute("aria-disabled") == "true"
    for name, act in ((order[1], lambda: tab.one("#next").click()), (order[2], lambda: tab.press("]")), (order[1], lambda: tab.press("["))):
        act()
        tab.until(lambda: tab.text("#head-name") == name, f"{tab.text('#head-name')} is not {name}")  # noqa: B023
    tab.press("i")
    tab.until(lambda: tab.one("#whose").is_displayed(), "there are no lines")
    assert [each.text for each in tab.all("#whose button")] == ["This head", "All heads of this layer"]


def test_an_open_page_follows_the_system_from_light_to_dark(tab, page):
    theme = lambda: tab.driver.execute_script("return document.documentElement.dataset.theme")  # noqa: E731
    prefer = lambda name: tab.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": name}]})  # noqa: E731
    try:
        prefer("light")
        tab.open(page)
        tab.until(lambda: theme() == "light", theme())
        prefer("dark")
        tab.until(lambda: theme() == "dark", "it stays light")
        assert "theme=" not in tab.address()
        tab.one("#theme").click()
        tab.until(lambda: theme() == "light", theme())
        prefer("light")
        tab.driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")  # it is told
        prefer("dark")
        tab.until(lambda: theme() == "dark", "what agrees with the system again follows it again")
    finally:
        prefer("")


def test_a_link_restores_what_was_seen(tab, page):
    open_head(tab, page, "#run=1&layer=1&head=1&zoom=2.5&x=4&y=6&scale=log&theme=dark&compare=0&query=9&key=7")
    tab.press("s")
    tab.until(lambda: "scale=log" not in tab.address(), "the address does not follow")
    address = tab.address()
    tab.open(page, address)
    tab.until(lambda: tab.count("#maps .frame canvas") == 3, "the comparison is gone")
    assert tab.text("#head-name") == "B · Layer 1 · Head 1"
    assert tab.driver.execute_script("return document.documentElement.dataset.theme") == "dark"
    tab.until(lambda: "Query 9 to key 7" in tab.text("#chosen .cell"), "the chosen weight is gone")
    assert "zoom=2.5" in address and tab.one("#scale [data-value=linear]").get_attribute("aria-pressed") == "true"


def test_an_address_from_outside_does_no_harm(tab, page):
    for address in ("#head=99&run=-3&zoom=NaN&x=Infinity", "#view=<img>&sort=constructor&theme=__proto__", "#%00%ff&query=1e99&filter=toString"):
        tab.open(page, address)
        assert tab.one("#overview").is_displayed()
    tab.open(page, "#head=0&zoom=1e9&x=-1e9&y=1e300&query=1.5&compare=77")
    assert tab.complaints() == []


def test_hostile_tokens_are_shown_as_what_they_are(tab, tmp_path):
    n = len(EVIL)
    heed.view(random_weights(1, n, n), tokens=EVIL, title=EVIL[0], names=[EVIL[0]]).save(tmp_path / "evil.html")
    open_head(tab, tmp_path / "evil.html", "#head=0&query=0")
    for view in ("t", "i", "m"):
        tab.press(view)
    tab.open(tmp_path / "evil.html", "#head=0&view=text&query=3")
    texts = [span.get_attribute("textContent") for span in tab.all("#text span")]
    assert texts[0] == EVIL[0] and texts[5] == "⟨0000⟩⟨0007⟩⟨001B⟩[2J" and texts[6] == "⟨202E⟩right to left"
    assert tab.driver.title == EVIL[0] and tab.text("#title") == EVIL[0]
    assert tab.complaints() == [] and tab.count("#text script") == 0


def test_a_long_input_says_that_it_is_pooled_and_how(tab, tmp_path):
    weights = causal_weights(1, 1500)
    heed.view(weights, budget=1_500_000).save(tmp_path / "long.html")
    open_head(tab, tmp_path / "long.html", "#head=0")
    assert re.search(r"every cell is the largest of (\d+) × \1 weights, in 8 bits", tab.text("#pooled")), tab.text("#pooled")
    tab.one("#pooling [data-value=mean]").click()
    tab.until(lambda: "is the mean of" in tab.text("#pooled"), "the mean is not shown")
    tab.open(tmp_path / "long.html", "#head=0&zoom=60&x=700&y=700&query=710&key=702")
    tab.until(lambda: "The page has no finer level" in tab.text("#pooled"), tab.text("#pooled"))
    largest = [float_of(item.get_attribute("title")) for item in tab.all("#chosen li button")]
    assert largest == list(np.sort(weights[0, 710])[::-1][: len(largest)]) and largest
    assert tab.complaints() == []


def test_queries_and_keys_may_be_two_sequences(tab, tmp_path):
    weights = random_weights(2, 5, 9)
    heed.view(weights, query_tokens=list("abcde"), key_tokens=list("123456789")).save(tmp_path / "cross.html")
    tab.open(tmp_path / "cross.html", "#head=1&view=text&query=2")
    tab.until(lambda: tab.count("#text span") == 14, "both sequences are there")
    titles = [span.get_attribute("title") for span in tab.all("#text .passage:last-child span")]
    assert [np.float32(title) for title in titles] == list(weights[1, 2])


def test_a_keyboard_reaches_everything_and_a_screen_reader_has_words(tab, page):
    tab.open(page)
    unnamed = tab.driver.execute_script(
        "return [...document.querySelectorAll('button, select, input, canvas[tabindex]')].filter((e) => !(e.getAttribute('aria-label') ||"
        " e.textContent.trim() || e.labels?.length || e.title)).map((e) => e.outerHTML)"
    )
    assert unnamed == []
    tab.press("?")
    tab.until(lambda: tab.one("#help").is_displayed(), "? shows no help")
    tab.press("\ue00c")
    tab.until(lambda: not tab.one("#help").is_displayed(), "Escape does not close the help")
    tab.press("d")
    tab.until(lambda: "theme=" in tab.address(), "D does not change the theme")


def test_weights_that_are_not_finite_are_told_from_hidden_ones_in_the_text(tab, tmp_path):
    weights = causal_weights(1, 6)
    weights[0, 5, 1:3] = np.nan, np.inf
    heed.view(weights, tokens=WORDS[:6], causal=True).save(tmp_path / "text.html")
    for address, titles in (
        ("#head=0&view=text&query=5", {1: "NaN", 2: "Infinity"}),
        ("#head=0&view=text&query=1&key=1&direction=from", {0: "hidden by a mask", 5: "NaN"}),
    ):
        tab.open(tmp_path / "text.html", address)
        tab.until(lambda: tab.count("#text span.chosen"), "no token is chosen")
        spans = tab.all("#text span")
        for n, title in titles.items():
            assert spans[n].get_attribute("title") == title
            assert ("unseen" in spans[n].get_attribute("class")) == (title == "hidden by a mask")
            assert ("214, 0, 108" in spans[n].value_of_css_property("background-color")) == (title != "hidden by a mask")
    assert tab.complaints() == []


def test_weights_beyond_all_numbers_leave_the_page_whole(tab, tmp_path):
    weights = random_weights(2, 6, 6)
    weights[0, 1, 2] = 3e38
    heed.view(weights).save(tmp_path / "huge.html")
    for address in ("", "#sort=entropy", "#head=0&query=1", "#head=0&query=1&view=text"):
        tab.open(tmp_path / "huge.html", address)
    assert tab.complaints() == []


def test_a_shorter_run_has_no_token_chosen_that_it_has_not(tab, tmp_path):
    heed.view({"long": random_weights(1, 6, 6), "short": random_weights(1, 4, 4)}).save(tmp_path / "two.html")
    for view in ("map", "text", "lines"):
        tab.open(tmp_path / "two.html", f"#head=0&query=5&key=5&view={view}")
        tab.press("]")
        tab.until(lambda: tab.text("#head-name") == "short · Head 0" and "Choose a token" in tab.text("#chosen"), tab.text("#chosen"))
    assert tab.complaints() == []


def test_a_difference_from_what_is_hidden_is_told_in_numbers(tab, tmp_path):
    whole = random_weights(1, 6, 6)
    heed.view({"causal": causal_weights(1, 6), "whole": whole}).save(tmp_path / "two.html")
    open_head(tab, tmp_path / "two.html", "#head=0&compare=1")
    canvas = tab.all("#maps .frame canvas")[2]
    tab.actions().move_to_element_with_offset(canvas, 90, -140).perform()
    tab.until(lambda: tab.one("#tip").is_displayed(), "nothing is said")
    query, key = (int(n) for n in re.search(r"query (\d+), key (\d+)", tab.text("#tip")).groups())
    assert key > query
    assert float(tab.text("#tip b")) == pytest.approx(-whole[0, query, key], rel=1e-5)


def test_a_frame_in_a_notebook_draws(tab, tmp_path):
    frame = heed.view(causal_weights(2, 8), tokens=WORDS[:8])._repr_html_()
    (tmp_path / "notebook.html").write_text(f"<!doctype html><meta charset=utf-8><body>{frame}", encoding="utf-8")
    tab.driver.get("about:blank")
    tab.complaints()
    tab.driver.get((tmp_path / "notebook.html").as_uri())
    tab.driver.switch_to.frame(0)
    try:
        tab.until(lambda: tab.count(".thumb") == 2, "the frame draws nothing")
        tab.all(".thumb")[1].click()
        tab.until(lambda: tab.one("#detail").is_displayed(), "a click does nothing")
    finally:
        tab.driver.switch_to.default_content()
    assert tab.complaints() == []


def test_infinity_is_no_per_cent(tab, tmp_path):
    weights = causal_weights(1, 6)
    weights[0, 3, 1] = np.inf
    heed.view(weights, tokens=WORDS[:6]).save(tmp_path / "infinite.html")
    open_head(tab, tmp_path / "infinite.html", "#head=0&query=3&key=1")
    tab.until(lambda: "Infinity" in tab.text("#said"), tab.text("#said"))
    assert "%" not in tab.text("#said")


def test_a_browser_that_cannot_unpack_it_is_told_so(tab, page):
    screen = Screen(tab)
    script = screen.command("Page.addScriptToEvaluateOnNewDocument", source="delete globalThis.DecompressionStream")["identifier"]
    try:
        tab.driver.get("about:blank")
        tab.complaints()
        tab.driver.get(page.as_uri())
        tab.until(lambda: tab.one("#missing").is_displayed(), "nothing is said")
        assert not any(each.is_displayed() for each in tab.all("main, #colours, #theme, #help-button")) and tab.complaints() == []
    finally:
        screen.command("Page.removeScriptToEvaluateOnNewDocument", identifier=script)


def test_without_javascript_the_message_stands_at_the_top(tab, page):
    screen = Screen(tab)
    screen.command("Emulation.setScriptExecutionDisabled", value=True)
    try:
        tab.driver.get("about:blank")
        tab.driver.get(page.as_uri())
        message = tab.one("noscript").rect  # selenium calls it hidden always
        assert message["height"] > 20 and message["y"] < 80
        assert not any(each.is_displayed() for each in tab.all("main, #colours, #theme, #help-button"))
    finally:
        screen.command("Emulation.setScriptExecutionDisabled", value=False)


@pytest.mark.parametrize("address", ["#theme=dark", "#theme=dark&head=0&query=4", "#theme=dark&head=0&view=table"])
def test_printed_it_is_light_and_whole(tab, page, address):
    screen = Screen(tab)
    tab.open(page, address)
    screen.command("Emulation.setEmulatedMedia", media="print")
    try:
        theme = "return document.documentElement.dataset.theme"
        tab.driver.execute_script("dispatchEvent(new Event('beforeprint'))")
        assert tab.driver.execute_script(theme) == "light"
        cut = "return [...document.querySelectorAll('body, main, #table, .facts, .scroll')].filter((e) => e.checkVisibility() && getComputedStyle(e).overflowY !== 'visible' && e.scrollHeight > e.clientHeight).length"
        assert tab.driver.execute_script(cut) == 0
        tab.driver.execute_script("dispatchEvent(new Event('afterprint'))")
        assert tab.driver.execute_script(theme) == "dark"
    finally:
        screen.command("Emulation.setEmulatedMedia", media="")


def test_zooming_by_key_without_a_choice_keeps_the_diagonal_where_it_was(tab, tmp_path):
    heed.view(causal_weights(2, 15)).save(tmp_path / "short.html")
    open_head(tab, tmp_path / "short.html", "#head=0")
    tab.press("+")
    tab.until(lambda: "zoom=" in tab.address(), "nothing is larger")
    x, y = (float(found[1]) if (found := re.search(rf"\b{name}=([\d.]+)", tab.address())) else 0.0 for name in "xy")
    assert x <= y + 0.1, f"the map begins at key {x:.1f} and query {y:.1f}: what is hidden fills it"
