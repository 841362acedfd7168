# SPDX-License-Identifier: Apache-2.0
"""A layer of a model that transformers saved gives what the model's own attention gives: in Python, and in C++ by the tool."""

import copy
import json

import numpy as np
import pytest
import torch
from tool import TOOL, heed as tool, json_of
from transformers import (
    GemmaConfig,
    GemmaForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

import heed
import heed.torch

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 64, 4, 2, 16, 3
TRAINED, LONG = 48, 100  # tokens: within what the model was trained with, and beyond

PAIRS = HEAD_DIM // 2
SCALINGS = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    "yarn with all": {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 4.0, "beta_slow": 0.5,
        "truncate": False, "mscale": 0.7, "mscale_all_dim": 0.4,
    },
    "yarn, attention factor said": {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "attention_factor": 1.3,
    },
    "llama3": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "longrope": {
        "rope_type": "longrope", "short_factor": [1.0 + 0.1 * n for n in range(PAIRS)],
        "long_factor": [1.5 + n for n in range(PAIRS)], "original_max_position_embeddings": 64, "factor": 4.0,
    },
}  # fmt: skip

SIZES = {
    "vocab_size": 96, "hidden_size": HIDDEN, "intermediate_size": 32, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "pad_token_id": None,
}  # fmt: skip


def config_of(cls, scaling="default", **more):
    # A dynamic scaling goes by what the model was trained with under another name.
    longest = 64 if scaling == "dynamic" else 256
    rope = {"rope_theta": 1000.0, **SCALINGS[scaling]}
    return cls(**SIZES, max_position_embeddings=longest, rope_parameters=rope, **more)


def model_of(cls, config, seed=0):
    """Random weights that make scores large enough for positions to matter."""
    torch.manual_seed(seed)
    config._attn_implementation = "eager"
    model = cls(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "self_attn" in name:
                parameter.normal_(0, 0.15)
    return model


def theirs(model, layer, x, window=None):
    """The output of a model's own attention module."""
    inner = getattr(model, "model", model)
    length = x.shape[1]
    positions = torch.arange(length)[None]
    distance = positions.T - positions
    hidden = (distance < 0) | (distance >= (window or length))
    mask = torch.zeros(1, 1, length, length).masked_fill(hidden, -torch.inf)
    with torch.no_grad():
        turned = inner.rotary_emb(x, positions)
        return inner.layers[layer].self_attn(x, position_embeddings=turned, attention_mask=mask)[0].numpy()


def ours(folder, layer, x):
    """By heed.AttentionLayer, by heed.torch's, and by the tool, which is C++."""
    made = heed.AttentionLayer.from_pretrained(folder, layer)
    window = made.sliding_window and (made.sliding_window - 1, 0)
    yield "Python", made(x.numpy(), causal=True, window=window)
    with torch.no_grad():
        yield "torch", heed.torch.AttentionLayer.from_pretrained(folder, layer)(x, causal=True, window=window).numpy()
    if TOOL:
        np.save(folder / "x.npy", x.numpy())
        said = json_of(folder, "run", "--model", folder, "--layer", layer, "--input", "x.npy", "--out", "y.npy")
        assert said["causal"] is True and said.get("sliding_window") == made.sliding_window
        yield "C++", np.load(folder / "y.npy")


def assert_the_same(model, folder, layer=1, lengths=(TRAINED, LONG), window=None):
    for length in lengths:
        x = torch.randn(2, length, HIDDEN)
        expected = theirs(model, layer, x, window)
        for way, found in ours(folder, layer, x):
            worst = np.abs(found - expected).max()
            assert worst <= 1e-5, f"{way}, {length} tokens: off by {worst}"
            assert np.abs(expected).max() > 0.1


def save(model, folder, shards):
    model.save_pretrained(folder, max_shard_size="20KB" if shards else "1GB")
    assert (folder / "model.safetensors.index.json").exists() == shards
    assert len(list(folder.glob("*.safetensors"))) > 3 if shards else (folder / "model.safetensors").exists()


STYLES = {
    "llama": (LlamaForCausalLM, LlamaConfig, {}),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {}),
    "mistral": (MistralForCausalLM, MistralConfig, {"sliding_window": None}),
}


