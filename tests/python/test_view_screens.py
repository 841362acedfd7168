# SPDX-License-Identifier: Apache-2.0
"""The page on every screen: nothing lies over anything else, its colours are those of the legend, and it explains itself."""

import re

import numpy as np
import pytest

import browser
import heed
from screens import EVERY_SCREEN, SIZES, Screen
from test_view import causal_weights, random_weights

LENGTH, LAYERS, HEADS = 40, 3, 6
WORDS = "It was a bright cold day in April and the clocks were striking thirteen Winston Smith his chin nuzzled into his breast in an effort to escape the vile wind slipped quickly through the glass doors of Victory Mansions though".split()[:LENGTH]
VIEWS = ["", "#sort=first", "#filter=entropy", "#size=120", "#head=1", "#head=1&query=9&key=4", "#head=1&compare=1", "#head=2&view=text", "#head=2&view=text&query=9&key=9", "#head=2&view=text&query=9&key=4&list=all&rank=on",
         "#head=2&view=lines", "#head=2&view=lines&heads=all&query=12", "#head=2&view=table&query=3"]  # fmt: skip


@pytest.fixture(scope="module")
def tab():
    driver = browser.start()
    screen = Screen(browser.Tab(driver))
    screen.record_canvases()
    yield screen.tab
    driver.quit()


@pytest.fixture
def screen(tab):
    screen = Screen(tab)
    screen.resize((1400, 900))
    return screen


@pytest.fixture(scope="module")
def weights():
    """run -> layer -> (heads, queries, keys)"""
    return {name: [causal_weights(HEADS, LENGTH, seed=10 * r + n) for n in range(LAYERS)] for r, name in enumerate(("before", "after"))}


@pytest.fixture(scope="module")
def page(tmp_path_factory, weights):
    path = tmp_path_factory.mktemp("page") / "attention.html"
    heed.view(weights, tokens=WORDS, kv_heads=2, title="Two checkpoints of one model").save(path)
    return path


def settled(tab, page, address):
    tab.open(page, address)
    if "head=" in address:
        tab.until(lambda: tab.text("#chosen h2"), "nothing is said of the chosen token")


def set_hint(tab, seen):
    tab.driver.execute_script("localStorage.setItem('heed-view-hint', arguments[0])", "seen" if seen else "")


@EVERY_SCREEN
def test_nothing_lies_over_anything_else_and_nothing_scrolls_sideways(tab, page, size, theme):
    screen = Screen(tab)
    is_touched = screen.resize(size)
    tab.open(page)
    for address in VIEWS:
        screen.go(f"{address or '#'}&theme={theme}")
        screen.assert_in_order(is_touched, f"{address} at {size}, {theme}")
    assert tab.complaints() == []
    assert {url.partition("#")[0] for url in tab.requests()} <= {page.as_uri()}


@pytest.mark.parametrize(("size", "theme"), [(SIZES[0], "dark"), (SIZES[-1], "light")], ids=str)
def test_axe_finds_no_violation(tab, page, size, theme):
    screen = Screen(tab)
    screen.resize(size)
    tab.open(page)
    for address in VIEWS:
        screen.go(f"{address or '#'}&theme={theme}")
        assert screen.violations() == [], address


def test_a_long_page_keeps_its_order_too(tab, tmp_path):
    screen = Screen(tab)
    heed.view(causal_weights(32, 600), budget=2_000_000).save(tmp_path / "long.html")
    for size in SIZES:
        is_touched = screen.resize(size)
        tab.open(tmp_path / "long.html")
        for address in ("#", "#head=3&query=500&key=20", "#head=3&view=lines&heads=all&query=500", "#head=3&view=table&query=500"):
            screen.go(address)
            screen.assert_in_order(is_touched, f"{address} at {size}")
    assert tab.complaints() == []


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_link_opens_in_the_same_state_on_every_screen(tab, page, size):
    screen = Screen(tab)
    screen.resize(size)
    settled(tab, page, "#run=1&layer=2&head=4&view=text&query=11&key=11&scale=log&span=one&theme=dark&direction=from")
    assert tab.text("#head-name") == "after · Layer 2 · Head 4"
    pressed = {each.get_attribute("data-value") for each in tab.all("#colours [aria-pressed=true], #views [aria-pressed=true], #direction [aria-pressed=true]")}
    assert {"log", "one", "text", "from"} <= pressed
    assert tab.text("#text span.chosen") == WORDS[11]
    assert tab.driver.execute_script("return document.documentElement.dataset.theme") == "dark"


