# SPDX-License-Identifier: Apache-2.0
"""The playground in a real browser: heed computes inside the page, and every number shown is NumPy's."""

import os
import pathlib
import re
import subprocess

import numpy as np
import pytest

import browser
from screens import EVERY_SCREEN, SIZES, Screen

TOOL = os.environ.get("HEED_TOOL", "")
pytestmark = pytest.mark.skipif(not TOOL, reason="HEED_TOOL does not name the tool")
WORDS = "The cat that chased the mouse saw the cat".split()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("playground") / "play.html"
    ran = subprocess.run([TOOL, "view", "--play", "--out", path], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return path


@pytest.fixture(scope="module")
def tab():
    driver = browser.start(1400, 1100)
    yield browser.Tab(driver)
    driver.quit()


def play(tab, page, address=""):
    tab.driver.get("about:blank")
    tab.complaints(), tab.requests()
    tab.driver.get(page.as_uri() + address)
    tab.until(lambda: tab.count("#steps tr") and tab.count("#map [data-key]") and tab.count("#caches .cache"), "the page draws nothing")


def shown_vectors(tab, kind):
    """token -> numbers, as the inputs of the chosen head have them."""
    values = tab.driver.execute_script(
        "return [...document.querySelectorAll('#steps input')].map((input) => [input.dataset.place, input.value])"
    )
    rows = {}
    for place, value in values:
        name, _, token, _ = place.split(".")
        if name == kind:
            rows.setdefault(int(token), []).append(np.float32(value))
    return {token: np.array(row, np.float64) for token, row in rows.items()}


def column(tab, nth):
    return tab.driver.execute_script(
        "return [...document.querySelectorAll('#steps tr')].slice(2, -1).map((row) => row.children[arguments[0]].firstChild.textContent)", nth
    )


def weights(tab):
    return np.array([np.float32(cell.get_attribute("title")) for cell in tab.all("#steps td.weight[title]")], np.float64)


def number(text):
    return -np.inf if text == "−∞" else float(text.replace("−", "-"))


def expected(tab, query, scale=8**-0.5, softcap=None, hidden=()):
    """The steps of one query by NumPy, from the vectors that the page shows."""
    q, k, v = (shown_vectors(tab, kind) for kind in "qkv")
    keys, values = np.array([k[n] for n in sorted(k)]), np.array([v[n] for n in sorted(v)])
    raw = keys @ q[query] * scale
    scores = raw if softcap is None else softcap * np.tanh(raw / softcap)
    scores = np.where(np.isin(np.arange(len(scores)), list(hidden)), -np.inf, scores)
    shares = np.exp(scores - scores.max())
    return raw, scores, shares, shares / shares.sum(), (shares / shares.sum()) @ values


def assert_steps(tab, query, columns=(2, 3, 4), **options):
    raw, scores, shares, share, out = expected(tab, query, **options)
    for nth, numbers in zip(columns, (raw, scores, shares), strict=True):
        np.testing.assert_allclose([number(text) for text in column(tab, nth)], numbers, atol=6e-4)
    np.testing.assert_allclose(weights(tab), share, rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose([number(each.text) for each in tab.all("#result output")], out, atol=6e-4)


def test_it_opens_without_an_error_and_asks_for_nothing(tab, page):
    play(tab, page)
    assert re.fullmatch(r"computed in this page by heed [\d.]+ \(wasm\)", tab.text("#engine"))
    assert tab.count("#map [data-key]") == len(WORDS) ** 2 and tab.count("#strip button") == 4
    assert tab.complaints() == []
    assert {url.partition("#")[0] for url in tab.requests()} <= {page.as_uri()}


def test_every_step_of_a_query_is_numpys(tab, page):
    play(tab, page, "#head=0&query=8")
    assert_steps(tab, 8)
    assert "“cat” in head 0" in tab.text("#query-name")
    play(tab, page, "#head=1&query=3&scale=0.5&softcap=4")
    raw, scores, shares, share, _ = expected(tab, 3, scale=0.5, softcap=4)
    np.testing.assert_allclose([number(text) for text in column(tab, 2)], raw, atol=6e-4)
    np.testing.assert_allclose([number(text) for text in column(tab, 3)], scores, atol=6e-4)
    np.testing.assert_allclose(weights(tab), share, rtol=1e-5)


def test_the_page_of_the_documents_is_this_one_but_for_the_module(page):
    """heed itself, compiled, is one line of it, and changes with everything that heed computes."""
    copy = pathlib.Path(__file__).parents[2] / "docs/playground.html"
    with_lines = [each.read_text(encoding="utf-8").splitlines() for each in (copy, page)]
    ours, tools = ([line for line in lines if 'id="heed"' not in line] for lines in with_lines)
    assert len(ours) == len(with_lines[0]) - 1 and ours == tools, "docs/pictures/make.py makes it again"


def test_the_page_of_the_documents_works(tab):
    root = pathlib.Path(__file__).parents[2]
    play(tab, root / "docs/playground.html", "#head=0&query=8")
    assert_steps(tab, 8)
    version = ".".join(re.findall(r"VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", (root / "include/heed/version.hpp").read_text()))
    assert tab.text("#engine") == f"computed in this page by heed {version} (wasm)", "build the preset wasm, and docs/pictures/make.py makes it again"
    assert tab.complaints() == []


def test_numbers_of_a_vector_are_shown_whole_and_as_decimals(tab, page):
    play(tab, page)
    shown = [each.get_attribute("value") for each in tab.all("#steps .vector input")]
    assert any(text.startswith("-0.0") for text in shown) and all(re.fullmatch(r"-?\d(\.\d\d?)?", text) for text in shown), shown
    assert tab.driver.execute_script("return [...document.querySelectorAll('#steps input')].every((e) => e.scrollWidth <= e.clientWidth)")


def test_a_number_put_in_by_hand_changes_what_follows(tab, page):
    play(tab, page, "#head=0&query=8")
    before = weights(tab)
    tab.choose('input[data-place="k.0.2.1"]', "3.5")
    tab.until(lambda: not np.array_equal(weights(tab), before), "the weights stay as they were")
    assert shown_vectors(tab, "k")[2][1] == 3.5
    assert_steps(tab, 8)
    tab.until(lambda: "edits=k.0.2.1%3A3.5" in tab.address(), tab.address())


def test_masks_are_chosen_and_drawn(tab, page):
    play(tab, page, "#query=4")
    tab.choose("#mask", "causal")
    n = len(WORDS)
    tab.until(lambda: tab.count("#map .unseen") == n * (n - 1) // 2, "a causal mask hides what comes later")
    assert_steps(tab, 4, hidden=range(5, n))
    tab.one('#tool [data-tool="draw"]').click()
    tab.until(lambda: tab.count("#map.drawing"), "nothing can be drawn")
    tab.one('#map [data-query="4"][data-key="0"]').click()
    tab.until(lambda: tab.count('#map .unseen[data-query="4"][data-key="0"]'), "a click does not hide a key")
    assert_steps(tab, 4, hidden=[0, *range(5, n)])
    assert tab.one("#mask").get_attribute("value") == "drawn"
    row = [tab.one(f'#map [data-query="4"][data-key="{key}"]') for key in (1, 4)]
    across = int(row[1].rect["x"] - row[0].rect["x"])  # what is drawn under the pointer replaces both
    tab.actions().click_and_hold(row[0]).move_by_offset(across, 0).release().perform()
    tab.until(lambda: tab.count('#map .unseen[data-query="4"][data-key="1"]'), "dragging hides nothing")


def test_a_query_that_sees_no_key_yields_zeros(tab, page):
    play(tab, page, "#tokens=only+two&query=0&key=0")
    tab.one("#map").click()
    tab.press("x", "\ue014", "x")
    tab.until(lambda: tab.count('#map .unseen[data-query="0"]') == 2, "X hides no key")
    assert (weights(tab) == 0).all() and {each.text for each in tab.all("#result output")} == {"0.000"}
    assert tab.complaints() == []


def test_query_heads_share_kv_heads(tab, page):
    play(tab, page, "#heads=6&kvHeads=6")
    tab.choose("#kvHeads", "2")
    tab.until(lambda: tab.count(".sharing") == 2, "the heads are not grouped")
    assert [group.find_elements("css selector", "button").__len__() for group in tab.all(".sharing")] == [3, 3]
    assert_steps(tab, 4)
    assert [option.text for option in tab.all("#kvHeads option")] == ["1 (MQA)", "2 (GQA)", "3 (GQA)", "6 (MHA)"]


def test_a_cache_fills_token_by_token_and_its_bytes_are_counted(tab, page):
    play(tab, page, "#heads=4&dim=8")
    tab.one("#cache-next").click()
    tab.until(lambda: tab.count(".cells i.kept") == 3, "no token is kept")
    tab.one("#cache-all").click()
    n = len(WORDS)
    tab.until(lambda: tab.count(".cells i.kept") == 3 * n, "not all tokens are kept")
    per_head = 2 * 8 * 4 * n  # keys and values of 8 floats
    used = {row.get_attribute("data-kind"): row.find_element("css selector", "output").text for row in tab.all(".cache")}
    assert used == {kind: f"{heads * per_head:,} bytes" for kind, heads in (("MHA", 4), ("GQA", 2), ("MQA", 1))}
    assert "1/2 of MHA" in tab.text('[data-kind="GQA"]') and "1/4 of MHA" in tab.text('[data-kind="MQA"]')
    assert "exactly that of attention over all words at once" in tab.text("#cache-check")
    tab.choose("#cacheType", "f16")
    tab.until(lambda: f"{4 * per_head // 2:,} bytes" in tab.text('[data-kind="MHA"] output'), "f16 takes half of it")
    assert "rounded to f16: its result is up to" in tab.text("#cache-check")


def test_what_heed_refuses_is_said_in_its_words(tab, page):
    play(tab, page)
    tab.choose("#softcap", "-1")
    tab.until(lambda: tab.text("#refusal").startswith("options.softcap: -1 is not a finite number above 0"), tab.text("#refusal"))
    assert tab.one("#refusal").is_displayed()
    tab.choose("#softcap", "")
    tab.until(lambda: not tab.one("#refusal").is_displayed(), "the refusal stays")
    tab.choose("#tokens", "   ")
    tab.until(lambda: tab.one("#refusal").is_displayed(), "no tokens are accepted")


def test_a_link_restores_what_was_played(tab, page):
    play(tab, page, "#tokens=a+b+c+d&heads=2&kvHeads=1&dim=4&head=1&query=2&theme=dark&cached=3")
    tab.choose("#mask", "causal")
    tab.until(lambda: "hidden=" in tab.address() and tab.count("#map .unseen") == 6, "the address does not follow")
    address, seen = tab.address(), weights(tab)
    play(tab, page, address)
    assert tab.count("#map .unseen") == 6 and np.array_equal(weights(tab), seen) and tab.count(".cells i.kept") == 2 * 3
    assert tab.driver.execute_script("return document.documentElement.dataset.theme") == "dark"


def test_hostile_tokens_and_addresses_do_no_harm(tab, page):
    play(tab, page, "#tokens=%3Cimg+src%3Dx+onerror%3Dalert(1)%3E+%E2%80%AEturned+%00&heads=99&kvHeads=-1&dim=1e9&hidden=zz&query=NaN&edits=q.9.9.9:1+x")
    assert tab.text("#map .key-name") == "<img" and "⟨202E⟩turned" in tab.text("#map")
    assert tab.count("img") == 0 and tab.complaints() == []
    play(tab, page, "#tokens=" + "x" * 3000 + "+y" * 100)
    assert tab.count("#map .query-name") == 24
    assert tab.complaints() == []


def test_scores_that_overflow_are_shown_as_what_comes_of_them(tab, page):
    play(tab, page, "#query=4&head=0&edits=q.0.4.0:3e38+k.0.0.0:3e38+k.0.1.0:3e38+k.0.2.0:-3e38+v.0.0.0:3e38&cached=9")
    assert column(tab, 2)[:3] == ["∞", "∞", "−∞"] and (weights(tab)[:3] == [0.5, 0.5, 0]).all() and "NaN" not in tab.text("#cache-check")
    assert all(len(text) <= 9 for text in column(tab, 2)), column(tab, 2)
    assert not tab.one("#refusal").is_displayed(), tab.text("#refusal")
    for address in ("#scale=abc&softcap=NaN", "#scale=0x10&softcap=+"):
        play(tab, page, address)
        assert tab.text("#steps")
    assert tab.complaints() == []


def test_only_what_the_mask_hides_is_called_hidden(tab, page):
    play(tab, page, "#query=4&head=0&key=1&dim=2&scale=1e30&edits=q.0.4.0:3e38+q.0.4.1:0+k.0.1.0:-3e38")
    assert "−∞" in column(tab, 2), "no score overflows"
    assert tab.count(".unseen") == 0 and "hidden" not in tab.text("#cell")


@pytest.mark.parametrize("number", ["1e39", "-1e39", ""])
def test_a_number_that_f32_has_not_is_refused_in_words(tab, page, number):
    play(tab, page)
    before = weights(tab), shown_vectors(tab, "k")[2][1]
    tab.choose('input[data-place="k.0.2.1"]', number)
    tab.until(lambda: "is no number of f32" in tab.text("#notice"), "nothing is said")
    assert np.array_equal(weights(tab), before[0]) and shown_vectors(tab, "k")[2][1] == before[1], "the old number is not shown"
    if number:
        tab.choose("#scale", number)
        tab.until(lambda: not tab.one("#scale").get_attribute("value"), "a scale beyond f32 stays")
        assert number in tab.text("#notice") and np.array_equal(weights(tab), before[0])


def focus(tab):
    return tab.driver.execute_script("const { id, dataset, tagName } = document.activeElement; return id || dataset.place || dataset.head || dataset.tool || tagName")


def test_the_keyboard_stays_where_it_was(tab, page):
    Screen(tab).resize((1400, 900))
    play(tab, page, "#head=0&query=8")
    tab.one('input[data-place="k.0.2.1"]').click()
    tab.driver.execute_script("document.activeElement.select()")
    tab.press("3.5", "\ue004")  # and on to the next
    tab.until(lambda: shown_vectors(tab, "k")[2][1] == 3.5 and "3.5" in tab.address(), "the number does not count")
    assert focus(tab) == "k.0.2.2"
    tab.press("7", "\ue007")  # it was selected, so this replaces it
    tab.until(lambda: shown_vectors(tab, "k")[2][2] == 7, "the selection is lost")
    assert focus(tab) == "k.0.2.2"
    tab.driver.execute_script("document.querySelector('#strip [data-head=\"2\"]').focus()")
    tab.press("\ue007")
    tab.until(lambda: "head 2" in tab.text("#query-name"), "the head is not chosen")
    assert focus(tab) == "2"
    tab.one('#tool [data-tool="draw"]').click()
    tab.until(lambda: tab.count("#map.drawing"), "nothing can be drawn")
    assert focus(tab) == "draw"


def test_a_rule_hides_the_same_of_another_sentence_and_a_drawn_mask_is_dropped_in_words(tab, page):
    play(tab, page)
    tab.choose("#mask", "causal")
    for count in (3, 1, 5):
        tab.choose("#tokens", " ".join("abcde"[:count]))
        tab.until(lambda: tab.count("#map .query-name") == count and tab.count("#map .unseen") == count * (count - 1) // 2, f"{count} words are not causal")  # noqa: B023
        assert tab.one("#mask").get_attribute("value") == "causal" and not tab.one("#notice").is_displayed()
    tab.one("#map").click()
    tab.press("x")
    tab.until(lambda: tab.one("#mask").get_attribute("value") == "drawn", "nothing is drawn")
    tab.choose("#tokens", "a b c d e f")
    tab.until(lambda: "The mask drawn by hand is gone" in tab.text("#notice"), "it is dropped in silence")
    assert tab.count("#map .unseen") == 0


def test_a_mask_drawn_by_hand_can_be_begun_from_any_rule(tab, page):
    for rule in ("none", "causal", "window", "self"):
        play(tab, page)
        tab.choose("#mask", rule)
        tab.choose("#mask", "drawn")
        tab.until(lambda: tab.count("#map.drawing"), "nothing can be drawn")
        assert tab.one("#mask").get_attribute("value") == "drawn", rule


def test_words_that_are_left_out_are_named_and_none_is_cut_within_a_character(tab, page):
    play(tab, page)
    tab.choose("#tokens", " ".join(f"w{n}" for n in range(30)))
    tab.until(lambda: tab.text("#notice") == "Only the first 24 of 30 words are used.", tab.text("#notice"))
    tab.choose("#tokens", "x" * 31 + "\U0001f600y")
    tab.until(lambda: tab.text("#notice") == "Words are cut after 32 characters.", tab.text("#notice"))
    assert tab.text("#map .key-name") == "x" * 31 + "\U0001f600"


def test_a_link_keeps_every_number_that_the_page_can_hold_and_names_those_it_does_not(tab, page):
    count, heads, dim = 24, 8, 16
    number = "-1.1754944e-38"  # as long as a float is written
    edits = "+".join(f"{kind}.{head}.{token}.{d}:{number}" for kind in "qkv" for head in range(heads) for token in range(count) for d in range(dim))
    address = f"#tokens={'+'.join(f'w{n}' for n in range(count))}&heads={heads}&kvHeads={heads}&dim={dim}&head=7&query=23&edits="
    play(tab, page, address + edits)
    assert {np.float32(number)} == {x for kind in "qkv" for row in shown_vectors(tab, kind).values() for x in np.float32(row)}
    assert not tab.one("#notice").is_displayed()
    play(tab, page, f"{address}q.7.23.0:1e39+k.8.0.0:1+v.7.0.0:2")
    assert tab.text("#notice") == "Left out of this link: 2 of 3 numbers, which no vector here can have."
    assert shown_vectors(tab, "v")[0][0] == 2


def test_everything_has_a_name_for_screen_readers(tab, page):
    play(tab, page)
    unnamed = tab.driver.execute_script(
        "return [...document.querySelectorAll('button, select, input, [tabindex]')].filter((e) => !(e.getAttribute('aria-label') ||"
        " e.textContent.trim() || e.labels?.length || e.title)).map((e) => e.outerHTML)"
    )
    assert unnamed == []


LESSONS = ["What does “it” mean?", "A query", "Keys and scores", "Softmax", "Weights", "Values", "Heads", "Masks", "Shared keys: GQA and MQA", "The KV cache"]


@EVERY_SCREEN
def test_nothing_lies_over_anything_else_on_any_screen(tab, page, size, theme):
    screen = Screen(tab)
    is_touched = screen.resize(size)
    play(tab, page)
    for address in ("#query=8", "#heads=8&kvHeads=2&dim=16", "#cached=6&cacheType=int8", *(f"#tour={n + 1}" for n in range(len(LESSONS)))):
        screen.go(f"{address}&theme={theme}")
        screen.assert_in_order(is_touched, f"{address} at {size}, {theme}")
    refuse(tab)
    screen.assert_in_order(is_touched, f"a refusal at {size}, {theme}")
    assert tab.complaints() == []
    assert {url.partition("#")[0] for url in tab.requests()} <= {page.as_uri()}


def refuse(tab):
    tab.choose("#softcap", "-1")
    tab.until(lambda: tab.one("#refusal").is_displayed(), "nothing is refused")


@pytest.mark.parametrize(("size", "theme"), [((390, 844), "dark"), ((1400, 900), "light")], ids=str)
def test_axe_finds_no_violation(tab, page, size, theme):
    screen = Screen(tab)
    screen.resize(size)
    play(tab, page)
    for address in ("#query=8", "#tour=1", "#tour=5", "#tour=8", "#tour=10"):
        screen.go(f"{address}&theme={theme}")
        assert screen.violations() == [], address
    refuse(tab)
    assert screen.violations() == []


def test_the_steps_are_on_the_first_screen(tab, page):
    Screen(tab).resize((1400, 900))
    play(tab, page)
    table = tab.one("#steps table").rect
    assert table["y"] + table["height"] < 900 and table["x"] + table["width"] < 1400
    assert tab.driver.execute_script("const box = document.querySelector('#steps'); return box.scrollWidth <= box.clientWidth"), "a column is out of sight"


def test_on_a_telephone_scores_and_weights_stand_beside_their_words(tab, page):
    screen = Screen(tab)
    screen.resize((390, 844))
    play(tab, page, "#head=0&query=8")
    assert_steps(tab, 8, columns=(1, 2, 3))
    left, right = tab.driver.execute_script("const box = document.querySelector('#steps').getBoundingClientRect(); return [box.left, box.right]")
    box = lambda selector: tab.driver.execute_script("const b = document.querySelector(arguments[0]).getBoundingClientRect(); return [b.left, b.right]", selector)  # noqa: E731
    for cell in ("td.score", "td.share", "td.weight"):
        assert box(f"#steps {cell}")[0] >= box("#steps tr:nth-child(3) th")[1] - 1 and box(f"#steps {cell}")[1] <= right
    for tour, told in ((2, ".asking input"), (3, "td.k, td.score"), (4, "td.share, td.weight"), (6, "td.weight, td.v, #result output")):
        screen.go(f"#tour={tour}")
        tab.until(lambda: tab.text("#tour-title").startswith(str(tour)), tab.text("#tour-title"))  # noqa: B023
        edges = tab.driver.execute_script(
            "return [...document.querySelectorAll(arguments[0])].map((e) => [e.getBoundingClientRect().left, e.getBoundingClientRect().right])",
            ", ".join(f"#steps {each}" for each in told.split(", ")),
        )
        assert edges and all(left <= a and b <= right + 1 for a, b in edges), f"step {tour} tells of what is out of sight: {edges}"
        below = tab.driver.execute_script("return Math.max(...[...document.querySelectorAll('.toured')].map((e) => e.getBoundingClientRect().bottom)) - document.querySelector('#tour').getBoundingClientRect().top")
        assert below <= 1, f"step {tour} tells of what is below the tour by {below} pixels"
    assert tab.driver.execute_script("return [...document.querySelectorAll('#result output')].every((e) => e.scrollWidth <= e.clientWidth)"), "results touch"


def test_the_header_is_one_line_on_every_screen(tab, page):
    screen = Screen(tab)
    for size in SIZES:
        screen.resize(size)
        play(tab, page)
        assert tab.one("header").rect["height"] < 64 and tab.one("h1").rect["height"] < 30, size


def test_the_tour_is_walked_by_keyboard_to_its_end(tab, page):
    Screen(tab).resize((1400, 900))
    play(tab, page)
    for _ in range(30):  # to the button
        tab.press("\ue004")
        if tab.driver.execute_script("return document.activeElement.id") == "take-tour":
            break
    tab.press("\ue007")
    seen = []
    for n, title in enumerate(LESSONS):
        tab.until(lambda: tab.text("#tour-title") == f"{n + 1} of {len(LESSONS)} · {title}", tab.text("#tour-title"))  # noqa: B023
        tab.until(lambda: tab.count(".toured"), f"nothing is pointed at by {title}")  # noqa: B023
        assert len(tab.text("#tour-words")) > 80
        seen.append(tab.text("#tour-words"))
        tab.press("\ue007")
    tab.until(lambda: not tab.one("#tour").is_displayed(), "the tour does not end")
    assert len(set(seen)) == len(LESSONS) and tab.complaints() == []
    assert tab.driver.execute_script("return document.activeElement.id") == "take-tour", "the keyboard is left nowhere"


def test_a_step_of_the_tour_shows_what_it_tells_and_can_be_left(tab, page):
    Screen(tab).resize((1400, 900))
    play(tab, page, "#tour=8")
    assert tab.count("#map .unseen") == len(WORDS) * (len(WORDS) - 1) // 2
    play(tab, page, "#tour=10")
    assert tab.count(".sharing") == 2 and tab.text('[data-kind="MQA"] output') == f"{5 * 64:,} bytes" and tab.text('[data-kind="MHA"] output') == f"{5 * 256:,} bytes"
    tab.press("\ue00c")
    tab.until(lambda: not tab.one("#tour").is_displayed() and "tour=" not in tab.address(), "Escape does not leave the tour")
    assert tab.count(".sharing") == 2, "what was shown stays"


def test_the_tour_gives_back_what_it_found(tab, page):
    Screen(tab).resize((1400, 900))
    play(tab, page, "#tokens=a+b+c+d&heads=2&kvHeads=1&dim=4&head=1&query=2&cached=3&edits=q.1.2.0%3A2")
    before = tab.address(), weights(tab)
    tab.one("#take-tour").click()
    tab.until(lambda: tab.count("#map .query-name") == 15, "the tour has other words")
    tab.one("#tour-next").click()
    tab.until(lambda: tab.count("#map .query-name") == len(WORDS), "the next step has the model's words")
    tab.press("\ue00c")
    tab.until(lambda: tab.count("#map .query-name") == 4, "the words of the tour stay")
    assert np.array_equal(weights(tab), before[1]) and tab.count(".cells i.kept") == 2 * 3
    tab.until(lambda: dict(each.split("=") for each in tab.address()[1:].split("&")) == dict(each.split("=") for each in before[0][1:].split("&")), tab.address())


def test_colours_axes_and_words_are_explained(tab, page):
    Screen(tab).resize((1400, 900))
    play(tab, page)
    assert [each.text for each in tab.all(".axis")] == ["Keys: the words looked at →", "← Queries: the words that look"]
    assert "Weight: 0" in tab.text("#legend") and tab.one("#legend-bar").rect["width"] > 80
    shown = tab.text("main")
    assert all(name in shown for name in ("Multi-head attention", "Grouped-query attention", "Multi-query attention"))
    tab.one("#words summary").click()
    assert {"value", "scale", "softcap", "softmax", "first token"} <= {each.text for each in tab.all("#words dt")}


def test_a_link_restores_a_step_of_the_tour_and_what_was_changed_in_it(tab, page):
    Screen(tab).resize((1400, 900))
    play(tab, page, "#tour=8")
    tab.choose("#mask", "none")
    tab.until(lambda: tab.count("#map .unseen") == 0 and "hidden=" in tab.address(), tab.address())
    address = tab.address()
    play(tab, page, address)
    assert tab.text("#tour-title").startswith("8 of") and tab.count("#map .unseen") == 0


def before_its_scripts(screen, source):
    return screen.command("Page.addScriptToEvaluateOnNewDocument", source=source)["identifier"]


@pytest.mark.parametrize("name", ["WebAssembly", "DecompressionStream"])
def test_what_the_browser_lacks_is_said_in_a_sentence(tab, page, name):
    screen = Screen(tab)
    screen.resize((390, 844))
    script = before_its_scripts(screen, f"delete globalThis.{name}")
    try:
        tab.driver.get("about:blank")
        tab.complaints()
        tab.driver.get(page.as_uri())
        tab.until(lambda: tab.one("#refusal").is_displayed(), "nothing is said")
        assert tab.text("#refusal").startswith(f"This page needs {name}, which this browser has not")
        assert not any(each.is_displayed() for each in tab.all("input, header button, #engine")) and tab.complaints() == []
    finally:
        screen.command("Page.removeScriptToEvaluateOnNewDocument", identifier=script)


def test_without_javascript_the_message_stands_at_the_top_and_nothing_else_can_be_used(tab, page):
    screen = Screen(tab)
    screen.resize((390, 844))
    screen.command("Emulation.setScriptExecutionDisabled", value=True)
    try:
        tab.driver.get("about:blank")
        tab.driver.get(page.as_uri())
        message = tab.one("noscript").rect  # selenium calls it hidden always
        assert message["height"] > 20 and message["y"] < 80
        assert not any(each.is_displayed() for each in tab.all("button, input, select"))
    finally:
        screen.command("Emulation.setScriptExecutionDisabled", value=False)


def test_printed_it_is_light_and_whole(tab, page):
    screen = Screen(tab)
    screen.resize((1400, 900))
    play(tab, page, "#theme=dark")
    screen.command("Emulation.setEmulatedMedia", media="print")
    try:
        tab.driver.execute_script("dispatchEvent(new Event('beforeprint'))")
        theme = "return document.documentElement.dataset.theme"
        assert tab.driver.execute_script(theme) == "light"
        assert tab.driver.execute_script("return [...document.querySelectorAll('body, main, #steps')].every((e) => e.scrollHeight <= e.clientHeight)")
        assert tab.driver.execute_script("return document.documentElement.scrollHeight > innerHeight"), "all of it is below each other"
        tab.driver.execute_script("dispatchEvent(new Event('afterprint'))")
        assert tab.driver.execute_script(theme) == "dark" and "theme=dark" in tab.address()
    finally:
        screen.command("Emulation.setEmulatedMedia", media="")


@pytest.mark.parametrize("width", [320, 360])
def test_on_the_narrowest_screens_words_stay_whole_and_can_be_read(tab, page, width):
    screen = Screen(tab)
    screen.resize((width, 740))
    for address in ("", "#heads=8&dim=16", "#tour=6"):
        play(tab, page, address)
        screen.assert_in_order(True, f"{address} at {width}")
        assert tab.one("h1").rect["height"] < 30 and tab.one("header").rect["height"] < 64
        sizes = tab.driver.execute_script(
            "return [...document.querySelectorAll('body *')].filter((e) => e.checkVisibility() && [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()))"
            ".filter((e) => parseFloat(getComputedStyle(e).fontSize) < 10).map((e) => e.outerHTML.slice(0, 80))"
        )
        assert sizes == []


def test_the_keyboard_is_left_nowhere_by_the_tour(tab, page):
    Screen(tab).resize((1400, 900))
    play(tab, page, "#tour=2")
    tab.one("#tour-back").click()
    tab.until(lambda: tab.text("#tour-title").startswith("1"), tab.text("#tour-title"))
    assert focus(tab) == "tour-next"
    tab.one("#start-over").click()
    tab.until(lambda: not tab.one("#tour").is_displayed(), "the tour stays")
    assert focus(tab) == "start-over"


def test_the_sentence_of_the_cache_names_its_mask(tab, page):
    play(tab, page, "#cached=9")
    assert tab.text("#cache-check").endswith("under a causal mask, which is not the one chosen here.")
    tab.choose("#mask", "causal")
    tab.until(lambda: tab.text("#cache-check").endswith("under a causal mask."), tab.text("#cache-check"))


def test_a_finger_that_the_browser_takes_for_scrolling_draws_no_more(tab, page):
    Screen(tab).resize((1400, 900))
    play(tab, page)
    tab.one('#tool [data-tool="draw"]').click()
    tab.until(lambda: tab.count("#map.drawing"), "nothing can be drawn")
    send = """
      const cell = document.querySelector(`#map [data-query="${arguments[1]}"][data-key="${arguments[1]}"]`);
      const { x, y, width, height } = cell.getBoundingClientRect();
      cell.dispatchEvent(new PointerEvent(arguments[0], { clientX: x + width / 2, clientY: y + height / 2, bubbles: true, pointerType: "touch" }));
    """
    tab.driver.execute_script(send, "pointerdown", 0)
    tab.until(lambda: tab.count("#map .unseen") == 1, "the first cell is not hidden")
    tab.driver.execute_script(send, "pointercancel", 0)
    tab.driver.execute_script(send, "pointermove", 3)
    tab.driver.execute_script(send, "pointerdown", 5)  # what comes after it is drawn
    tab.until(lambda: tab.count("#map .unseen") >= 2, "nothing is drawn any more")
    assert tab.count("#map .unseen") == 2 and not tab.count('#map .unseen[data-query="3"]')