@pytest.mark.parametrize("shards", [False, True], ids=["one file", "shards"])
@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("style", STYLES)
def test_a_layer_is_that_of_transformers(tmp_path, style, scaling, shards):
    model_class, config_class, more = STYLES[style]
    model = model_of(model_class, config_of(config_class, scaling, **more))
    save(model, tmp_path, shards)
    assert_the_same(model, tmp_path)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_the_older_spelling_means_the_same(tmp_path, scaling):
    model = model_of(LlamaForCausalLM, config_of(LlamaConfig, scaling))
    save(model, tmp_path, shards=False)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    rope["type"] = rope.pop("rope_type")
    config["rope_scaling"] = None if scaling == "default" else rope
    file.write_text(json.dumps(config))
    assert_the_same(model, tmp_path)


def test_every_scaling_changes_what_comes_out(tmp_path):
    x = torch.randn(1, LONG, HIDDEN)
    seen = {}
    for scaling in SCALINGS:
        model = model_of(LlamaForCausalLM, config_of(LlamaConfig, scaling))
        seen[scaling] = theirs(model, 0, x)
    for scaling in SCALINGS:
        apart = [np.abs(seen[scaling] - seen[other]).max() for other in SCALINGS if other != scaling]
        assert min(apart) > 1e-3, f"{scaling} could not be told from another one"


def test_biases_head_sizes_and_models_without_a_head(tmp_path):
    config = config_of(LlamaConfig, attention_bias=True, head_dim=32)
    model = model_of(LlamaModel, config)
    save(model, tmp_path, shards=False)
    layer = heed.AttentionLayer.from_pretrained(tmp_path, 2)
    assert (layer.bias, layer.head_dim, layer.kv_heads, layer.heads) == (True, 32, KV_HEADS, HEADS)
    assert_the_same(model, tmp_path, layer=2)


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
def test_weights_of_16_bits_are_read_exactly(tmp_path, precision):
    model = model_of(LlamaForCausalLM, config_of(LlamaConfig))
    save(copy.deepcopy(model).to(precision), tmp_path, shards=False)
    with torch.no_grad():  # not model.to: that would round the frequencies as well
        for parameter in model.parameters():
            parameter.copy_(parameter.to(precision))
    assert_the_same(model, tmp_path)


def test_other_models_of_the_same_kind(tmp_path):
    wide = {"head_dim": HEAD_DIM}
    mixture = wide | {"num_local_experts": 2, "num_experts_per_tok": 1}
    for name, model_class, config in [
        ("mixtral", MixtralForCausalLM, config_of(MixtralConfig, "yarn", **mixture)),
        ("gemma", GemmaForCausalLM, config_of(GemmaConfig, "linear", **wide)),
    ]:
        model = model_of(model_class, config)
        (tmp_path / name).mkdir()
        save(model, tmp_path / name, shards=False)
        assert_the_same(model, tmp_path / name)


@pytest.mark.parametrize("part", [1.0, 0.75])
def test_phi3_packs_its_heads_and_may_turn_a_part_of_them(tmp_path, part):
    pairs = int(HEAD_DIM * part) // 2
    rope = {
        "rope_type": "longrope", "rope_theta": 1000.0, "short_factor": [1.0 + 0.2 * n for n in range(pairs)],
        "long_factor": [2.0 + n for n in range(pairs)], "partial_rotary_factor": part,
    }  # fmt: skip
    config = Phi3Config(
        **SIZES | {"pad_token_id": 0}, max_position_embeddings=256, original_max_position_embeddings=64,
        rope_parameters=rope, sliding_window=40,
    )  # fmt: skip
    model = model_of(Phi3ForCausalLM, config)
    save(model, tmp_path, shards=True)
    assert_the_same(model, tmp_path, window=40)