def centre(tab, selector):
    box = tab.driver.execute_script("const b = document.querySelector(arguments[0]).getBoundingClientRect(); return [b.left + 0.6 * b.width, b.top + 0.6 * b.height]", selector)
    return box


def zoom_of(tab):
    found = re.search(r"zoom=([\d.]+)", tab.address())
    return float(found[1]) if found else 1.0


def test_two_fingers_zoom_one_moves_and_a_tap_chooses(tab, page):
    screen = Screen(tab)
    screen.resize((390, 844))
    settled(tab, page, "#head=1")
    x, y = centre(tab, "#maps .frame canvas")
    screen.touch([(x - 10 - 8 * n, y) for n in range(8)], [(x + 10 + 8 * n, y) for n in range(8)])
    tab.until(lambda: zoom_of(tab) > 2, f"two fingers do not zoom: {tab.address()}")
    zoomed = zoom_of(tab)
    before = tab.address()
    screen.touch([(x - 9 * n, y - 7 * n) for n in range(8)])
    tab.until(lambda: tab.address() != before, "one finger does not move the map")
    assert zoom_of(tab) == zoomed
    screen.touch([(x, y)])
    tab.until(lambda: re.search(r"query=\d+&key=\d+", tab.address()), "a tap chooses nothing")
    query, key = map(int, re.search(r"query=(\d+)&key=(\d+)", tab.address()).groups())
    tab.until(lambda: f"“{WORDS[query]}”" in tab.text("#said") and f"“{WORDS[key]}”" in tab.text("#said"), tab.text("#said"))
    assert tab.complaints() == []


def test_a_finger_moves_the_page_past_a_map_that_is_seen_whole(tab, page):
    screen = Screen(tab)
    screen.resize((390, 844))
    for address, action in (("#head=1", "pan-y"), ("#head=1&zoom=3", "none")):
        settled(tab, page, address)
        assert tab.driver.execute_script("return document.querySelector('#maps .frame canvas').style.touchAction") == action


# Colours


def legend_pixel(tab, strength):
    return tuple(tab.driver.execute_script(
        "const c = document.querySelector('#legend canvas'); return [...c.getContext('2d').getImageData(Math.round(255 * arguments[0]), 0, 1, 1).data].slice(0, 3)", strength))  # fmt: skip


def legend_end(tab):
    return tab.driver.execute_script("return [...document.querySelectorAll('#legend .scale-bar:first-of-type .ticks span')].at(-1).textContent")


def strength(weight, scale, largest):
    if weight <= 0:
        return 0.0
    if scale == "linear":
        return min(1.0, weight / largest)
    return min(1.0, max(0.02, (np.log2(weight) + 20) / (np.log2(max(largest, 2.0**-19)) + 20)))


def assert_colours(tab, weights, scale, largest):
    spans = tab.driver.execute_script(
        "return [...document.querySelectorAll('#text .passage:last-child span')].map((e) => [getComputedStyle(e).backgroundColor, e.classList.contains('unseen')])"
    )
    assert len(spans) == len(weights)
    for (colour, unseen), weight in zip(spans, weights, strict=True):
        if not unseen:
            assert tuple(map(int, re.findall(r"\d+", colour))) == legend_pixel(tab, strength(float(weight), scale, largest)), (colour, weight)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("scale", ["linear", "log"])
@pytest.mark.parametrize("span", ["own", "one"])
def test_the_colours_of_the_text_are_the_legends(screen, tab, page, weights, scale, span, theme):
    settled(tab, page, f"#layer=1&head=2&view=text&query=17&key=17&scale={scale}&span={span}&theme={theme}")
    row = weights["before"][1][2][17]
    largest = float(row.max()) if span == "own" else 1.0
    assert_colours(tab, row, scale, largest)
    assert f"how much “{WORDS[17]}” looks at each token" in tab.text("#text .meaning")
    end = legend_end(tab)
    assert float(end) == pytest.approx(largest, rel=5e-3)
    tab.one("#direction [data-value=from]").click()
    tab.until(lambda: f"how much each token looks at “{WORDS[17]}”" in tab.text("#text .meaning"), tab.text("#text .meaning"))
    column = weights["before"][1][2][:, 17]
    assert_colours(tab, column, scale, float(column.max()) if span == "own" else 1.0)


def test_without_a_chosen_token_the_text_says_what_is_coloured(screen, tab, page, weights):
    settled(tab, page, "#layer=1&head=2&view=text")
    received = weights["before"][1][2].astype(np.float64).sum(0) / np.arange(LENGTH, 0, -1)
    assert "each token is looked at" in tab.text("#text .meaning") and "Choose a token" in tab.text("#text .meaning")
    assert not tab.one("#direction").is_displayed(), "a direction is lit, and nothing is chosen"
    assert_colours(tab, received.astype(np.float32), "linear", float(np.float32(received.max())))


