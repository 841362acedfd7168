// SPDX-License-Identifier: Apache-2.0
// Signatures and docstrings of the cache. The examples in them are run by the tests.
#pragma once

namespace heed::python {

constexpr const char* cache_signature =
    "def __init__(self, batch: int, kv_heads: int, capacity: int, dim: int, *, dtype: typing.Any = None, "
    "layout: typing.Literal['contiguous', 'paged'] | None = None, page_size: int | None = None, quantize: "
    "typing.Literal['int8'] | None = None, "
    "value_dim: int | None = None, pages: int | None = None, window: int | None = None, front: int = 0, "
    "rotary: Rotary | None = None, rotate_at: typing.Literal['append', 'read'] = 'append', "
    "device: typing.Literal['cpu', 'cuda'] = 'cpu') -> None";
constexpr const char* cache_doc =
    R"(The keys and values of sequences that grow: what decoding reads at every step.

batch sequences, all empty, of at most capacity tokens each; a token is a key (kv_heads, dim) and a value
(kv_heads, value_dim). How they are kept:
  dtype      float32 (the default), float16 or bfloat16, by name or as NumPy's or PyTorch's own: tokens are rounded
             to it once
  quantize   "int8": 8 bits per element and a float32 scale per token and head, in place of a dtype
  layout     "contiguous", one page per sequence, or "paged"; default: paged if there is a page_size
  page_size  tokens per page, a power of two of at least 16; default 64
  pages      how many there are for all sequences together; default: enough for batch full ones
  window     attention sees the last so many tokens, its own included, and the first front ones; pages between the
             two are given back
  rotary     turns keys by their position, when they are appended or read (rotate_at="append" or "read")
  device     "cuda" in a build with CUDA: pages on the device that is current, for arrays that lie there
Every call that changes the cache does all it says or nothing: what it raises leaves the cache as it was. Threads that
each have a sequence of their own use a cache at once; a change of a sequence beside another call on it is refused with
a heed.Error whose code is busy.

>>> import numpy, heed
>>> cache = heed.KvCache(batch=2, kv_heads=2, capacity=4096, dim=64, dtype="bfloat16", page_size=64)
>>> k = v = numpy.ones((2, 2, 10, 64), numpy.float32)
>>> cache.append(k, v)                                            # ten tokens of each sequence
>>> q = numpy.ones((2, 8, 1, 64), numpy.float32)                  # the last one's query
>>> heed.attention(q, cache=cache, causal=True).shape
(2, 8, 1, 64)
>>> cache
KvCache(batch=2, kv_heads=2, capacity=4096, dim=64, dtype='bfloat16', page_size=64, pages=128)
)";

constexpr const char* append_doc = R"(Adds tokens to every sequence.

k is (sequences, kv_heads, tokens, dim) and v (sequences, kv_heads, tokens, value_dim), of any library, element type and
strides; one sequence may leave out the first axis. They are copied: the arrays may go. Each sequence gets all
tokens, or the first counts[n] of them; a released number must get none.

>>> import numpy, heed
>>> cache = heed.KvCache(batch=2, kv_heads=1, capacity=100, dim=4)
>>> k = v = numpy.ones((2, 1, 7, 4), numpy.float32)
>>> cache.append(k, v, counts=[7, 3])
>>> cache.lengths
[7, 3]
)";
constexpr const char* append_to_doc =
    R"(Adds tokens to one sequence: k is (1, kv_heads, tokens, dim) or without the 1.

>>> import numpy, heed
>>> cache = heed.KvCache(batch=2, kv_heads=1, capacity=100, dim=4)
>>> cache.append_to(1, numpy.ones((1, 5, 4), numpy.float32), numpy.ones((1, 5, 4), numpy.float32))
>>> cache.lengths
[0, 5]
)";
constexpr const char* truncate_doc = R"(Forgets every token from length on: speculative decoding rolls back.

Refused where the window of the last token left has lost a page; the length before the last append is always there.

