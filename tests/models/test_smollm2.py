# SPDX-License-Identifier: Apache-2.0
"""A language model: grouped heads, rotary positions and a cache, from the prompt to the last token."""

import copy

import pytest
from prose import PASSAGES

torch = pytest.importorskip("torch")

PROMPT = "The three primary colours are"
PROMPTS = [PROMPT, "Once upon a time, in a village by the sea, there lived", "2 + 2 ="]


def generate(smollm2, prompts, attention, new_tokens, cache=None):
    """(tokens (prompts, new_tokens), logits (prompts, new_tokens, vocabulary)), greedily."""
    model, tokenizer = smollm2
    model.set_attn_implementation(attention)
    batch = tokenizer(prompts, padding=True, padding_side="left", return_tensors="pt")
    answer = model.generate(
        **batch, min_new_tokens=new_tokens, max_new_tokens=new_tokens, do_sample=False, use_cache=True,
        return_dict_in_generate=True, output_logits=True, past_key_values=cache,
    )  # fmt: skip
    return answer.sequences[:, batch["input_ids"].shape[1] :], torch.stack(answer.logits, 1)


@pytest.fixture(scope="module")
def eager_answers(smollm2):
    return generate(smollm2, PROMPTS, "eager", 12)


def test_64_tokens_are_those_of_eager_attention(smollm2):
    model, tokenizer = smollm2
    ours, our_logits = generate(smollm2, [PROMPT], "heed", 64)
    # Every token is eager attention's choice after those before it, so that it would have written the same text. All of
    # them at once take a fraction of the time of 64 steps.
    model.set_attn_implementation("eager")
    prompt = tokenizer([PROMPT], return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        eager_logits = model(torch.cat([prompt, ours[:, :-1]], 1)).logits[:, prompt.shape[1] - 1 :]
    assert ours.shape == (1, 64) and ours.tolist() == eager_logits.argmax(-1).tolist()
    assert (our_logits - eager_logits).abs().max().item() <= 1e-3
    assert "red" in tokenizer.decode(ours[0])


def test_padded_prompts_in_a_batch_give_the_tokens_of_eager_attention(smollm2, eager_answers):
    ours, our_logits = generate(smollm2, PROMPTS, "heed", 12)
    eager, eager_logits = eager_answers
    assert ours.tolist() == eager.tolist()
    assert (our_logits - eager_logits).abs().max().item() <= 1e-3


def test_a_cache_of_heed_gives_the_tokens_of_eager_attention(smollm2, eager_answers):
    heed = pytest.importorskip("heed.transformers")
    cache = heed.HeedCache(smollm2[0].config)
    ours, our_logits = generate(smollm2, PROMPTS, "heed", 12, cache)
    eager, eager_logits = eager_answers
    assert ours.tolist() == eager.tolist()
    assert (our_logits - eager_logits).abs().max().item() <= 1e-3
    assert cache.get_seq_length() > 12


def test_an_int8_cache_keeps_the_likeliest_token_on_99_percent_of_500_positions(smollm2):
    heed = pytest.importorskip("heed.transformers")
    model, tokenizer = smollm2
    ids = torch.tensor([tokenizer(passage)["input_ids"][:125] for passage in PASSAGES])
    assert ids.numel() == 500
    cache = heed.HeedCache(model.config, quantize="int8")
    with torch.inference_mode():
        model.set_attn_implementation("eager")
        expected = model(ids).logits.argmax(-1)
        model.set_attn_implementation("heed")
        # However they come, tokens read all their keys from the cache with the same bits; one by one takes longest.
        pieces = ids.split([25] * 4 + [5] * 4 + [1] * 5, 1)
        found = [model(piece, past_key_values=cache).logits.argmax(-1) for piece in pieces]
    kept = (torch.cat(found, 1) == expected).sum().item()
    print(f"int8 cache: the likeliest token is kept on {kept} of 500 positions, {kept / 5:.1f} %")
    assert kept >= 495
    assert all(layer.cache.dtype == "int8" and layer.cache.lengths == [125] * 4 for layer in cache.layers)


def test_in_bfloat16_heed_is_no_further_from_float32_than_eager_attention(smollm2):
    model, tokenizer = smollm2
    ids = tokenizer(PROMPTS[1], return_tensors="pt")["input_ids"]
    judge = copy.deepcopy(model.model)
    judge.layers = judge.layers[:2]  # torch's projections in bfloat16 take seconds per layer on older processors
    narrow = copy.deepcopy(judge).to(torch.bfloat16)

    def states(of, attention):
        of.set_attn_implementation(attention)
        with torch.inference_mode():
            return of(ids).last_hidden_state.float()

    expected = states(judge, "eager")
    ours, eager = ((states(narrow, name) - expected).square().mean().sqrt() for name in ("heed", "eager"))
    assert 0 < ours <= 2 * eager


def test_three_steps_of_an_optimiser_have_the_losses_of_eager_attention(smollm2):
    model, tokenizer = smollm2
    ids = torch.tensor([tokenizer(passage)["input_ids"][:64] for passage in PASSAGES[:2]])
    losses = {}
    for attention in ("eager", "heed"):
        trained = copy.deepcopy(model).train()
        trained.set_attn_implementation(attention)
        optimiser = torch.optim.SGD(trained.parameters(), lr=1e-2)
        for _ in range(3):
            optimiser.zero_grad()
            loss = trained(ids, labels=ids).loss
            loss.backward()
            optimiser.step()
            losses.setdefault(attention, []).append(loss.item())
    assert losses["heed"] == pytest.approx(losses["eager"], abs=1e-4)
    assert losses["heed"][2] < losses["heed"][0]