def test_the_switch_of_what_colours_span_is_in_sight_and_works(screen, tab, page):
    settled(tab, page, "#head=2&view=text&query=30&key=30")
    assert [each.text for each in tab.all("#span button")] == ["Own range", "0 to 1"] and tab.one("#span").is_displayed()
    before = legend_end(tab)
    tab.one("#span [data-value=one]").click()
    tab.until(lambda: legend_end(tab) == "1" != before, "the legend does not follow")


# OKLab: a distance of 0.02 is about what an eye just sees.
def oklab(rgb):
    linear = [c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in rgb]
    lms = np.cbrt(np.array([[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566], [0.0883024619, 0.2817188376, 0.6299787005]]) @ linear)
    return np.array([[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099], [0.0259040371, 0.7827717662, -0.8086757660]]) @ lms


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_least_weight_what_is_hidden_and_the_paper_are_told_apart(screen, tab, page, theme):
    settled(tab, page, f"#head=1&theme={theme}")
    colour = lambda name: tuple(int(x, 16) for x in re.findall(r"[0-9a-f]{2}", tab.driver.execute_script("return getComputedStyle(document.documentElement).getPropertyValue(arguments[0])", name)))  # noqa: E731
    paper, hidden, hatch, least = oklab(colour("--paper")), oklab(colour("--hidden")), oklab(colour("--hatch")), oklab(legend_pixel(tab, 0))
    for a, b in ((paper, least), (hidden, least)):
        assert np.linalg.norm(a - b) > 0.035
    for a in (paper, hidden, least):
        assert np.linalg.norm(hatch - a) > 0.12  # the lines are seen


# A colour that sRGB has not would be clipped, and show an edge where the weights have none.
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_equal_steps_of_weight_are_steps_of_colour_that_look_alike(screen, tab, page, theme):
    tab.open(page, f"#theme={theme}")
    colours = np.array([oklab(legend_pixel(tab, n / 32)) for n in range(33)])
    lightness, steps = np.diff(colours[:, 0]), np.linalg.norm(np.diff(colours, axis=0), axis=1)
    assert (lightness < 0).all() if theme == "light" else (lightness > 0).all()
    assert steps.max() < 1.6 * steps.min(), steps.round(4)


# The overview


def test_the_overview_says_what_it_shows(screen, tab, page):
    tab.open(page)
    set_hint(tab, seen=False)
    tab.open(page)
    assert tab.text("#about blockquote").startswith("It was a bright cold day")
    reading = tab.text("#about .reading")
    assert "Rows are queries" in reading and "columns are keys" in reading and "Choose a head" in reading
    assert "0 bits: it looks at one key" in tab.text("#measure-note")
    assert "how many keys a query spreads over" in tab.one(".thumb").get_attribute("title")
    assert tab.count("#legend canvas") == 1 and "the head’s largest" in tab.text("#legend")
    tab.one(".hint button").click()
    assert tab.count(".hint") == 0
    tab.open(page)
    assert tab.count(".hint") == 0, "the hint comes back"


def test_the_first_screen_of_a_telephone_has_heads_on_it(tab, page):
    screen = Screen(tab)
    screen.resize((390, 844))
    tab.open(page)
    set_hint(tab, seen=False)
    tab.open(page)
    assert tab.count(".hint") == 1
    box = tab.one(".thumb").rect
    assert box["y"] + box["height"] < 844, "what the page is about lies below the first screen"
    assert not tab.one("#measure-note").is_displayed(), "a note explains numbers that small pictures do not show"


def test_what_sharing_keys_saves_is_said(screen, tab, page):
    tab.open(page)
    assert "6 heads over 2 KV heads (1/3 of the KV cache of multi-head attention, MHA)" in tab.text(".run .quiet")


def test_a_button_leads_back_to_all_heads(screen, tab, page):
    for size in SIZES:
        screen.resize(size)
        settled(tab, page, "#layer=1&head=2&view=text")
        tab.one("#all-heads").click()
        tab.until(lambda: tab.one("#overview").is_displayed() and "head=" not in tab.address(), "it does not")


