# SPDX-License-Identifier: Apache-2.0
"""One head in the browser: its map, the chosen token, its lines and its table, by pointer, finger and key."""

import re

import numpy as np
import pytest

import heed
from screens import SIZES, Screen
from test_view import causal_weights, random_weights
from test_view_screens import HEADS, LENGTH, WORDS, page, screen, settled, tab, weights, zoom_of  # noqa: F401, fixtures too


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
