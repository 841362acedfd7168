# SPDX-License-Identifier: Apache-2.0
"""What a mistake is answered with: heed's own words, with the argument to give instead."""

import ast
import doctest
import inspect
import subprocess
import sys

import numpy as np
import pytest

import heed
from heed import _functions, _handlers, _heed, _hints, _showing

X = np.ones((2, 3, 4, 8), np.float32)
LAYER = heed.AttentionLayer(8, 2)

FOREIGN = {
    "attn_mask": r"keep= \(True attends\) or hide= \(True is ignored\); floats .* bias=",
    "mask": r"keep= \(True attends\) or hide= \(True is ignored\); floats .* bias=",
    "attention_mask": r"keep= \(True attends\)",
    "key_padding_mask": r"hide=mask\[:, None, None, :\] .*True is ignored.* key_lengths=",
    "is_causal": 'causal=True, or causal="starts" .* "ends"',
    "softmax_scale": "scale=",
    "window_size": "window=",
    "causl": "did you mean causal",
}


@pytest.mark.parametrize("keyword", FOREIGN)
@pytest.mark.parametrize("call", [lambda **o: heed.attention(X, X, X, **o), lambda **o: LAYER(X[0], **o)], ids=["attention", "layer"])
def test_a_keyword_of_another_library_names_ours(keyword, call):
    with pytest.raises(TypeError, match=f"^{keyword}: there is no such keyword argument; .*{FOREIGN[keyword]}") as raised:
        call(**{keyword: None})
    assert isinstance(raised.value, heed.KindError)


OTHERS = {
    "dropout_p": (lambda: heed.attention(X, X, X, dropout_p=0.0), "dropout="),
    "query": (lambda: heed.attention(query=X, key=X, value=X), "q="),
    "causal": (lambda: heed.scaled_dot_product_attention(X, X, X, causal=True), "is_causal"),
    "num_heads": (lambda: heed.AttentionLayer(8, num_heads=2), "heads="),
    "theta": (lambda: heed.Rotary(theta=1e6), "base="),
    "pagesize": (lambda: heed.KvCache(1, 1, 1, 8, pagesize=16), "page_size"),
    "sequences": (lambda: heed.KvCache(1, 1, 1, 8).truncate(sequences=0, length=0), "sequence"),
    "num_key_value_heads": (lambda: heed.AttentionLayer(8, 2, num_key_value_heads=1), "kv_heads="),
}


@pytest.mark.parametrize("keyword", OTHERS)
def test_every_callable_knows_the_words_of_others(keyword):
    call, ours = OTHERS[keyword]
    with pytest.raises(heed.KindError, match=f": there is no such keyword argument; .*{ours}"):
        call()


def test_a_hint_names_only_arguments_that_there_are():
    with pytest.raises(heed.KindError) as raised:
        heed.KvCache(1, 1, 1, 8, attn_mask=None)
    assert str(raised.value) == "attn_mask: there is no such keyword argument"


MASKS = {
    "hide of (batch, keys)": ({"hide": np.zeros((2, 5), bool)}, r"hide\[:, None, None, :\]"),
    "keep of (batch, keys)": ({"keep": np.ones((2, 5), bool)}, r"keep\[:, None, None, :\]"),
    "bias of (batch, keys)": ({"bias": np.ones((2, 5), np.float32)}, r"bias\[:, None, None, :\]"),
    "hide of (batch, queries, keys)": ({"hide": np.zeros((2, 4, 5), bool)}, r"hide\[:, None\]"),
}


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_without_its_axes_is_told_which_to_add(name):
    options, hint = MASKS[name]
    with pytest.raises(heed.Error, match=f"shape: .* does not broadcast .*; .*{hint}"):
        heed.attention(X, X[:, :, [0, 1, 2, 3, 0]], X[:, :, [0, 1, 2, 3, 0]], **options)
    layer, x = heed.AttentionLayer(24, 3), np.ones((2, 4, 24), np.float32)
    with pytest.raises(heed.Error, match=f"shape: .* does not broadcast .*; .*{hint}"):
        layer(x, np.ones((2, 5, 24), np.float32), **options)