def test_a_head_opens_at_its_top_and_all_heads_are_found_again_where_they_were_left(tab, page):
    screen = Screen(tab)
    for size in ((390, 844), (1400, 900)):
        screen.resize(size)
        tab.open(page)
        places = lambda: tab.driver.execute_script("return [scrollY, document.querySelector('#overview').scrollTop]")  # noqa: E731
        picture = '.thumb[data-run="1"][data-layer="2"][data-head="3"]'
        tab.driver.execute_script("document.querySelector(arguments[0]).scrollIntoView({ block: 'end' })", picture)
        before = places()
        assert max(before) > 60
        tab.one(picture).click()
        tab.until(lambda: tab.text("#head-name").endswith("Layer 2 · Head 3"), "the head is not opened")
        assert places()[0] == 0
        tab.until(lambda: "head=3" in tab.address(), "the address does not hold it")
        tab.driver.back()
        tab.until(lambda: tab.one("#overview").is_displayed(), "back does not lead to all heads")
        assert places() == before, size
        assert tab.driver.execute_script("return document.activeElement === document.querySelector(arguments[0])", picture)
        tab.driver.forward()
        tab.until(lambda: tab.one("#detail").is_displayed(), "the head does not come again")


def test_chosen_heads_show_the_number_they_were_chosen_by_and_what_they_share(screen, tab, tmp_path):
    even, first = np.full((4, 5, 5), 0.2, np.float32), np.tile(np.eye(5, dtype=np.float32)[0], (4, 5, 1))
    heed.view([even, first], tokens=WORDS[:5], kv_heads=2).save(tmp_path / "two.html")
    tab.open(tmp_path / "two.html", "#filter=first&from=0.9")
    assert [each.text for each in tab.all(".layer-name")] == ["Layer 1"]
    assert [each.text for each in tab.all(".thumb .name")] == 4 * ["100.0 %"] and "on the first token" in tab.text("#measure-note")
    assert [each.text for each in tab.all(".bracket")] == ["KV head 0", "KV head 1"]


def test_heads_are_columns_and_layers_rows(screen, tab, page):
    for size in SIZES:
        screen.resize(size)
        tab.open(page)
        places = tab.driver.execute_script(
            "return [...document.querySelectorAll('.thumb')].map((e) => [Number(e.dataset.run), Number(e.dataset.layer), Number(e.dataset.head), Math.round(e.getBoundingClientRect().left), Math.round(e.getBoundingClientRect().top)])"
        )
        assert len({(head, left) for _, _, head, left, _ in places}) == HEADS, "head n stands above head n"
        assert len({(run, layer, top) for run, layer, _, _, top in places}) == 2 * LAYERS, "a layer is a row"


def test_the_size_of_the_pictures_follows_its_control(screen, tab, page):
    tab.open(page)
    width = lambda: tab.one(".thumb canvas").rect["width"]  # noqa: E731
    fitted = width()
    tab.choose("#size", "60")
    tab.until(lambda: width() == 60 != fitted, "the pictures keep their size")
    tab.until(lambda: "size=60" in tab.address(), "the address does not hold it")


def test_names_of_layers_and_queries_stay_where_a_telephone_is_swiped(tab, page, tmp_path):
    screen = Screen(tab)
    screen.resize((390, 844))
    stays = "const [box, name] = [...arguments].map((each) => document.querySelector(each)); box.scrollLeft = 90; return [box.scrollLeft, name.getBoundingClientRect().left - box.getBoundingClientRect().left]"
    tab.open(page, "#size=120")
    moved, left = tab.driver.execute_script(stays, ".run .scroll", ".layer-name")
    assert moved == 90 and abs(left) <= 2
    settled(tab, page, "#head=1&view=table")
    tab.until(lambda: tab.count("#table tbody th"), "there is no table")
    moved, left = tab.driver.execute_script(stays, "#table", "#table tbody th")
    assert moved > 0 and abs(left) <= 2
    heed.view(causal_weights(12, 9), tokens=WORDS[:9]).save(tmp_path / "one.html")  # a layer without a name
    tab.open(tmp_path / "one.html")
    assert tab.driver.execute_script("return document.querySelector('.thumb').getBoundingClientRect().left - document.querySelector('.run .scroll').getBoundingClientRect().left") >= 1


def test_menus_speak_plainly(screen, tab, page):
    tab.open(page)
    words = [option.text for option in tab.all("#sort option")]
    assert {"most on the first token", "most on itself", "most on the token before"} <= set(words)


def test_the_legend_of_flat_heads_says_where_their_scale_ends(tab, tmp_path):
    screen = Screen(tab)
    heed.view(np.full((2, 15, 15), 1 / 15, np.float32), tokens=WORDS[:15]).save(tmp_path / "flat.html")
    for size in SIZES:
        is_touched = screen.resize(size)
        tab.open(tmp_path / "flat.html")
        screen.assert_in_order(is_touched, f"{size}")
        assert legend_end(tab) == "its largest, at least 0.267"
        settled(tab, tmp_path / "flat.html", "#head=0")
        assert legend_end(tab) == "0.267"


