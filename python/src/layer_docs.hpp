// SPDX-License-Identifier: Apache-2.0
// Signatures and docstrings of the layer. The examples in them are run by the tests.
#pragma once

namespace heed::python {

constexpr const char* layer_signature =
    "def __init__(self, model_dim: int, heads: int, kv_heads: int | None = None, head_dim: int | None = "
    "None, "
    "value_dim: int | None = None, key_dim: int | None = None, bias: bool | typing.Literal['qkv'] = False, "
    "dropout: float = "
    "0.0, "
    "rotary: Rotary | None = None, head_map: typing.Literal['interleaved', 'tiled'] = 'interleaved', *, "
    "value_head_dim: int | None = None, "
    "seed: int = 0, device: typing.Literal['cpu', 'cuda'] = 'cpu') -> None";
constexpr const char* layer_doc = R"(Multi-head, multi-query or grouped-query attention with its projections.

kv_heads defaults to heads, head_dim to model_dim / heads, value_head_dim to head_dim. key_dim and value_dim are the
widths of a context and of a separate value input (PyTorch's kdim and vdim). bias: True for all four projections, "qkv"
for all but the output's. dropout applies after train(). The weights are random, drawn from seed, until load(). device is
where it computes, and where x, context and a cache lie: "cuda" in a build with CUDA, on the device that is current, on its
legacy stream.

>>> import numpy, heed
>>> layer = heed.AttentionLayer(model_dim=64, heads=8, kv_heads=2)
>>> x = numpy.ones((1, 10, 64), numpy.float32)
>>> layer(x, causal=True).shape
(1, 10, 64)
)";

constexpr const char* layer_call_doc = R"(Attends from x to context, or to x itself.

x is (batch, queries, model_dim), context (batch, keys, key_dim), value (batch, keys, value_dim); all may leave out the
batch. context alone serves as key and value input. positions and key_positions, (length,) or (batch, length), are for
a layer with rotary. seed is dropout's. The other options are those of heed.attention.

With a cache, a heed.KvCache, in place of a context, the tokens of x are appended to its sequences, or to those numbered
in sequences (one per batch entry), and attend to all that these then hold: prefill and decoding are the same call. What
it raises leaves every sequence as it was. positions go on from the length of each sequence. In a padded batch counts says
how many tokens of x each entry has: the padding after them is not appended, and its rows are 0. key_lengths, which would
only hide it, is refused.

Returns (batch, queries, model_dim), of x's library and element type, or a tuple with those asked for, in this order:
weights (batch, heads, queries, keys), or (batch, queries, keys) for return_weights="average"; lse (batch, heads,
queries); scores (batch, heads, queries, keys).

>>> import numpy, heed
>>> layer = heed.AttentionLayer(model_dim=64, heads=8)
>>> x, context = numpy.ones((2, 5, 64), numpy.float32), numpy.ones((2, 9, 64), numpy.float32)
>>> y, weights = layer(x, context, key_lengths=[9, 4], return_weights="average")
>>> y.shape, weights.shape, float(weights[1, 0, 4:].sum())
((2, 5, 64), (2, 5, 9), 0.0)
>>> cache = heed.KvCache(batch=2, kv_heads=8, capacity=100, dim=8)
>>> y = layer(x, cache=cache, causal=True)                                   # the prompt: five tokens
>>> y, weights = layer(x[:, :1], cache=cache, causal=True, return_weights=True)    # one more
>>> y.shape, weights.shape, cache.lengths
((2, 1, 64), (2, 8, 1, 6), [6, 6])
>>> y = layer(x, cache=cache, causal=True, counts=[5, 2])                    # five more, and two
>>> float(abs(y[1, 2:]).sum()), cache.lengths
(0.0, [11, 8])
)";

constexpr const char* sliding_window_doc =
    "How many keys a query of this layer sees in its model, its own included, where from_pretrained found a "
    "window; else None. Say it at every call: window=(layer.sliding_window - 1, 0).";
constexpr const char* from_pretrained_doc =
    R"(One attention layer of a model that Hugging Face's transformers saved.

folder holds config.json, and model.safetensors or model.safetensors.index.json with its shards; only this layer's tensors
are read. Model types: llama, mistral, mixtral, qwen2, gemma and phi3, with every scaling of rotary embedding. Others, and
parts a layer does not have (norms of queries and keys), are refused by name.

>>> import json, pathlib, tempfile, heed, safetensors.numpy
>>> state = heed.AttentionLayer(64, 8, 2).state_dict("llama")
>>> with tempfile.TemporaryDirectory() as name:
...     folder = pathlib.Path(name)
...     _ = (folder / "config.json").write_text(json.dumps({
...         "model_type": "llama", "hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 2,
...         "num_hidden_layers": 1, "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}}))
...     named = {f"model.layers.0.self_attn.{key}": array for key, array in state.items()}
...     safetensors.numpy.save_file(named, folder / "model.safetensors")
...     layer = heed.AttentionLayer.from_pretrained(folder, layer=0)
>>> layer.kv_heads, layer.rotary
(2, Rotary(base=500, dims=8, pairs='halves', scaling={'rope_type': 'linear', 'factor': 2.0}))
)";

constexpr const char* load_doc =
    R"(Takes the weights of a checkpoint: a dict of arrays, or the path of a safetensors file.

Names are those after prefix ("model.layers.0.self_attn."), in one of three schemes: W_q.weight, W_k.weight, ...;
in_proj_weight, out_proj.weight, ... (torch.nn.MultiheadAttention); q_proj.weight, k_proj.weight, ... (Llama). Other names
are left alone. A checkpoint that is refused changes nothing.

>>> import heed
>>> trained = heed.AttentionLayer(model_dim=64, heads=8, seed=1)
>>> layer = heed.AttentionLayer(model_dim=64, heads=8)
>>> layer.load(trained.state_dict("llama"))
)";
constexpr const char* state_dict_doc = R"(The weights as NumPy arrays by name.

naming: "paper" (W_q.weight), "torch" (in_proj_weight) or "llama" (q_proj.weight). Matrices are (out, in).

>>> import heed
>>> {name: array.shape for name, array in heed.AttentionLayer(64, 8, 2).state_dict().items()}
{'W_k.weight': (16, 64), 'W_o.weight': (64, 64), 'W_q.weight': (64, 64), 'W_v.weight': (16, 64)}
)";
constexpr const char* train_doc = R"(Switches dropout on, or off with mode=False. Returns the layer.

>>> import heed
>>> heed.AttentionLayer(64, 8, dropout=0.1).train().training
True
)";

constexpr const char* restored_layer_doc = "A layer out of what __reduce__ told; heed._copies calls it.";

constexpr const char* eval_doc = R"(Switches dropout off, which is also how a layer begins. Returns the layer.

>>> import heed
>>> heed.AttentionLayer(64, 8, dropout=0.1).eval().training
False
)";

}  // namespace heed::python
