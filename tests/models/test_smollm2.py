# SPDX-License-Identifier: Apache-2.0
"""A language model: grouped heads, rotary positions and a cache, from the prompt to the last token."""

import copy

import pytest

torch = pytest.importorskip("torch")

PROMPT = "The three primary colours are"
PROMPTS = [PROMPT, "Once upon a time, in a village by the sea, there lived", "2 + 2 ="]


def generate(smollm2, prompts, attention, new_tokens):
    """(tokens (prompts, new_tokens), logits (prompts, new_tokens, vocabulary)), greedily."""
    model, tokenizer = smollm2
    model.set_attn_implementation(attention)
    batch = tokenizer(prompts, padding=True, padding_side="left", return_tensors="pt")
    answer = model.generate(
        **batch, min_new_tokens=new_tokens, max_new_tokens=new_tokens, do_sample=False, use_cache=True,
        return_dict_in_generate=True, output_logits=True,
    )  # fmt: skip
    return answer.sequences[:, batch["input_ids"].shape[1] :], torch.stack(answer.logits, 1)


def test_64_tokens_are_those_of_eager_attention(smollm2):
    ours, our_logits = generate(smollm2, [PROMPT], "heed", 64)
    eager, eager_logits = generate(smollm2, [PROMPT], "eager", 64)
    assert ours.shape == (1, 64) and ours.tolist() == eager.tolist()
    assert (our_logits - eager_logits).abs().max().item() <= 1e-3
    assert "red" in smollm2[1].decode(ours[0])


def test_padded_prompts_in_a_batch_give_the_tokens_of_eager_attention(smollm2):
    ours, our_logits = generate(smollm2, PROMPTS, "heed", 12)
    eager, eager_logits = generate(smollm2, PROMPTS, "eager", 12)
    assert ours.tolist() == eager.tolist()
    assert (our_logits - eager_logits).abs().max().item() <= 1e-3


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