def test_the_token_before_counts_for_those_that_have_one(screen, tab, tmp_path):
    before = np.eye(8, k=-1, dtype=np.float32)
    before[0, 0] = 1
    heed.view(before[None], tokens=WORDS[:8]).save(tmp_path / "before.html")
    settled(tab, tmp_path / "before.html", "#head=0")
    assert tab.text('#numbers [data-measure="previous"]') == "100.0 %"


def test_what_the_words_mean_comes_before_the_keys(screen, tab, page):
    tab.open(page)
    tab.one("#help-button").click()
    assert [each.text for each in tab.all("#help h2")] == ["Words", "Keyboard"]
    assert {"value", "KV head", "MHA, GQA, MQA", "scale", "softcap", "[CLS], [SEP]"} <= {each.text for each in tab.all("#help dt")}


def test_the_first_head_has_none_before_it_and_the_last_none_after_it(screen, tab, page):
    for address, button, name in (("#head=0", "#previous", "before · Layer 0 · Head 0"), ("#run=1&layer=2&head=5", "#next", "after · Layer 2 · Head 5")):
        settled(tab, page, address)
        assert tab.one(button).get_attribute("aria-disabled") == "true"
        tab.one(button).click()
        tab.press("[" if button == "#previous" else "]")
        assert tab.text("#head-name") == name


def test_what_is_pressed_stays_where_it_is(tab, page):
    screen = Screen(tab)
    for size in SIZES:
        screen.resize(size)
        settled(tab, page, "#layer=1&head=2")
        place = lambda: tab.one("#views").rect["y"]  # noqa: E731
        before = place()
        for address in ("#layer=1&head=2&query=9&key=4", *(f"#layer=1&head=2&view={view}{token}" for view in ("text", "lines", "table") for token in ("", "&query=9&key=9"))):
            screen.go(address)
            assert place() == before, f"{address} at {size}"


def test_comparing_leaves_the_map_and_what_is_pressed_where_they_are(tab, page):
    screen = Screen(tab)
    for size in SIZES:
        screen.resize(size)
        settled(tab, page, "#layer=1&head=2&query=9&key=4")
        places = lambda: [tab.one(each).rect["y"] for each in ("#compare", "#maps .frame")]  # noqa: E731
        before = places()
        tab.choose("#compare", "1")
        tab.until(lambda: tab.count("#maps .frame canvas") == 3, "there are not three maps")
        tab.until(lambda: " in after" in tab.text("#said"), "the other run is not named")
        assert places() == before, size
        ends = [each.text for each in tab.all("#maps .differences span")]
        assert len(ends) == 2 and ends[0] == ends[1].replace("+", "−")


def test_the_chosen_weight_is_said_in_sight_of_every_map_of_a_telephone(tab, page):
    screen = Screen(tab)
    screen.resize((390, 844))
    settled(tab, page, "#layer=1&head=2&query=9&key=4&compare=1")
    tab.until(lambda: tab.count("#maps .frame canvas") == 3, "there are not three maps")
    for n in range(3):
        top = tab.driver.execute_script("document.querySelectorAll('#maps figure')[arguments[0]].scrollIntoView(); return document.querySelector('#said').getBoundingClientRect().top", n)
        assert 0 <= top < 400, n


def test_choosing_a_cell_keeps_the_size_of_the_map(screen, tab, page):
    settled(tab, page, "#head=1")
    before = tab.one("#maps .frame canvas").rect
    screen.go("#head=1&query=9&key=4")
    tab.until(lambda: "looks at" in tab.text("#said"), tab.text("#said"))
    assert tab.one("#maps .frame canvas").rect == before


# The map


def written(tab):
    return tab.driver.execute_script("return window.written.filter((each) => each.y > 0)")


def redrawn(tab):
    tab.driver.execute_script("window.written = []; window.stroked = []; window.dispatchEvent(new Event('resize'))")
    tab.until(lambda: written(tab), "nothing is drawn")
    return written(tab)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_the_axes_have_titles_and_words_do_not_touch(tab, page, size):
    screen = Screen(tab)
    screen.resize(size)
    settled(tab, page, "#head=1")
    labels = redrawn(tab)
    texts = [each["text"] for each in labels]
    assert any(text.startswith("Keys") for text in texts) and any("Queries" in text for text in texts)
    if size == (1400, 900):
        assert texts.count("striking") == 2, "words fit and are not there"
    rows = sorted((each["y"], each["size"]) for each in labels if not each["isTurned"] and "Keys" not in each["text"])
    assert all(b - a >= size - 0.6 for (a, size), (b, _) in zip(rows, rows[1:], strict=False)), rows


