# SPDX-License-Identifier: Apache-2.0
"""Any model of transformers, made tiny: a configuration cut down by the names of its fields, and inputs by the names of forward's."""

import copy
import inspect
import re

import torch
import transformers

PARAMETERS = 28_000_000  # what a model may have at most, to count as tiny
TOKENS, VOCABULARY = 10, 120
LAYERS = object()  # the size of a field that counts layers

# What a field of a configuration becomes, by its name, where it is a larger number than that. The first pattern that fits decides.
SIZES = [
    (r"^(num_mel_bins|n_mels|input_feat_per_channel|feature_size|num_channels|in_channels|in_chans|num_labels|input_dim|input_channels)$", None),
    (r"^(num_feat_extract_layers|num_conv_layers|feature_projection_input_dim)$", None),  # lists beside them have as many entries
    (r"codebook_size$", 64),
    (r"index_topk$", 4),  # so that sparse attention leaves keys out
    (r"(index_block_size|index_topk_blocks|index_local_blocks)$", 2),
    (r"vocab_size|^vocab$|num_embeddings$|n_vocab$", VOCABULARY),
    (r"(kv_heads|key_value_heads|kv_head|num_kv|n_head_kv|multi_query_group_num|num_kv_heads)$", 2),
    (r"(attention_heads|num_heads|n_heads?|_heads|nhead|nheads|num_head)$", 4),
    (r"^(qk_rope_head_dim|qk_nope_head_dim|v_head_dim|head_dim|attention_head_dim|kv_channels|d_kv|attention_head_size|global_head_dim|index_head_dim|linear_(key|value)_head_dim|rotary_dim|qk_head_dim|head_size)$", 8),
    (r"(kv_lora_rank|q_lora_rank|lora_rank|_rank)$", 16),
    (r"(num_hidden_layers|n_layers?|num_layers|encoder_layers|decoder_layers|depth|num_blocks|_layers|num_.*_layers|n_blocks)$", LAYERS),
    (r"(intermediate_size|ffn_dim|ffn_hidden_size|d_ff|n_inner|mlp_dim|feed_forward_dim|ff_dim|inner_dim|ffn_size|intermediate_dim)$", 40),
    (r"(hidden_size|d_model|n_embd|embed_dim|hidden_dim|embedding_size|embedding_dim|projection_dim|_dim|_width|width|^dim|hidden_sizes|output_size|emb_dim|d_embed|_channels|^embed_size|channels|_size_per_head|hidden_units)$", 32),
    (r"(num_local_experts|n_routed_experts|num_experts|moe_num_experts|_experts)$", 4),
    (r"(experts_per_tok|num_selected_experts|moe_topk|moe_k|top_k_experts|topk_group|n_group|top_k)$", 2),
    (r"(patch_size|patch_stride)$", 8),
    (r"(image_size|img_size|input_size|crop_size|visual_size|resolution)$", 32),
    (r"(max_position_embeddings|n_positions|max_source_positions|max_target_positions|max_seq_len|context_length|max_length|seq_length|max_sequence_length|n_ctx|max_encoder_position_embeddings|max_decoder_position_embeddings|model_max_length)$", 128),
    (r"(sliding_window|attention_window|local_attention|attention_chunk_size|chunk_size)$", 6),
    (r"(num_queries|num_query_tokens|num_latents|num_query)$", 8),
    (r"(num_frames|tubelet_size)$", 4),
]  # fmt: skip


UNSAID = {"vocab_size": VOCABULARY, "head_dim": 8, "attention_head_dim": 8, "pad_token_id": 0, "num_key_value_heads": 4}  # where a configuration says None


def cut(name, value, layers=2):
    """A field's smaller value."""
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    for pattern, size in SIZES:
        if re.search(pattern, name):
            if size is None or (size == 4 and value < 3):
                return value
            return size if size == 4 else min(value, layers if size is LAYERS else size)  # 3 heads of 32 dimensions are none
    if name.endswith("_token_id") or name.endswith("_token_index") or name.endswith("_token"):
        return min(value, VOCABULARY - 1)
    return value