SDPA_MASKS = {
    "(batch, keys)": ((2, 5), r"extent 2 does not broadcast to 4 queries; .* attn_mask\[:, None, None, :\]"),
    "(batch, queries, keys)": ((2, 4, 5), r"extent 2 does not broadcast to 3 heads; .* attn_mask\[:, None\]"),
    "other keys": ((4, 7), "extent 7 does not broadcast to 5 keys$"),
}


@pytest.mark.parametrize("name", SDPA_MASKS)
@pytest.mark.parametrize("dtype", [bool, np.float32])
def test_the_drop_in_names_its_own_mask_and_the_axes_to_add(name, dtype):
    shape, sentence = SDPA_MASKS[name]
    k = X[:, :, [0, 1, 2, 3, 0]]
    with pytest.raises(heed.Error, match="^attn_mask: " + sentence):
        heed.scaled_dot_product_attention(X, k, k, np.ones(shape, dtype))


def test_a_mask_of_no_known_mistake_gets_no_hint():
    with pytest.raises(heed.Error) as raised:
        heed.attention(X, X, X, hide=np.zeros((5, 7), bool))
    assert "None" not in str(raised.value)


@pytest.mark.parametrize("place", ["q", "k", "hide"])
@pytest.mark.parametrize("transform", ["jit", "grad", "vmap"])
def test_a_traced_jax_array_is_told_so(place, transform):
    jax = pytest.importorskip("jax")

    def traced(x):
        return heed.attention(**({"q": X, "k": X, "v": X} | {place: x})).sum()

    with pytest.raises(TypeError, match=f"^{place}: JAX is tracing it .* no memory yet; call heed.jax.attention there, or .*outside"):
        getattr(jax, transform)(traced)(jax.numpy.ones((2, 3, 4, 8)))


def signature(function):
    """The arguments of a function of the module, as its stub has them."""
    return ast.parse(function.__nb_signature__[-1][0] + ": ...").body[-1].args


def callables():
    """name -> (how it is called, its arguments without self) for all of the module that is public."""
    objects = {
        heed.KvCache: heed.KvCache(1, 1, 16, 8),
        heed.AttentionLayer: heed.AttentionLayer(8, 2),
        heed.Rotary: heed.Rotary(),
    }
    found = {}
    for name, value in vars(_heed).items():
        if not callable(value) or getattr(heed, name, None) is not value:  # what heed.view is made of is not handed on
            continue
        if not isinstance(value, type):
            found[name] = (value, value)
            continue
        found[name] = (value, value.__init__)
        for member, method in vars(value).items():
            if hasattr(method, "__nb_signature__") and (member == "__call__" or not member.startswith("_")):
                found[f"{name}.{member}"] = (getattr(objects[value], member), method)
        for member, static in inspect.getmembers_static(value, lambda m: isinstance(m, staticmethod)):
            found[f"{name}.{member}"] = (getattr(value, member), getattr(value, member))
    return found


CALLABLES = callables()
GOOD = {
    "q": X, "k": X, "v": X, "query": X, "key": X, "value": X, "x": X[0], "a": X > 0, "b": X > 0, "tokens": [1, 2],
    "size": 3, "n": 1, "batch": 1, "kv_heads": 1, "capacity": 16, "dim": 8, "model_dim": 8, "heads": 2, "sequence": 0,
    "out_gradient": X, "out": X, "lse": X[..., 0], "length": 0, "path": "there/is/none", "folder": "there/is/none", "weights": {},
    "device": "cpu",
}  # fmt: skip


class Odd:
    """An object like no other, whose special methods all fail."""

    def __bool__(self):
        raise RuntimeError("no truth")

    __eq__ = __len__ = __index__ = __float__ = __iter__ = __bool__
    __hash__ = object.__hash__


WRONG = {
    "object": object(), "str": "a word", "bytes": b"bytes", "list": [1.5, None], "dict": {1: 2}, "float": 1.5,
    "int": 10**30, "None": None, "array": np.ones(3), "complex": 1j, "type": int, "module": np, "odd": Odd(), "surrogate": "\ud800",
    "class": heed.KvCache, "function": heed.attention, "method": heed.KvCache(1, 1, 16, 8).append,
}  # fmt: skip