def test_the_chosen_words_stand_at_the_axes_even_where_others_do_not_fit(screen, tab, tmp_path):
    words = [f"w{n}" for n in range(300)]
    heed.view(causal_weights(1, 300), tokens=words).save(tmp_path / "a.html")
    settled(tab, tmp_path / "a.html", "#head=0&query=123&key=45")
    texts = [each["text"] for each in redrawn(tab)]
    assert "w123" in texts and "w45" in texts and "w124" not in texts


def test_what_is_under_the_pointer_is_said_in_words(screen, tab, page, weights):
    settled(tab, page, "#layer=2&head=3")
    tab.actions().move_to_element_with_offset(tab.one("#maps .frame canvas"), -100, 120).perform()
    tab.until(lambda: tab.one("#tip").is_displayed(), "nothing is said")
    query, key = map(int, re.search(r"query (\d+), key (\d+)", tab.text("#tip")).groups())
    weight = weights["before"][2][3][query, key]
    shown = "under 0.01 %" if weight < 1e-4 else f"{100 * weight:.{2 if weight < 0.01 else 1}f} %"
    assert tab.text("#tip .sentence") == f"“{WORDS[query]}” looks at “{WORDS[key]}”: {shown}"


def test_a_word_at_an_edge_chooses_its_token(screen, tab, page):
    settled(tab, page, "#head=1")
    canvas = tab.one("#maps .frame canvas").rect
    for is_turned, address, heading in ((False, "query=10", "looks at"), (True, "key=10", "is looked at by")):
        word = next(each for each in redrawn(tab) if each["text"] == WORDS[10] and each["isTurned"] == is_turned)
        x, y = (word["x"], word["y"] - 4) if is_turned else (word["x"] - 4, word["y"])
        tab.actions().move_to_element_with_offset(tab.one("#maps .frame canvas"), int(x - canvas["width"] / 2), int(y - canvas["height"] / 2)).click().perform()
        tab.until(lambda: re.search(rf"{address}\b", tab.address()), tab.address())  # noqa: B023
        tab.until(lambda: tab.text("#chosen h2").endswith(f"{WORDS[10]} {heading}"), tab.text("#chosen h2"))  # noqa: B023


def test_buttons_zoom_at_the_chosen_weight(screen, tab, page):
    settled(tab, page, "#head=1&query=38&key=3")
    for _ in range(6):
        tab.one("#zoom-in").click()
    tab.until(lambda: zoom_of(tab) > 3, "it does not zoom")
    texts = [each["text"] for each in redrawn(tab)]
    assert WORDS[38] in texts and WORDS[3] in texts and WORDS[18] not in texts


# The chosen token


def listed(tab):
    """The names and the numbers of the last list."""
    return tab.driver.execute_script(
        "return [...[...document.querySelectorAll('#chosen ol')].at(-1).querySelectorAll('button')].map((e) => [e.dataset.name, Number(e.querySelector('.digits').textContent)])"
    )


@pytest.mark.parametrize("direction", ["to", "from"])
def test_all_weights_of_a_token_are_listed_and_a_line_chooses_one(screen, tab, page, weights, direction):
    settled(tab, page, f"#layer=1&head=2&view=text&query=17&key=17&direction={direction}")
    found = weights["before"][1][2]
    line = found[17] if direction == "to" else found[:, 17]
    order = sorted(np.flatnonzero(line), key=lambda n: -line[n])
    assert [name for name, _ in listed(tab)] == [f"token {n}" for n in order[:8]]
    tab.one('#chosen [data-name="list"]').click()
    tab.until(lambda: len(listed(tab)) == len(order), "some are left out")
    assert [np.float32(weight) for _, weight in listed(tab)] == [line[n] for n in order]
    chosen = int(order[-1])
    tab.one(f'#chosen [data-name="token {chosen}"]').click()
    names = (WORDS[17], WORDS[chosen]) if direction == "to" else (WORDS[chosen], WORDS[17])
    tab.until(lambda: re.match(f"“{names[0]}” looks at “{names[1]}”: .* %", tab.text("#chosen .sentence")), tab.text("#chosen"))
    assert tab.driver.execute_script("return document.activeElement.dataset.name") == f"token {chosen}", "the keyboard is left nowhere"