def test_sliding_windows_are_told(tmp_path):
    model = model_of(MistralForCausalLM, config_of(MistralConfig, sliding_window=7))
    save(model, tmp_path, shards=False)
    assert heed.AttentionLayer.from_pretrained(tmp_path, 0).sliding_window == 7
    assert_the_same(model, tmp_path, window=7)


@pytest.mark.skipif(not TOOL, reason="HEED_TOOL does not name the tool")
def test_the_tool_says_which_masks_of_a_model_it_applies_and_takes_others(tmp_path):
    save(model_of(MistralForCausalLM, config_of(MistralConfig, sliding_window=7)), tmp_path, shards=False)
    run = ["run", "--model", tmp_path, "--batch", 1, "--length", 9]
    assert "causal, --window 6,0, as the model's layer is; --no-causal hides no key" in tool(tmp_path, *run).stdout
    digests = [json_of(tmp_path, *run, *masks)["digest"] for masks in ([], ["--causal", "--window", "6,0"], ["--no-causal"], ["--causal"])]
    assert digests[0] == digests[1] and len(set(digests)) == 3
    open_to_all = json_of(tmp_path, *run, "--no-causal")
    assert open_to_all["causal"] is False
    assert open_to_all["digest"] == json_of(tmp_path, *run, "--window", "9,9")["digest"]


def test_only_some_of_qwen2s_layers_slide(tmp_path):
    config = config_of(Qwen2Config, use_sliding_window=True, sliding_window=9, max_window_layers=2)
    model = model_of(Qwen2ForCausalLM, config)
    save(model, tmp_path, shards=False)
    for _ in range(2):  # by layer_types, and before there was such a thing
        windows = [heed.AttentionLayer.from_pretrained(tmp_path, n).sliding_window for n in range(LAYERS)]
        assert windows == [None, None, 9]
        file = tmp_path / "config.json"
        described = json.loads(file.read_text())
        described.pop("layer_types", None)
        described["use_sliding_window"] = True
        described["sliding_window"] = 9
        file.write_text(json.dumps(described))


@pytest.mark.parametrize("scaling", ["default", "yarn", "llama3", "dynamic", "longrope"])
def test_decoding_past_the_trained_length_is_that_of_transformers(tmp_path, scaling):
    """Keys in a cache stay as they were turned, in both, when the scaling goes by the length."""
    from transformers import DynamicCache

    model = model_of(LlamaForCausalLM, config_of(LlamaConfig, scaling))
    save(model, tmp_path, shards=False)
    layer = heed.AttentionLayer.from_pretrained(tmp_path, 0)
    cache = heed.KvCache(batch=1, kv_heads=KV_HEADS, capacity=80, dim=HEAD_DIM)
    turning = heed.KvCache(batch=1, kv_heads=KV_HEADS, capacity=80, dim=HEAD_DIM, rotary=layer.rotary)
    attention, rotary, kept = model.model.layers[0].self_attn, model.model.rotary_emb, DynamicCache()
    x = torch.randn(1, 72, HIDDEN)
    steps = [(0, 60)] + [(n, n + 1) for n in range(60, 72)]
    for begin, end in steps:
        positions = torch.arange(begin, end)[None]
        later = torch.arange(end)[None] > positions.T
        mask = torch.zeros(1, 1, end - begin, end).masked_fill(later, -torch.inf)
        with torch.no_grad():
            expected = attention(
                x[:, begin:end], position_embeddings=rotary(x, positions), attention_mask=mask, past_key_values=kept
            )[0].numpy()
        for each in (cache, turning):
            found = layer(x[:, begin:end].numpy(), cache=each, causal=True)
            assert np.abs(found - expected).max() <= 1e-5, f"tokens {begin} to {end}"
