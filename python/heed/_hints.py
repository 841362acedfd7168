# SPDX-License-Identifier: Apache-2.0
"""What a call that fits no signature is answered with. Only failing calls come here."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterable
from typing import Any

_MASK = "booleans are keep= (True attends) or hide= (True is ignored); floats that are added to the scores are bias="
_CAUSAL = 'say causal=True, or causal="starts" (first query with first key, as in PyTorch) or "ends" where lengths differ'

# Words of PyTorch, transformers, JAX, FlashAttention and ONNX: which arguments of heed do the same, and how.
_FOREIGN: dict[str, list[tuple[str, str]]] = {
    "attn_mask": [("keep", _MASK)],
    "mask": [("keep", _MASK)],
    "attention_mask": [("keep", _MASK)],
    "key_padding_mask": [("hide", "say hide=mask[:, None, None, :] where True is ignored, or key_lengths=")],
    "is_causal": [("causal", _CAUSAL)],
    "attn_bias": [("bias", "say bias=")],
    "alibi_slopes": [("alibi", "say alibi=")],
    "segment_ids": [("document", "say document=, a number for every key")],
    "document_ids": [("document", "say document=")],
    "dropout_p": [("dropout", "say dropout="), ("seed", "say it when the layer is made: dropout=")],
    "softmax_scale": [("scale", "say scale=")],
    "window_size": [("window", "say window=(left, right), with None for no limit")],
    "sliding_window": [("window", "say window=(left, right), with None for no limit")],
    "local_window_size": [("window", "say window=(left, right), with None for no limit")],
    "enable_gqa": [("bias", "none is needed: the shapes say which heads share keys and values")],
    "need_weights": [("return_weights", "say return_weights=")],
    "average_attn_weights": [("return_weights", 'say return_weights="average" (of a layer) or return_weights=True')],
    "return_attn_probs": [("return_weights", "say return_weights=")],
    "seqlens_k": [("key_lengths", "say key_lengths=")],
    "cu_seqlens_q": [("query_starts", "say query_starts=")],
    "cu_seqlens_k": [("key_starts", "say key_starts=")],
    "past_key_values": [("cache", "say cache=, a heed.KvCache")],
    "past_key_value": [("cache", "say cache=, a heed.KvCache")],
    "position_ids": [("positions", "say positions=")],
    "query": [("q", "say q="), ("context", "say x=")],
    "key": [("k", "say k="), ("context", "say context=")],
    "value": [("v", "say v=")],
    "embed_dim": [("model_dim", "say model_dim=")],
    "hidden_size": [("model_dim", "say model_dim=")],
    "num_heads": [("heads", "say heads=")],
    "num_attention_heads": [("heads", "say heads=")],
    "num_kv_heads": [("kv_heads", "say kv_heads=")],
    "num_key_value_heads": [("kv_heads", "say kv_heads=")],
    "kdim": [("key_dim", "say key_dim=")],
    "vdim": [("value_dim", "say value_dim=")],
    "theta": [("base", "say base=")],
    "rope_theta": [("base", "say base=")],
    "rope_scaling": [("scaling", "say scaling=")],
    "max_length": [("capacity", "say capacity=")],
}


def unknown_keyword(word: str, known: Iterable[str]) -> str:
    """The sentence for a keyword argument that is none of the known ones.

    >>> unknown_keyword("is_causl", ["query", "is_causal"])
    'is_causl: there is no such keyword argument; did you mean is_causal?'
    """
    known = list(known)
    sentence = f"{word}: there is no such keyword argument"
    for ours, hint in _FOREIGN.get(word, ()):
        if ours in known:
            return f"{sentence}; {hint}"
    near = difflib.get_close_matches(word, known, n=1)
    return f"{sentence}; did you mean {near[0]}?" if near else sentence


def mismatch(signature: str, arguments: tuple[Any, ...], keywords: tuple[str, ...]) -> str:
    """The sentence for arguments that do not fit a signature.

    >>> mismatch("def rotate(x: ArrayT, out: ArrayT | None = None) -> ArrayT", (), ("out",))
    'x: missing; rotate needs it'
    """
    function = ast.parse(signature + ": ...").body[-1]
    assert isinstance(function, ast.FunctionDef)
    named = function.args
    by_position = [argument.arg for argument in named.posonlyargs + named.args]
    required = by_position[: len(by_position) - len(named.defaults)]
    known = [argument for argument in by_position + [a.arg for a in named.kwonlyargs] if argument != "self"]
    given = len(arguments)
    called = {"__init__": "the constructor", "__call__": "the layer"}.get(function.name, function.name)
    for word in keywords:
        if word not in known:
            return unknown_keyword(word, known)
    if given > len(by_position) and not named.vararg:
        own = "self" in by_position[:1]
        takes = [argument for argument in by_position if argument != "self"]
        listed = f"at most {len(takes)}: {', '.join(takes)}" if takes else "none"
        return f"{called}: {given - own} arguments by position are given, and it takes {listed}"
    for word in by_position[:given]:
        if word in keywords:
            return f"{word}: given twice, by position and by name"
    for word in required[given:]:
        if word not in keywords:
            return f"{word}: missing; {called} needs it"
    kind = "nothing" if not arguments else "type" if isinstance(arguments[0], type) else type(arguments[0]).__qualname__
    return f"self: {kind} is not an object that {called} works on, or its __init__ was not called"