def shortened(name, values, layers):
    """A list with a field for each layer: so many of them, of different kinds where there are such."""
    if "layer" not in name or len(values) < 3 or isinstance(values[0], (list, dict)):
        return [cut(name.removesuffix("s") if not name.endswith("heads") else name, value) for value in values]
    other = next((value for value in values if value != values[0]), values[1])
    return [values[0], other] * (layers // 2)


def fields_of(config, layers):
    """The fields that make a small configuration of the same class, with so many layers."""
    fields = {}
    parts = set(getattr(config, "sub_configs", {}))
    for name, value in vars(config).items():
        if name.startswith("_") or name in ("transformers_version", "architectures", "model_type", "id2label", "label2id", "torch_dtype", "dtype"):
            continue
        if isinstance(value, transformers.PreTrainedConfig):
            small = fields_of(value, layers)
            fields[name] = type(value)(**small) if name not in parts else small
            if name in parts and hasattr(value, "model_type"):
                fields[name]["model_type"] = value.model_type
        elif isinstance(value, (list, tuple)) and value:
            new = shortened(name, list(value), layers)
            if new != list(value):
                fields[name] = type(value)(new) if isinstance(value, tuple) else new
        elif value is None and name in UNSAID:
            fields[name] = UNSAID[name]
        elif cut(name, value, layers) != value:
            fields[name] = cut(name, value, layers)
    if {"num_attention_heads", "num_key_value_heads"} <= vars(config).keys() and config.num_attention_heads == config.num_key_value_heads:
        fields["num_key_value_heads"] = 4  # models that widen one latent key to all heads have no groups
    if hasattr(config, "qk_rope_head_dim"):
        fields.pop("head_dim", None)  # which it makes of its parts
    return fields


def tiny_config(model_class, layers=2):
    """A small configuration for the class; whatever its constructor says if there is none."""
    config_class = model_class.config_class
    whole = config_class(prediction_length=4) if "prediction_length" in inspect.signature(config_class).parameters else config_class()
    fields = fields_of(whole, layers)
    if hasattr(whole, "lags_sequence"):
        fields |= {"prediction_length": 4, "context_length": 16, "lags_sequence": [1, 2], "num_time_features": 2}
    config = config_class(**fields)
    for part in parts_of(config):
        for name, value in (("pad_token_id", 0), ("bos_token_id", 1), ("eos_token_id", 2), ("decoder_start_token_id", 1)):
            if getattr(part, name, None) is not None or name == "pad_token_id":
                setattr(part, name, value)
        rotary, dim = getattr(part, "rope_parameters", None), first(part, "head_dim") or 8
        if isinstance(rotary, dict) and "rope_type" in rotary:  # for models that divide positions among three axes
            half = int(dim * rotary.get("partial_rotary_factor", 1.0)) // 2
            rotary["mrope_section"] = [half - 2 * (half // 3), half // 3, half // 3]
    return config


def parts_of(config):
    """A configuration and all those within it."""
    yield config
    for value in vars(config).values():
        if isinstance(value, transformers.PreTrainedConfig):
            yield from parts_of(value)


def first(config, *names, default=None):
    """The first of these fields that the configuration or a part of it has, as a number."""
    for name in names:
        for part in parts_of(config):
            value = vars(part).get(name)
            if isinstance(value, (list, tuple)) and value:
                value = value[0]
            if isinstance(value, int) and not isinstance(value, bool):
                return value
    return default


def numbers(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def token_ids(batch, length, vocabulary, seed=1):
    """No special tokens, but for the end at the end."""
    ids = torch.randint(3, max(4, vocabulary - 12), (batch, length), generator=torch.Generator().manual_seed(seed))
    ids[:, -1] = 2
    return ids


def inputs_by_name(config, batch=2, length=TOKENS):
    """What forward's arguments may be given, by their names."""
    vocabulary = first(config, "vocab_size", default=VOCABULARY)
    image = first(config, "image_size", "img_size", default=32)
    channels = first(config, "num_channels", "in_channels", "in_chans", default=3)
    mels = first(config, "feature_projection_input_dim", "num_mel_bins", "n_mels", "feature_size", "input_dim", default=80)
    frames = first(config, "num_frames", default=4)
    width = first(config, "hidden_size", "d_model", default=32)
    positions = first(config, "max_source_positions", default=None)
    speech = 2 * positions if positions else 64
    boxes = torch.tensor([1, 2, 5, 9]).expand(batch, length, 4)
    return {
        "input_ids": [token_ids(batch, length, vocabulary)],
        "decoder_input_ids": [token_ids(batch, 6, vocabulary, seed=2)],
        "pixel_values": [numbers(batch, channels, image, image), numbers(batch, frames, channels, image, image)],
        "pixel_values_videos": [numbers(batch, frames, channels, image, image)],
        "input_features": [numbers(batch, mels, speech), numbers(batch, speech, mels), numbers(batch, 1, 64, mels)],
        "input_values": [numbers(batch, 1600), numbers(batch, 1, 1600), numbers(batch, speech, mels)],
        "bbox": [boxes],
        "inputs_embeds": [numbers(batch, length, width)],
        **patches(config, channels),
        **series(config, batch),
        "audio_values": [numbers(batch, 1, 1600)],
        "inputs": [token_ids(batch, length, vocabulary), numbers(batch, length, first(config, "d_model", default=32))],
    }  # fmt: skip


def patches(config, channels):
    """Two images in a row of patches, as vision towers of Qwen's kind are given them, or states of tokens."""
    patch, together = first(config, "patch_size", default=8), first(config, "temporal_patch_size", default=1)
    return {
        "hidden_states": [numbers(48, channels * together * patch**2), numbers(2, TOKENS, first(config, "hidden_size", "d_model", default=32)),
                          numbers(2, TOKENS, first(config, "input_dim", default=32))],
        "grid_thw": [torch.tensor([[1, 4, 4], [1, 4, 8]])],
    }


def series(config, batch):
    """What models of time series are given."""
    context, future = first(config, "context_length", default=16), first(config, "prediction_length", default=4)
    lags = getattr(config, "lags_sequence", None) or [0]
    features, static = getattr(config, "num_time_features", 0), getattr(config, "num_static_real_features", 0)
    past, channels = context + max(lags), first(config, "num_input_channels", default=1)
    return {
        "past_values": [numbers(batch, past), numbers(batch, context, channels)],
        "past_time_features": [numbers(batch, past, features)],
        "past_observed_mask": [torch.ones(batch, past)],
        "static_real_features": [numbers(batch, static)],
        "future_values": [numbers(batch, future, seed=2)],
        "future_time_features": [numbers(batch, future, features, seed=3)],
    }


def ways_to_call(model):
    """Sets of arguments, likeliest first."""
    accepted = inspect.signature(model.forward).parameters
    known = inputs_by_name(model.config)
    main = getattr(model, "main_input_name", "input_ids")
    needed = [name for name, p in accepted.items() if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    names = list(dict.fromkeys([*needed, main]))
    if type(model).__name__.endswith("ForMultipleChoice"):
        known["input_ids"] = [known["input_ids"][0][:, None].repeat(1, 3, 1)]
    future = ["past_time_features", "past_observed_mask", "future_values", "future_time_features"]
    for extra in (future, ["decoder_input_ids"], ["pixel_values"], ["input_ids"], ["bbox"], ["input_ids", "pixel_values"], ["input_features"]):
        wanted = [name for name in dict.fromkeys([*names, *extra]) if name in accepted]
        if not wanted or not all(name in known for name in wanted):
            continue
        most = max(len(known[name]) for name in wanted)
        for n in range(most):
            yield {name: known[name][min(n, len(known[name]) - 1)] for name in wanted}


def model_classes():
    """Every class of a model that transformers exports, with a configuration of its own."""
    found = {}
    for name in sorted(dir(transformers)):
        if name.endswith("PreTrainedModel") or not name[0].isupper():
            continue
        try:
            value = getattr(transformers, name)
        except Exception:  # noqa: BLE001, S112  a class whose other library is not installed
            continue
        if isinstance(value, type) and issubclass(value, transformers.PreTrainedModel) and getattr(value, "config_class", None):
            found[name] = value
    return found


def build(model_class, config, attention):
    """The model with random weights, such that attention is far from uniform; the same for every attention."""
    with torch.device("meta"):
        size = sum(p.numel() for p in model_class._from_config(copy.deepcopy(config), attn_implementation="eager").parameters())
    if size > PARAMETERS:
        raise ValueError(f"{size} parameters are not tiny")
    torch.manual_seed(0)
    model = model_class._from_config(copy.deepcopy(config), attn_implementation=attention)
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if parameter.is_floating_point() and parameter.ndim > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * parameter[0].numel() ** -0.5 * 1.5)
            elif parameter.is_floating_point() and "norm" not in name.lower():
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model.float().eval()
