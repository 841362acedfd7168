# SPDX-License-Identifier: Apache-2.0
"""The playground with the heads of a real model: what they look at, and how their products add up."""

import pathlib
import sys

import numpy as np
from screens import Screen
from test_playground import page, play, pytestmark, tab, weights  # noqa: F401


def of_the_model():
    """What playground/heads.py wrote."""
    sys.path.append(str(pathlib.Path(__file__).parents[2] / "playground"))
    import heads

    return heads, heads.read()


def test_it_finds_its_noun_in_a_head_of_a_real_model(tab, page):
    heads, model = of_the_model()
    assert len(model["sentences"]) == 12
    Screen(tab).resize((1400, 900))
    for n, sentence in enumerate(model["sentences"]):
        play(tab, page, f"#source={n}")
        expected = heads.weights(sentence, 0, sentence["query"])
        assert np.abs(weights(tab) - expected).max() < 1e-5, sentence["text"]
        assert int(np.argmax(weights(tab))) == sentence["key"], sentence["text"]
        assert sentence["tokens"][sentence["key"]] in tab.text("#cell")
    assert tab.complaints() == []


def test_the_products_of_a_key_that_is_touched_add_up(tab, page):
    heads, model = of_the_model()
    Screen(tab).resize((1400, 900))
    play(tab, page, "#source=0")
    sentence = model["sentences"][0]
    tab.driver.execute_script("document.querySelector('#steps td.k[data-token=\"2\"] i').click()")
    said = tab.until(lambda: tab.text("#products"), "nothing is said of the products")
    count, dim = len(sentence["tokens"]), sentence["dim"]
    row = lambda kind, token: np.array(sentence[kind][token * dim :][:dim]) / 100  # noqa: E731
    total = row("q", sentence["query"]) @ row("k", 2)
    assert said.startswith("“animal”") and f"= {total:.3f}" in said and tab.count("#products i") == dim and count == 15


def test_words_typed_take_effect_at_once_and_are_ones_own(tab, page):
    Screen(tab).resize((1400, 900))
    play(tab, page, "#source=0")
    tab.driver.execute_script("const box = document.querySelector('#tokens'); box.focus(); box.select()")
    tab.press("a b")
    tab.until(lambda: tab.count("#map .query-name") == 2, "nothing happens before a change of focus")
    tab.press(" a")
    tab.until(lambda: tab.count("#map .query-name") == 3 and tab.one("#source").get_attribute("value") == "-1", "the words are still the model's")
    assert tab.one("#tokens").get_attribute("value") == "a b a" and tab.count("#steps input") > 0 and tab.complaints() == []
