# SPDX-License-Identifier: Apache-2.0
"""Two real models, watched: they compute what they always do, and what is shown are the weights of eager attention."""

import pathlib
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import heed  # noqa: E402

sys.path.append(str(pathlib.Path(__file__).parents[1] / "python"))
from shown_page import ShownPage  # noqa: E402

TEXT = "The cat that chased the mouse sat on the mat because it was tired."


def eager_weights(model, inputs):
    """Of every layer, (heads, queries, keys), of the first batch entry."""
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        return [layer[0].numpy() for layer in model(**inputs, output_attentions=True).attentions]


def furthest(page, weights, visible=None):
    """The largest error of any weight shown, and whether exactly the unseen ones are hidden."""
    worst = 0.0
    for n, layer in enumerate(weights):
        for h, head in enumerate(layer):
            found, hidden = page.exact(layer=n, head=h)
            assert (hidden == (np.zeros_like(hidden) if visible is None else ~visible)).all()
            worst = max(worst, float(np.abs(found - head)[~hidden].max()))
    return worst


@pytest.mark.parametrize("attention", ["eager", "sdpa", "heed"])
def test_a_language_model_is_watched_whatever_computes_its_attention(smollm2, attention):
    model, tokenizer = smollm2
    inputs = tokenizer(TEXT, return_tensors="pt")
    weights = eager_weights(model, inputs)
    model.set_attn_implementation(attention)
    with torch.inference_mode():
        before = model(**inputs).logits
        with heed.transformers.watch(model) as run:
            watched = model(**inputs).logits
        after = model(**inputs).logits
    assert torch.equal(before, watched) and torch.equal(before, after)
    tokens = tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])
    page = ShownPage(heed.view(run, tokens=tokens).html)
    (shown,) = page.description["runs"]
    assert len(shown["layers"]) == model.config.num_hidden_layers
    assert shown["layers"][0]["kv_heads"] == model.config.num_key_value_heads
    assert shown["layers"][7]["name"] == "Layer 7" and page.description["tokens"] == [tokens]
    assert furthest(page, weights, np.tri(len(tokens), dtype=bool)) <= 2e-5


def test_text_that_is_generated_is_one_run(smollm2):
    model, tokenizer = smollm2
    model.set_attn_implementation("sdpa")
    inputs = tokenizer("Once upon a time", return_tensors="pt")
    with heed.transformers.watch(model, layers=[0, 3]) as run:
        text = model.generate(**inputs, max_new_tokens=6, min_new_tokens=6, do_sample=False)
    page = ShownPage(heed.view(run).html)
    (shown,) = page.description["runs"]
    assert [layer["name"] for layer in shown["layers"]] == ["Layer 0", "Layer 3"]
    count = text.shape[1] - 1  # the last token was never asked
    assert (shown["queries"], shown["keys"], shown["first_position"]) == (count, count, 0)
    weights = eager_weights(model, {"input_ids": text[:, :count]})
    assert furthest(page, [weights[0], weights[3]], np.tri(count, dtype=bool)) <= 2e-5


def test_padding_is_hidden_and_passes_are_runs_of_their_own(minilm):
    model, tokenizer = minilm
    inputs = tokenizer([TEXT, "Good morning!"], padding=True, return_tensors="pt")
    model.set_attn_implementation("sdpa")
    with torch.inference_mode(), heed.transformers.watch(model, entry=1) as run:
        model(**inputs)
        model(**inputs)
    page = ShownPage(heed.view(run).html)
    assert [shown["name"] for shown in page.description["runs"]] == ["Pass 0", "Pass 1"]
    real = inputs["attention_mask"][1].bool().numpy()
    _, hidden = page.exact(layer=2, head=5)
    assert (hidden == ~real[None, :]).all()


def test_an_encoder_shows_the_weights_of_eager_attention(minilm):
    model, tokenizer = minilm
    inputs = tokenizer(TEXT, return_tensors="pt")
    weights = eager_weights(model, inputs)
    model.set_attn_implementation("sdpa")
    with torch.inference_mode(), heed.transformers.watch(model) as run:
        model(**inputs)
    page = ShownPage(heed.view(run).html)
    assert len(page.description["runs"][0]["layers"]) == 6
    assert furthest(page, weights) <= 1e-5


def test_a_model_that_has_not_run_is_refused_by_a_sentence(minilm):
    with heed.transformers.watch(minilm[0]) as run:
        pass
    with pytest.raises(ValueError, match="the model has not run"):
        heed.view(run)
