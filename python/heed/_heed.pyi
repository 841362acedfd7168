"""The compiled half of heed; import heed instead."""

from typing import Any, TypeVar

import numpy
import numpy.typing


ArrayT = TypeVar("ArrayT")

def attention(q: ArrayT, k: ArrayT, v: ArrayT, *, causal: bool | str | None = None, window: tuple[int | None, int | None] | tuple[int | None, int | None, str] | None = None, key_lengths: Any = None, keep: ArrayT | None = None, hide: ArrayT | None = None, bias: ArrayT | None = None, scale: float | None = None, softcap: float | None = None, sink: ArrayT | None = None, dropout: float = 0.0, seed: int = 0, head_map: str = 'interleaved', return_weights: bool = False, return_lse: bool = False, return_scores: str | None = None, out: ArrayT | None = None, kernel: str | None = None, threads: int | None = None) -> Any:
    """
    Scaled dot-product attention.

    q is (batch, heads, queries, dim), k (batch, kv_heads, keys, dim), v (batch, kv_heads, keys, value_dim); all three may
    leave out the batch, or batch and heads. float32, float16 or bfloat16, any strides. kv_heads divides heads: equal is
    multi-head attention, 1 multi-query, anything between grouped-query.

    Which keys a query sees; all of them intersect:
      causal       "ends" (last query with last key: decode), "starts", or True where queries and keys are equally many
      window       (left, right): so many keys around the query's own position; None: no limit; with a third entry,
                   "ends" or "starts", where causal does not say it
      key_lengths  (batch,) integers: only the first so many keys
      keep, hide   booleans that broadcast to (batch, heads, queries, keys): True attends; True is ignored
    How scores are made:
      scale        default 1/sqrt(dim)
      softcap      c * tanh(score / c)
      bias         floats that broadcast to (batch, heads, queries, keys), added to the scores
      sink         (heads,) or (batch, heads): one extra logit in the denominator
      dropout      probability that a weight is dropped; the pattern depends on seed alone
      head_map     which KV head a query head reads: "interleaved", h // (heads // kv_heads), or "tiled", h % kv_heads
    What is returned: out (batch, heads, queries, value_dim), or a tuple with, in this order, those asked for:
      return_weights  (batch, heads, queries, keys), after dropout
      return_lse      (batch, heads, queries), float32: the natural logarithm of the softmax's denominator
      return_scores   (batch, heads, queries, keys): "raw", "softcapped" or "biased", the last with -inf where unseen
    Arrays are of q's library and element type. out: an array to write to, which is returned.
    kernel forces one of kernel_names(). threads: how many, for this call; it never changes a bit of the result.

    >>> import numpy, heed
    >>> q = numpy.zeros((1, 8, 1, 64), numpy.float32)         # one new token
    >>> k = v = numpy.ones((1, 2, 100, 64), numpy.float32)    # two KV heads, a hundred keys
    >>> out, lse = heed.attention(q, k, v, causal="ends", window=(49, 0), return_lse=True)
    >>> out.shape, lse.shape, float(numpy.exp(lse[0, 0, 0]).round(3))
    ((1, 8, 1, 64), (1, 8, 1), 50.0)
    """

def explain(q: ArrayT, k: ArrayT, v: ArrayT, *, causal: bool | str | None = None, window: tuple[int | None, int | None] | tuple[int | None, int | None, str] | None = None, key_lengths: Any = None, keep: ArrayT | None = None, hide: ArrayT | None = None, bias: ArrayT | None = None, scale: float | None = None, softcap: float | None = None, sink: ArrayT | None = None, dropout: float = 0.0, seed: int = 0, head_map: str = 'interleaved', return_weights: bool = False, return_lse: bool = False, return_scores: str | None = None, out: ArrayT | None = None, kernel: str | None = None, threads: int | None = None) -> str:
    """
    Which kernel attention() would run, and why not the others: one line each.

    Takes the arguments of attention() and computes nothing.

    >>> import numpy, heed
    >>> q = numpy.zeros((4, 6, 16), numpy.float32)
    >>> print(heed.explain(q, q, q, kernel="reference").splitlines()[-1])
    reference: taken
    """

def merge(*parts: tuple[ArrayT, ArrayT]) -> tuple[ArrayT, ArrayT]:
    """
    Joins results over disjoint sets of keys into the result over all of them.

    Each part is a pair (out, lse) as attention(..., return_lse=True) returns it: out (batch, heads, queries, value_dim), lse
    (batch, heads, queries). Returns such a pair. Nothing that is passed in changes.

    >>> import numpy, heed
    >>> q = numpy.ones((2, 3, 4), numpy.float32)
    >>> k = v = numpy.arange(40, dtype=numpy.float32).reshape(2, 5, 4) / 40
    >>> whole = heed.attention(q, k, v)
    >>> parts = [heed.attention(q, k[:, a:b], v[:, a:b], return_lse=True) for a, b in ((0, 2), (2, 5))]
    >>> out, lse = heed.merge(*parts)
    >>> bool(numpy.allclose(out, whole, atol=1e-6))
    True
    """

