# SPDX-License-Identifier: Apache-2.0
"""Small models that generate, watched over every kind of cache: one run, with the weights of eager attention over the whole text."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import heed  # noqa: E402
import heed.transformers  # noqa: E402
import test_transformers as small  # noqa: E402
from heed.transformers import HeedCache  # noqa: E402
from shown_page import ShownPage  # noqa: E402

PROMPT, NEW = 9, 8
CACHES = {
    "dynamic": lambda config: transformers.DynamicCache(config=config),
    "static": lambda config: transformers.StaticCache(config=config, max_cache_len=PROMPT + NEW + 4),
    "heed": lambda config: HeedCache(config, page_size=16),
}


@pytest.mark.parametrize("prompt", [PROMPT, 3], ids=["longer than the window", "shorter"])
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2"])
def test_text_generated_over_any_cache_is_one_run_with_the_weights_of_eager_attention(family, cache, prompt):
    config = small.DECODERS[family]()
    attention = "heed" if cache == "heed" else "sdpa" if family != "gemma2" else "eager"
    model = small.randomised(transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention))
    tokens = torch.randint(2, small.VOCABULARY, (1, prompt), generator=torch.Generator().manual_seed(3))
    with torch.inference_mode(), heed.transformers.watch(model) as run:
        text = model.generate(
            tokens, past_key_values=CACHES[cache](config), max_new_tokens=NEW, do_sample=False, attention_mask=torch.ones_like(tokens)
        )
    count = text.shape[1] - 1  # the last token was never asked
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        weights = model(text[:, :count], output_attentions=True, use_cache=False).attentions
    page = ShownPage(heed.view(run, tokens=[str(n) for n in range(count)]).html)
    (shown,) = page.description["runs"]
    assert (shown["queries"], shown["keys"], shown["first_position"]) == (count, count, 0)
    assert [layer["name"] for layer in shown["layers"]] == ["Layer 0", "Layer 1"]
    for n in range(2):
        for head in range(config.num_attention_heads):
            found, hidden = page.exact(layer=n, head=head)
            expected = weights[n][0, head].numpy()
            assert (hidden == (expected == 0)).all()
            assert np.abs(found - expected)[~hidden].max() <= 2e-5


def test_a_watched_run_is_drawn_layer_by_layer(tmp_path):
    model = small.randomised(transformers.AutoModelForCausalLM.from_config(small.DECODERS["llama"]()))
    with torch.inference_mode(), heed.transformers.watch(model) as run:
        model(torch.arange(2, 9)[None])
    for number in (0, -1):
        heed.picture(run, tmp_path / "layer.svg", layers=number, tokens=[str(n) for n in range(7)])
        assert (tmp_path / "layer.svg").read_text().startswith("<svg")
    heed.picture(run, tmp_path / "layers.svg")
    assert len((tmp_path / "layers.svg").read_text()) > len((tmp_path / "layer.svg").read_text())