def test_the_heads_in_which_one_token_looks_most_at_another_are_named(screen, tab, page, weights):
    settled(tab, page, "#head=2&query=30&key=4")
    tab.one('#chosen [data-name="rank"]').click()
    tab.until(lambda: tab.count("#chosen ol") == 2, "no heads are named")
    found = {f"{run} · Layer {n} · Head {h}": layer[h][30, 4] for run, layers in weights.items() for n, layer in enumerate(layers) for h in range(HEADS)}
    best = sorted(found, key=lambda name: -found[name])[:8]
    first = tab.all("#chosen ol")[0]
    assert [each.get_attribute("data-name") for each in first.find_elements("css selector", "button")] == best
    first.find_element("css selector", "button").click()
    tab.until(lambda: tab.text("#head-name") == best[0], "a line does not open its head")
    tab.until(lambda: "rank=on" in tab.address() and "query=30" in tab.address(), tab.address())


def test_on_a_telephone_what_was_chosen_comes_into_sight(tab, page):
    screen = Screen(tab)
    screen.resize((390, 844))
    settled(tab, page, "#head=1&view=table")
    tab.until(lambda: tab.count("#table tbody button"), "there is no table")
    tab.all("#table tbody button")[3].click()
    tab.until(lambda: tab.text("#chosen h2 b") == WORDS[3], "nothing is chosen")
    tab.until(lambda: 0 <= tab.driver.execute_script("return document.querySelector('#chosen').getBoundingClientRect().top") < 700, "it stays out of sight")


# Lines


def strokes(tab):
    redrawn(tab)
    return tab.driver.execute_script("return window.stroked")


def test_every_token_has_as_many_lines_as_wanted_and_the_strongest_is_strong(screen, tab, page):
    for most in (1, 3):
        settled(tab, page, f"#head=1&view=lines&most={most}")
        lines = strokes(tab)
        assert len(lines) == sum(min(most, n + 1) for n in range(LENGTH))
        assert sum(line["alpha"] > 0.7 for line in lines) >= LENGTH  # a row's largest weight, whatever it is
    tab.choose("#most", "2")
    tab.until(lambda: "most=2" in tab.address() and "2 a token" in tab.text("#most-label"), "the slider does nothing")


def test_hovering_a_token_isolates_its_lines(screen, tab, page):
    settled(tab, page, "#head=1&view=lines&most=3")
    canvas = tab.one("#lines canvas")
    word = next(each for each in redrawn(tab) if each["text"] == "clocks")
    tab.driver.execute_script("window.stroked = []")
    tab.actions().move_to_element_with_offset(canvas, int(word["x"] - canvas.rect["width"] / 2) - 5, int(word["y"] - canvas.rect["height"] / 2)).perform()
    tab.until(lambda: len(tab.driver.execute_script("return window.stroked")) == 3, "other lines stay")


def test_all_heads_of_a_layer_have_colours_that_can_be_switched_off(screen, tab, page):
    settled(tab, page, "#head=1&view=lines&most=1&heads=all")
    tab.until(lambda: tab.count("#line-heads [aria-pressed]") == HEADS, "there is no switch for every head")
    assert len({line["colour"] for line in strokes(tab)}) == HEADS
    tab.all("#line-heads button")[2].click()
    tab.until(lambda: "off=2" in tab.address(), "the address does not hold it")
    tab.until(lambda: len({line["colour"] for line in strokes(tab)}) == HEADS - 1, "its lines stay")
    tab.all("#line-heads button")[-1].click()
    tab.until(lambda: tab.count("#line-heads [aria-pressed=true]") == 0, "None leaves some")
    tab.all("#line-heads button")[-2].click()
    tab.until(lambda: tab.count("#line-heads [aria-pressed=true]") == HEADS, "All leaves some out")


def test_squares_of_many_heads_stay_within_the_drawing(tab, tmp_path):
    screen = Screen(tab)
    screen.resize((390, 844))
    weights = np.full((16, 5, 5), 0.05, np.float32)
    weights[:, :, 1] = 0.8
    heed.view(weights, tokens=["a", "telephone", "is", "not", "wide"], causal=False).save(tmp_path / "many.html")
    settled(tab, tmp_path / "many.html", "#head=0&view=lines&heads=all&most=1&query=3")
    edge = "const c = document.querySelector('#lines canvas'); return Math.max(...c.getContext('2d').getImageData(c.width - 1, 0, 1, c.height).data)"
    tab.until(lambda: tab.colours("#lines canvas") > 20, "there are no lines")
    assert tab.driver.execute_script(edge) == 0