def scaled_dot_product_attention(query: ArrayT, key: ArrayT, value: ArrayT, attn_mask: ArrayT | None = None, dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False) -> ArrayT:
    """
    Attention with PyTorch's arguments and PyTorch's meaning of them.

    query is (..., heads, queries, dim), key (..., heads, keys, dim), value (..., heads, keys, value_dim), with any
    number of leading axes, none included; they broadcast. The result is (..., heads, queries, value_dim), of query's
    library and element type.

    attn_mask broadcasts to (..., heads, queries, keys): boolean, True attends; or floats that are added to the scores.
    is_causal aligns the first query with the first key, whatever the lengths. scale defaults to 1/sqrt(dim). With
    enable_gqa, key and value may have fewer heads, each a divisor of query's. dropout_p applies to every call; which
    weights drop is drawn from Python's random module.

    A query that sees no key yields zeros, and what a mask hides never reaches the result, NaN included.

    >>> import numpy, heed
    >>> q = numpy.zeros((2, 8, 5, 16), numpy.float32)
    >>> k = v = numpy.ones((2, 2, 7, 16), numpy.float32)
    >>> heed.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).shape
    (2, 8, 5, 16)
    """

def padding_mask(tokens: Any, pad_id: int = 0) -> Any:
    """
    A mask to pass as hide: True where a token is padding.

    tokens is (batch, length) or (length,), integers; the result (batch, 1, 1, length), of the same library.

    >>> import numpy, heed
    >>> heed.padding_mask(numpy.array([[5, 8, 0], [7, 0, 0]]))[:, 0, 0]
    array([[False, False,  True],
           [False,  True,  True]])
    """

def look_ahead_mask(size: int) -> numpy.typing.NDArray[numpy.bool_]:
    """
    A mask to pass as hide: True strictly above the diagonal.

    The result is (1, 1, size, size). attention(..., causal=True) does the same without a matrix.

    >>> import heed
    >>> heed.look_ahead_mask(3)[0, 0]
    array([[False,  True,  True],
           [False, False,  True],
           [False, False, False]])
    """

def combine(first: ArrayT, second: ArrayT) -> ArrayT:
    """
    Two masks as one: True where either is.

    Both broadcast to (batch, heads, queries, keys); so does the result.

    >>> import heed
    >>> heed.combine(heed.padding_mask([1, 1, 0]), heed.look_ahead_mask(3))[0, 0]
    array([[False,  True,  True],
           [False, False,  True],
           [False, False,  True]])
    """

def key_lengths(tokens: Any, pad_id: int = 0) -> Any:
    """
    How many tokens come before the padding: what attention takes as key_lengths.

    tokens is (batch, length) or (length,); the result (batch,), int32. Padding before a token is refused.

    >>> import heed
    >>> heed.key_lengths([[5, 8, 0], [7, 0, 0]])
    array([2, 1], dtype=int32)
    """

class Rotary:
    """
    How positions turn a head: pair d of a token at position p turns by p * base**(-2d/dims).

    dims: how many leading dimensions turn, even; None: all of them. pairs: "halves" pairs d with d + dims/2,
    "adjacent" pairs 2d with 2d + 1.

    >>> import heed
    >>> heed.Rotary(base=500000.0, dims=64)
    Rotary(base=500000, dims=64, pairs='halves')
    """

    def __init__(self, base: float = 10000.0, dims: int | None = None, pairs: str = 'halves') -> None: ...

    @property
    def base(self) -> float:
        """The slowest pair turns about base times slower than the first."""

    @property
    def dims(self) -> int | None:
        """How many leading dimensions turn; None: all."""

    @property
    def pairs(self) -> str:
        """"halves" or "adjacent"."""

    def __repr__(self) -> str: ...

def rotate(x: ArrayT, positions: Any = None, rotary: Rotary = ..., out: ArrayT | None = None) -> ArrayT:
    """
    Rotary position embedding of x, (batch, heads, length, dim), or without the leading axes.

    positions is (length,) or (batch, length), integers; default 0, 1, 2, ... Returns a new array; with out, that array,
    which may be x itself.

    >>> import numpy, heed
    >>> x = numpy.array([[1, 0], [1, 0]], numpy.float32)
    >>> heed.rotate(x).round(3)
    array([[1.   , 0.   ],
           [0.54 , 0.841]], dtype=float32)
    """