def own_words(call, *arguments, **keywords):
    """Whatever is raised says it in heed's words."""
    try:
        call(*arguments, **keywords)
    except heed.Error as error:
        assert not any(word in str(error) for word in ("incompatible function", "nanobind", "std::", "Invoked with")), error
        return error
    except RuntimeError as error:
        assert str(error) == "no truth"
    return None


@pytest.mark.parametrize("name", CALLABLES)
def test_wrong_kinds_get_a_sentence_of_ours(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a word is a good name for a file
    call, described = CALLABLES[name]
    arguments = signature(described)
    names = [a.arg for a in arguments.posonlyargs + arguments.args + arguments.kwonlyargs if a.arg != "self"]
    positional = [a.arg for a in arguments.args if a.arg != "self"]
    needed = {a: GOOD[a] for a in positional[: len(positional) - len(arguments.defaults)]}
    for argument in names:
        for kind, wrong in WRONG.items():
            if argument == "mode" and kind == "odd":
                continue
            own_words(call, **(needed | {argument: wrong}))
    for wrong in WRONG.values():
        own_words(call, *([wrong] * max(1, len(positional))))


@pytest.mark.parametrize("name", CALLABLES)
def test_a_call_that_fits_no_signature_gets_a_sentence_of_ours(name):
    call, described = CALLABLES[name]
    arguments = signature(described)
    positional = [a.arg for a in arguments.args if a.arg != "self"]
    needed = positional[: len(positional) - len(arguments.defaults)]
    error = own_words(call, *(GOOD[a] for a in needed), no_such_word=1)
    assert str(error).startswith("no_such_word: there is no such keyword argument")
    if not arguments.vararg:
        error = own_words(call, *([1] * (len(positional) + 1)))
        assert f"{len(positional) + 1} arguments by position" in str(error)
        own_words(call, *([1] * 200))
    if needed:
        assert str(own_words(call)).startswith(f"{needed[0]}: missing")
        error = own_words(call, *(GOOD[a] for a in needed), **{needed[0]: GOOD[needed[0]]})
        assert str(error).startswith(f"{needed[0]}: given twice")


@pytest.mark.parametrize("name", [name for name in CALLABLES if "." in name])
def test_a_method_of_another_object_gets_a_sentence_of_ours(name):
    kind, method = (getattr(heed, name.split(".")[0]), name.split(".")[1])
    function = getattr(kind, method)
    arguments = signature(function)
    if [a.arg for a in arguments.args][:1] == ["self"]:
        needed = [a.arg for a in arguments.args][1 : len(arguments.args) - len(arguments.defaults)]
        for wrong in (3, None, kind):
            assert str(own_words(function, wrong, *(GOOD[a] for a in needed))).startswith("self: ")


def test_a_layer_says_what_it_is():
    layer = heed.AttentionLayer(64, 8, 2, bias="qkv", dropout=0.5, rotary=heed.Rotary(base=500))
    assert repr(layer) == (
        "AttentionLayer(model_dim=64, heads=8, kv_heads=2, head_dim=8, bias='qkv', dropout=0.5, "
        "rotary=Rotary(base=500, dims=8, pairs='halves'), dtype='float32')"
    )
    other = heed.AttentionLayer(64, 8, 2, head_dim=16, value_head_dim=4, key_dim=32, value_dim=24, head_map="tiled")
    assert repr(other) == (
        "AttentionLayer(model_dim=64, heads=8, kv_heads=2, head_dim=16, value_head_dim=4, key_dim=32, value_dim=24, "
        "head_map='tiled', dtype='float32')"
    )


def test_a_layer_says_the_dtype_of_the_weights_it_loaded():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    layer = heed.AttentionLayer(64, 8)
    layer.load({name: array.astype(ml_dtypes.bfloat16) for name, array in layer.state_dict().items()})
    assert repr(layer).endswith("dtype='bfloat16')")


def test_what_is_alive_when_python_ends_is_not_told_to_the_user():
    program = "import ctypes, heed; ctypes.pythonapi.Py_IncRef(ctypes.py_object(heed.AttentionLayer(8, 2)))"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd="/")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


@pytest.mark.parametrize("module", [_hints, _functions, _handlers, _showing], ids=lambda module: module.__name__)
def test_the_examples_of_internal_modules_are_true(module):
    ran = doctest.testmod(module)
    assert ran.attempted >= 1 and ran.failed == 0