def test_lines_on_a_logarithmic_scale_differ(screen, tab, page):
    settled(tab, page, "#head=1&view=lines&most=8&scale=log&query=30")
    alphas = [line["alpha"] for line in strokes(tab) if line["alpha"] > 0.1]
    assert max(alphas) == pytest.approx(1) and min(alphas) < 0.8


# Keys and the table


def test_tab_reaches_everything_that_can_be_pressed(screen, tab, page):
    for address in ("", "#head=1&query=3&key=2", "#head=1&view=lines&heads=all", "#head=1&view=table"):
        settled(tab, page, address)
        tab.driver.execute_script("document.activeElement?.blur()")
        wanted = tab.driver.execute_script("return [...document.querySelectorAll('button, select, input')].filter((e) => e.checkVisibility()).length")
        tab.driver.execute_script("window.reached = new Set(); addEventListener('focusin', (e) => window.reached.add(e.target))")
        for _ in range(wanted // 20 + 2):
            tab.press(*["\ue004"] * 20)
        reached = tab.driver.execute_script("return [...window.reached].filter((e) => e.matches('button, select, input')).length")
        assert reached == wanted, address


def test_arrow_keys_move_the_chosen_token_of_the_text(screen, tab, page):
    settled(tab, page, "#head=1&view=text&query=5&key=5")
    tab.press("\ue014")
    tab.until(lambda: tab.text("#text span.chosen") == WORDS[6], "→ does not move it")
    tab.press("\ue012", "\ue012")
    tab.until(lambda: tab.text("#text span.chosen") == WORDS[4], "← does not move it")


def test_a_token_chosen_by_key_comes_into_sight(screen, tab, page):
    screen.resize((1100, 640))
    settled(tab, page, "#head=1&view=lines&query=0&key=0")
    tab.press(*["\ue015"] * (LENGTH - 1))
    tab.until(lambda: f"query={LENGTH - 1}" in tab.address(), tab.address())
    tab.until(lambda: tab.driver.execute_script("return document.querySelector('#lines .scroll').scrollTop") > 100, "it stays out of sight")


def test_the_table_names_what_every_query_looks_at_most(screen, tab, page, weights):
    settled(tab, page, "#layer=2&head=3&view=table")
    tab.until(lambda: tab.count("#table tbody tr") == LENGTH, "a query is missing")
    w = weights["before"][2][3]
    for query in (0, 7, LENGTH - 1):
        cells = [cell.text for cell in tab.all("#table tbody tr")[query].find_elements("css selector", "td, th")]
        best = int(w[query].argmax())
        assert cells[:2] == [str(query), WORDS[query]] and cells[2].startswith(f"{WORDS[best]} {100 * w[query, best]:.1f} %"), cells
    assert tab.count("#table th[scope=row]") == LENGTH and tab.count("#table th[scope=col]") == 5 and tab.count("#table caption") == 1


def test_a_long_table_moves_with_the_chosen_query(screen, tab, tmp_path):
    heed.view(causal_weights(1, 600)).save(tmp_path / "long.html")
    settled(tab, tmp_path / "long.html", "#head=0&view=table&query=500")
    tab.until(lambda: tab.count("#table tbody tr") == 120, "it is not a stretch of the table")
    assert tab.text("#table tr[aria-current] td") == "500" and "Queries 440 to 559 of 600" in tab.text("#table caption")


def test_the_keyboard_stays_at_what_it_pressed(screen, tab, page):
    for address, selector in (("#head=1&view=table", "#table tbody tr:nth-child(5) button"), ("#head=1&view=lines&heads=all", "#line-heads button:nth-child(3)")):
        settled(tab, page, address)
        tab.until(lambda: tab.count(selector), "there is nothing to press")  # noqa: B023
        name = tab.one(selector).get_attribute("data-name")
        tab.driver.execute_script("document.querySelector(arguments[0]).focus()", selector)
        before = tab.address()
        tab.press("\ue007")
        tab.until(lambda: tab.address() != before, "Enter does nothing")  # noqa: B023
        assert tab.driver.execute_script("return document.activeElement.dataset.name") == name


def test_two_sequences_have_two_texts(screen, tab, tmp_path):
    heed.view(random_weights(2, 5, 9), query_tokens=list("abcde"), key_tokens=list("123456789")).save(tmp_path / "cross.html")
    tab.open(tmp_path / "cross.html")
    assert [each.text for each in tab.all("#about blockquote")] == ["a b c d e", "1 2 3 4 5 6 7 8 9"]