class AttentionLayer:
    """
    Multi-head, multi-query or grouped-query attention with its projections.

    kv_heads defaults to heads, head_dim to model_dim / heads, value_head_dim to head_dim. key_dim and value_dim are the
    widths of a context and of a separate value input (PyTorch's kdim and vdim). bias: True for all four projections, "qkv"
    for all but the output's. dropout applies after train(). The weights are random, drawn from seed, until load().

    >>> import numpy, heed
    >>> layer = heed.AttentionLayer(model_dim=64, heads=8, kv_heads=2)
    >>> x = numpy.ones((1, 10, 64), numpy.float32)
    >>> layer(x, causal=True).shape
    (1, 10, 64)
    """

    def __init__(self, model_dim: int, heads: int, kv_heads: int | None = None, head_dim: int | None = None, value_dim: int | None = None, key_dim: int | None = None, bias: bool | str = False, dropout: float = 0.0, rotary: Rotary | None = None, head_map: str = 'interleaved', *, value_head_dim: int | None = None, seed: int = 0) -> None: ...

    @property
    def model_dim(self) -> int:
        """Width of x."""

    @property
    def heads(self) -> int:
        """Query heads."""

    @property
    def kv_heads(self) -> int:
        """Key and value heads."""

    @property
    def head_dim(self) -> int:
        """Dimensions of a query or key head."""

    @property
    def value_head_dim(self) -> int:
        """Dimensions of a value head."""

    @property
    def key_dim(self) -> int:
        """Width of the context."""

    @property
    def value_dim(self) -> int:
        """Width of the value input."""

    @property
    def training(self) -> bool:
        """Whether dropout applies."""

    def __call__(self, x: ArrayT, context: ArrayT | None = None, value: ArrayT | None = None, *, positions: Any = None, key_positions: Any = None, causal: bool | str | None = None, window: tuple[int | None, int | None] | tuple[int | None, int | None, str] | None = None, key_lengths: Any = None, keep: ArrayT | None = None, hide: ArrayT | None = None, bias: ArrayT | None = None, scale: float | None = None, softcap: float | None = None, sink: ArrayT | None = None, seed: int = 0, return_weights: bool | str = False, return_lse: bool = False, return_scores: str | None = None, out: ArrayT | None = None, kernel: str | None = None, threads: int | None = None) -> Any:
        """
        Attends from x to context, or to x itself.

        x is (batch, queries, model_dim), context (batch, keys, key_dim), value (batch, keys, value_dim); all may leave out the
        batch. context alone serves as key and value input. positions and key_positions, (length,) or (batch, length), are for
        a layer with rotary. seed is dropout's. The other options are those of heed.attention.

        Returns (batch, queries, model_dim), of x's library and element type, or a tuple with those asked for, in this order:
        weights (batch, heads, queries, keys), or (batch, queries, keys) for return_weights="average"; lse (batch, heads,
        queries); scores (batch, heads, queries, keys).

        >>> import numpy, heed
        >>> layer = heed.AttentionLayer(model_dim=64, heads=8)
        >>> x, context = numpy.ones((2, 5, 64), numpy.float32), numpy.ones((2, 9, 64), numpy.float32)
        >>> y, weights = layer(x, context, key_lengths=[9, 4], return_weights="average")
        >>> y.shape, weights.shape, float(weights[1, 0, 4:].sum())
        ((2, 5, 64), (2, 5, 9), 0.0)
        """

    def load(self, weights: Any, prefix: str = '') -> None:
        """
        Takes the weights of a checkpoint: a dict of arrays, or the path of a safetensors file.

        Names are those after prefix ("model.layers.0.self_attn."), in one of three schemes: W_q.weight, W_k.weight, ...;
        in_proj_weight, out_proj.weight, ... (torch.nn.MultiheadAttention); q_proj.weight, k_proj.weight, ... (Llama). Other names
        are left alone. A checkpoint that is refused changes nothing.

        >>> import heed
        >>> trained = heed.AttentionLayer(model_dim=64, heads=8, seed=1)
        >>> layer = heed.AttentionLayer(model_dim=64, heads=8)
        >>> layer.load(trained.state_dict("llama"))
        """

    def state_dict(self, naming: str = 'seed') -> dict[str, numpy.typing.NDArray[Any]]:
        """
        The weights as NumPy arrays by name.

        naming: "seed" (W_q.weight), "torch" (in_proj_weight) or "llama" (q_proj.weight). Matrices are (out, in).

        >>> import heed
        >>> {name: array.shape for name, array in heed.AttentionLayer(64, 8, 2).state_dict().items()}
        {'W_k.weight': (16, 64), 'W_o.weight': (64, 64), 'W_q.weight': (64, 64), 'W_v.weight': (16, 64)}
        """

    def train(self, mode: bool = True) -> AttentionLayer:
        """
        Switches dropout on, or off with mode=False. Returns the layer.

        >>> import heed
        >>> heed.AttentionLayer(64, 8, dropout=0.1).train().training
        True
        """

    def eval(self) -> AttentionLayer:
        """No dropout, which is also how a layer begins. Returns the layer."""

compiler: str = '12.2.0'

def set_num_threads(n: int) -> None:
    """
    Sets how many threads heed uses from now on, at least 1.

    The number never changes a bit of any result. The default is HEED_NUM_THREADS, else what the machine allows.

    >>> import heed
    >>> before = heed.get_num_threads()
    >>> heed.set_num_threads(1)
    >>> heed.get_num_threads()
    1
    >>> heed.set_num_threads(before)
    """

def get_num_threads() -> int:
    """
    How many threads heed uses.

    >>> import heed
    >>> heed.get_num_threads() >= 1
    True
    """

def kernel_names() -> list[str]:
    """
    Every kernel this machine can run, in the order they are tried.

    >>> import heed
    >>> heed.kernel_names()[-1]
    'reference'
    """
