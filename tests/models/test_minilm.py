# SPDX-License-Identifier: Apache-2.0
"""A sentence encoder: what padding and company do to an embedding."""

import pathlib
import sys

import pytest

torch = pytest.importorskip("torch")

import heed  # noqa: E402

SENTENCES = [
    "Attention.",
    "The cat sat on the mat.",
    "A quick brown fox jumps over a lazy dog.",
    "To be, or not to be, that is the question.",
    "Water boils at one hundred degrees Celsius at sea level.",
    "Yes.",
    "The committee postponed its decision until the auditors had finished their report on the past three years.",
    "Où est la bibliothèque?",
    "She plays the violin, he plays the cello, and their daughter prefers football.",
    "3.14159 is close to pi, but 355/113 is closer.",
    "In autumn the leaves turn red and yellow before they fall.",
    "The train to Edinburgh leaves from platform nine.",
    "Good morning!",
    "Photosynthesis turns light, water and carbon dioxide into sugar and oxygen.",
    "He forgot his umbrella.",
    "Interest rates rose by a quarter of a percentage point on Thursday, as most economists had expected.",
    "The mitochondrion is the powerhouse of the cell.",
    "Nobody noticed.",
    "A stitch in time saves nine.",
    "The museum, which opened in 1873, owns more than forty thousand drawings, of which only a few hundred are ever "
    "on display at the same time because they suffer from light.",
    "Please close the window.",
    "Rust, C++ and Fortran compile to machine code; Python usually does not.",
    "It rained all day.",
    "Her grandmother's recipe calls for two eggs, a cup of flour, a pinch of salt and a great deal of patience.",
    "The moon orbits the earth.",
    "I would like to return this pair of shoes.",
    "Sorry, wrong number.",
    "The river had burst its banks in the night, and by the morning the lower part of the town could be reached only "
    "by boat; the school, the bakery and the post office stayed closed until the water had gone.",
    "Sixteen men on a dead man's chest.",
    "What time is it?",
    "The proof is left to the reader.",
    "Violets are blue.",
]


def embed(minilm, sentences, attention):
    """Mean of the token states, normalised: (sentences, 384)."""
    model, tokenizer = minilm
    model.set_attn_implementation(attention)
    batch = tokenizer(sentences, padding=True, return_tensors="pt")
    with torch.inference_mode():
        states = model(**batch).last_hidden_state
    is_token = batch["attention_mask"][:, :, None]
    return torch.nn.functional.normalize((states * is_token).sum(1) / is_token.sum(1), dim=-1)


def furthest(a, b):
    return (a - b).abs().max().item()


def test_embeddings_are_those_of_eager_attention(minilm):
    assert len(SENTENCES) == 32
    assert furthest(embed(minilm, SENTENCES, "heed"), embed(minilm, SENTENCES, "eager")) <= 1e-5


def test_the_order_of_the_embeddings_makes_sense(minilm):
    question, answer, other = embed(
        minilm, ["How hot must water be to boil?", SENTENCES[4], SENTENCES[11]], "heed"
    )
    assert question @ answer > question @ other + 0.3


def test_a_sentence_has_the_same_embedding_alone_as_in_a_batch(minilm):
    together = embed(minilm, SENTENCES, "heed")
    alone = torch.cat([embed(minilm, [sentence], "heed") for sentence in SENTENCES])
    # The projections are torch's, whose sums depend on the size of the batch: hence a tolerance here.
    assert furthest(alone, together) <= 1e-6


def test_attention_in_a_batch_has_the_bits_of_attention_alone(minilm, monkeypatch):
    calls = []

    def recorded(*arguments, out, **options):
        found = heed_attention(*arguments, out=out, **options)
        calls.append((arguments, out.clone(), options))
        return found

    heed_attention = heed.attention
    monkeypatch.setattr(heed, "attention", recorded)
    embed(minilm, SENTENCES, "heed")
    assert len(calls) == minilm[0].config.num_hidden_layers
    changed = []
    for layer, ((q, k, v), out, options) in enumerate(calls):
        for sentence, length in enumerate(options["key_lengths"]):
            one, upto = slice(sentence, sentence + 1), slice(length)
            alone = heed_attention(q[one, :, upto], k[one, :, upto], v[one, :, upto], scale=options["scale"])
            if not torch.equal(alone, out[one, :, upto]):
                changed.append(f"layer {layer}, sentence {sentence}")
    assert not changed, f"{len(changed)} differ, first: {changed[0]}"


def test_the_heads_of_the_playground_are_those_of_the_model():
    """As playground/heads.py took them, to a hundredth: sums in another order round another way."""
    sys.path.append(str(pathlib.Path(__file__).parents[2] / "playground"))
    import heads

    fresh, kept = heads.made(), heads.read()
    assert fresh["heads"] == kept["heads"] and len(fresh["sentences"]) == len(kept["sentences"])
    for new, old in zip(fresh["sentences"], kept["sentences"]):
        assert (new["tokens"], new["query"], new["key"]) == (old["tokens"], old["query"], old["key"])
        for kind in "qkv":
            assert max(abs(a - b) for a, b in zip(new[kind], old[kind], strict=True)) <= 1, (old["text"], kind)
