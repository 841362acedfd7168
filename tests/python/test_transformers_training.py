# SPDX-License-Identifier: Apache-2.0
"""heed.transformers trains: miniatures with heed's gradients against the same models with eager attention."""

import copy

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import heed.transformers  # noqa: E402

heed.transformers.register("heed")

VOCABULARY = 61
LLAMA = {
    "vocab_size": VOCABULARY, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None,
}  # fmt: skip
BERT = {
    "vocab_size": VOCABULARY, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip


def llama():
    return transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**LLAMA), attn_implementation="eager")


def qwen3():
    return transformers.AutoModelForCausalLM.from_config(transformers.Qwen3Config(**LLAMA, head_dim=8), attn_implementation="eager")


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=48, n_layer=2, n_head=6, n_positions=64, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0
    )
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model.loss_type = "ForCausalLM"  # or it warns while it is compiled, which breaks the graph
    return model


def bert():
    return transformers.AutoModelForMaskedLM.from_config(transformers.BertConfig(**BERT), attn_implementation="eager")


def pair(make):
    """The same model twice: with eager attention and with heed's."""
    torch.manual_seed(5)
    eager = make().train()
    ours = copy.deepcopy(eager)
    ours.set_attn_implementation("heed")
    return eager, ours


def batch(step):
    """Three sentences of different lengths, padded on the right."""
    generator = torch.Generator().manual_seed(step)
    mask = (torch.arange(17) < torch.tensor([[17], [11], [4]])).long()
    ids = torch.randint(2, VOCABULARY, mask.shape, generator=generator) * mask
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.where(mask == 1, ids, -100)}


def losses(model, steps=20):
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
    found = []
    for step in range(steps):
        optimiser.zero_grad()
        loss = model(**batch(step % 4)).loss
        loss.backward()
        optimiser.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("make", [llama, bert])
def test_twenty_steps_have_the_losses_of_eager_attention(make):
    eager, ours = pair(make)
    theirs, found = losses(eager), losses(ours)
    assert found == pytest.approx(theirs, abs=1e-5)
    assert found[-1] < found[0] - 0.3


def test_gradient_checkpointing_gives_the_gradients_it_gives_without():
    _, plain = pair(llama)
    checkpointed = copy.deepcopy(plain)
    checkpointed.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for model in (plain, checkpointed):
        model(**batch(0)).loss.backward()
    for ours, theirs in zip(checkpointed.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)


@pytest.mark.parametrize("make", [llama, qwen3, gpt2])
def test_a_compiled_model_traces_through_without_a_break(make):
    torch.compiler.reset()
    _, plain = pair(make)
    compiled = copy.deepcopy(plain)
    traced = torch.compile(compiled, fullgraph=True, backend="aot_eager")
    found = batch(0)
    plain(**found).loss.backward()
    traced(**found).loss.backward()
    for ours, theirs in zip(compiled.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(ours.grad, theirs.grad, atol=1e-5)


def test_a_trainer_has_the_losses_of_eager_attention(tmp_path):
    pytest.importorskip("accelerate")
    sentences = [dict(zip(found, row, strict=True)) for found in map(batch, range(4)) for row in zip(*found.values(), strict=True)]
    found = []
    for model in pair(llama):
        arguments = transformers.TrainingArguments(
            str(tmp_path), max_steps=6, per_device_train_batch_size=3, gradient_accumulation_steps=2, learning_rate=2e-3,
            logging_steps=1, save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, seed=1,
        )  # fmt: skip
        trainer = transformers.Trainer(model, arguments, train_dataset=sentences)
        trainer.train()
        found.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    eager, ours = found
    assert ours == pytest.approx(eager, abs=2e-4) and len(ours) == 6 and ours[-1] < ours[0]


def test_a_loss_on_the_weights_that_are_asked_for_has_the_gradients_of_eager():
    eager, ours = pair(llama)
    seen = batch(0)["attention_mask"][:, None, :, None].bool()
    for model in (ours, eager):
        found = model(**batch(0), output_attentions=True)
        (found.loss + sum((weights * seen).square().sum() for weights in found.attentions)).backward()
    for (name, mine), theirs in zip(ours.named_parameters(), eager.parameters(), strict=True):
        assert torch.allclose(mine.grad, theirs.grad, rtol=1e-3, atol=1e-4), name


def test_a_cache_of_heed_is_refused_where_gradients_are_recorded():
    _, ours = pair(llama)
    with pytest.raises(RuntimeError, match="^past_key_values: a HeedCache has no gradient"):
        ours(batch(0)["input_ids"], past_key_values=heed.transformers.HeedCache(ours.config))
