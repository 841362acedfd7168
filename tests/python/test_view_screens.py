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


def test_on_the_lowest_screen_the_legend_has_room_beside_the_choices(tab, page):
    screen = Screen(tab)
    screen.resize((740, 360))
    for address in ("", "#head=3&query=2&key=2"):
        settled(tab, page, address)
        screen.assert_in_order(True, f"{address} at 740x360")


def test_a_long_token_in_a_list_leaves_its_number_in_sight(tab, tmp_path):
    Screen(tab).resize((390, 844))
    heed.view(causal_weights(1, 6), tokens=["a" * 60] * 6).save(tmp_path / "long.html")
    tab.open(tmp_path / "long.html", "#head=0&query=5")
    tab.until(lambda: tab.count("#chosen li small"), "nothing is listed")
    inside = "return [...document.querySelectorAll('#chosen li')].every((e) => { const n = e.querySelector('small').getBoundingClientRect(), box = e.querySelector('.token').getBoundingClientRect(); return n.width > 0 && n.right <= box.right + 1; })"
    assert tab.driver.execute_script(inside)


def test_the_names_above_the_lines_are_whole_on_a_telephone(tab, page):
    screen = Screen(tab)
    screen.resize((360, 740))
    screen.record_canvases()
    settled(tab, page, "#head=0&view=lines")
    written = tab.until(lambda: [each for each in tab.driver.execute_script("return window.written") if each["text"] == "Queries look …"], "the lines have no names")
    assert all(each["x"] - each["width"] >= 0 for each in written), written[0]
