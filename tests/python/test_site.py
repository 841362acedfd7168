# SPDX-License-Identifier: Apache-2.0
"""The built site in a real browser, opened from the disk: nothing is cut on a phone, the search answers, a session is copied as it
was typed, and axe finds nothing. scripts/docs builds it."""

import pathlib

import pytest

import browser
from screens import Screen

SITE = pathlib.Path(__file__).parents[2] / "build/site"
pytestmark = pytest.mark.skipif(not (SITE / "index.html").exists(), reason="scripts/docs has not built the site")
OWN = {"404.html", "playground.html"}  # for a server's root; a page of its own

# What ends beyond the screen and neither scrolls by itself nor fades to say so.
CUT = """
const width = document.documentElement.clientWidth;
const hinted = (element) => element.closest('.wide.more[tabindex="0"]');
const beyond = [...document.querySelectorAll('.md-content *')].filter((element) => element.getBoundingClientRect().right > width + 0.5);
const cut = beyond.filter((element) => !hinted(element) && !(element.closest('svg') && element.tagName !== 'svg'));
if (document.documentElement.scrollWidth > width) cut.push(document.documentElement);
return cut.map((element) => `${element.tagName} ${element.className} "${element.textContent.trim().slice(0, 40)}"`);
"""


@pytest.fixture(scope="module")
def tab():
    driver = browser.start(1400, 1000)
    yield browser.Tab(driver)
    driver.quit()


def open_page(tab, name, address=""):
    tab.driver.get((SITE / name).as_uri() + address)


def test_nothing_is_wider_than_a_phone_unless_it_scrolls_and_says_so(tab):
    Screen(tab).resize((390, 844))
    pages = sorted(path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html"))
    pages = [page for page in pages if not page.startswith("source/") and page not in OWN]
    assert len(pages) >= 40
    wrong = []
    for page in pages:
        open_page(tab, page)
        tab.driver.execute_script("document.querySelectorAll('details').forEach((each) => (each.open = true))")
        try:
            tab.until(lambda: not tab.driver.execute_script(CUT), "", 1)  # what is wide is measured when it has its size
        except AssertionError:
            wrong.append(f"{page}: {tab.driver.execute_script(CUT)[:3]}")
    assert not wrong, "\n".join(wrong)


def test_the_search_answers_in_words_from_a_disk(tab):
    Screen(tab).resize((1400, 1000))
    open_page(tab, "lessons/training.html", "?q=how do I install it")
    first = tab.until(lambda: tab.text(".md-search-result__item h1, .md-search-result__item h2"), "the search finds nothing")
    assert "Building" in first or "Start" in first
    assert not tab.complaints()


def test_a_session_is_copied_as_it_was_typed(tab):
    Screen(tab).resize((1400, 1000))
    open_page(tab, "attention.html")
    tab.until(lambda: tab.count(".language-pycon button, .highlight button"), "nothing can be copied")
    copied = tab.driver.execute_script(
        "const session = [...document.querySelectorAll('.highlight')].find((each) => each.textContent.includes('>>> import heed'));"
        "const button = session.querySelector('button'); button.click(); return button.dataset.clipboardText")  # fmt: skip
    assert copied.splitlines()[0] == "import heed, numpy as np" and "array(" not in copied and ">>>" not in copied


@pytest.mark.parametrize(("page", "theme"), [("index.html", "light"), ("index.html", "dark"), ("start.html", "light"), ("attention.html", "dark")])
def test_axe_finds_nothing(tab, page, theme):
    screen = Screen(tab)
    screen.resize((390, 844))
    screen.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
    open_page(tab, page)
    tab.until(lambda: tab.count(".wide") or page == "index.html", "nothing is measured")
    assert not screen.violations()


@pytest.mark.parametrize(("theme", "scheme"), [("light", "default"), ("dark", "slate")])
def test_the_home_page_has_a_map_that_heed_computes_there_in_the_colours_of_the_page(tab, theme, scheme):
    screen = Screen(tab)
    screen.resize((1400, 1000))
    screen.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
    open_page(tab, "index.html")
    assert tab.driver.execute_script("return document.body.dataset.mdColorScheme") == scheme
    frame = tab.one("iframe.live")
    tab.driver.execute_script("arguments[0].scrollIntoView()", frame)
    tab.driver.switch_to.frame(frame)
    try:
        tab.until(lambda: tab.count("#map [data-key]") > 20, "no map is drawn")
        assert tab.driver.execute_script("return document.documentElement.dataset.theme") == theme
        assert not tab.one("#steps").is_displayed() and not tab.one("header").is_displayed()
    finally:
        tab.driver.switch_to.default_content()


def test_every_way_to_install_is_a_tab(tab):
    Screen(tab).resize((390, 844))
    open_page(tab, "index.html")
    tabs = tab.until(lambda: tab.all('.choices [role="tab"]'), "there are no tabs")
    assert [each.text for each in tabs] == ["Python", "C++", "C", "PyTorch", "Hugging Face", "JAX", "GPU"]
    for each in tabs:
        tab.driver.execute_script("arguments[0].click()", each)
        shown = [panel for panel in tab.all('.choices [role="tabpanel"]') if panel.is_displayed()]
        assert len(shown) == 1 and shown[0].find_elements("css selector", "code, a"), each.text