>>> import numpy, heed
>>> cache = heed.KvCache(batch=1, kv_heads=1, capacity=100, dim=4)
>>> cache.append(numpy.ones((1, 5, 4), numpy.float32), numpy.ones((1, 5, 4), numpy.float32))
>>> cache.truncate(0, 3)
>>> cache.length(0)
3
)";
constexpr const char* reset_doc = R"(Forgets every token of a sequence, or of all of them.

>>> import heed
>>> heed.KvCache(batch=1, kv_heads=1, capacity=100, dim=4).reset()
)";
constexpr const char* fork_doc =
    R"(A new sequence with the first length tokens of this one (default: all). Returns its number.

Pages are shared until either sequence writes to one: beam search, a prompt that many requests begin with. A contiguous
cache needs pages for its forks.

>>> import numpy, heed
>>> cache = heed.KvCache(batch=1, kv_heads=1, capacity=100, dim=4, page_size=16, pages=20)
>>> cache.append(numpy.ones((1, 50, 4), numpy.float32), numpy.ones((1, 50, 4), numpy.float32))
>>> cache.fork(0), cache.lengths, cache.pages_in_use
(1, [50, 50], 4)
)";
constexpr const char* release_doc =
    R"(Gives a sequence's pages back and frees its number for the next fork or add.

>>> import heed
>>> cache = heed.KvCache(batch=2, kv_heads=1, capacity=100, dim=4)
>>> cache.release(0)
>>> cache.lengths
[None, 0]
)";
constexpr const char* add_doc = R"(A new, empty sequence. Returns its number, the lowest that is free.

>>> import heed
>>> heed.KvCache(batch=2, kv_heads=1, capacity=100, dim=4).add()
2
)";
constexpr const char* length_doc = R"(How many tokens a sequence has.

>>> import heed
>>> heed.KvCache(batch=2, kv_heads=1, capacity=100, dim=4).length(1)
0
)";
constexpr const char* read_doc =
    R"(Copies of a sequence's keys and values as attention sees them: dequantised, turned.

Returns (k, v), (1, kv_heads, length, dim) and (1, kv_heads, length, value_dim): of the library and element type of like,
or NumPy arrays of the cache's dtype, float32 for int8. Tokens that the window released come out as zeros.

>>> import numpy, torch, heed
>>> cache = heed.KvCache(batch=1, kv_heads=1, capacity=100, dim=2)
>>> cache.append(numpy.ones((1, 5, 2), numpy.float32), numpy.ones((1, 5, 2), numpy.float32))
>>> k, v = cache.read(0, like=torch.empty(1, dtype=torch.float16))
>>> k.dtype, v.shape
(torch.float16, torch.Size([1, 1, 5, 2]))
)";
constexpr const char* to_doc =
    R"(A copy in the memory of another device, or of this one: the same sequences, numbers and shared pages.

pages: how many there are for all sequences together; default: as many as here.

>>> import numpy, heed
>>> cache = heed.KvCache(batch=1, kv_heads=1, capacity=100, dim=4)
>>> cache.append(*[numpy.ones((1, 1, 3, 4), numpy.float32)] * 2)
>>> copy = cache.to("cpu")
>>> copy.truncate(0, 1)
>>> cache.lengths, copy.lengths, copy.device
([3], [1], 'cpu')
)";
constexpr const char* save_doc =
    R"(Writes the cache to a file, atomically: a safetensors file of its pages in use.

>>> import heed, os, tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     path = os.path.join(folder, "prompt.safetensors")
...     heed.KvCache(batch=2, kv_heads=1, capacity=100, dim=4).save(path)
...     heed.KvCache.load(path).sequences
2
)";
constexpr const char* load_cache_doc =
    R"(A cache from a file that save() wrote. The file is checked whole before any of it is believed.

>>> import heed
>>> try:
...     heed.KvCache.load("there/is/none")
... except heed.Error as error:
...     print(error.code)
file
)";

constexpr const char* restored_cache_doc = "A cache out of what __reduce__ told; heed._copies calls it.";

}  // namespace heed::python
