# SPDX-License-Identifier: Apache-2.0
"""heed.KvCache: however tokens come in, attention over them has the bits of attention over plain arrays."""

import concurrent.futures
import gc
import threading
import weakref

import ml_dtypes
import numpy as np
import pytest
import textbook
import torch

import heed

DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
HEADS, KV_HEADS, DIM, VALUE_DIM = 4, 2, 16, 24
CAPACITY = 150


def make(batch=1, **choices):
    choices = {"value_dim": VALUE_DIM, "page_size": 16} | choices
    return heed.KvCache(batch, KV_HEADS, CAPACITY, DIM, **choices)


def tokens(seed, count, batch=1, dtype=np.float32):
    """(k, v) of `count` tokens."""
    return textbook.random_arrays(
        seed, (batch, KV_HEADS, count, DIM), (batch, KV_HEADS, count, VALUE_DIM), dtype=dtype
    )


def filled(lengths, seed=0, **choices):
    """A cache with sequences of these lengths, and what was put into each."""
    cache = make(len(lengths), **choices)
    held = [tokens(seed + n, length) for n, length in enumerate(lengths)]
    for n, (k, v) in enumerate(held):
        cache.append_to(n, k, v)
    return cache, held


class Schedule:
    """A cache beside plain arrays of what it should hold, fed with the same tokens in a random way."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        self.dtype = DTYPES[self.random.choice(list(DTYPES))]
        batch = int(self.random.integers(1, 4))
        size = self.random.choice([None, 16, 32, 64])
        self.cache = make(
            batch, dtype=np.dtype(self.dtype).name, page_size=size and int(size), pages=6 * 10 if size else 6
        )
        self.held = {n: tokens(0, 0, dtype=self.dtype) for n in range(batch)}

    def new(self, count, batch=1):
        return tokens(int(self.random.integers(1 << 30)), count, batch, self.dtype)

    def keep(self, n, k, v):
        self.held[n] = [np.concatenate(pair, 2) for pair in zip(self.held[n], (k, v))]

    def any_sequence(self):
        return int(self.random.choice(sorted(self.held)))

    def append_to_one(self):
        n = self.any_sequence()
        k, v = self.new(self.random.integers(1, 20))
        self.cache.append_to(n, k, v)
        self.keep(n, k, v)

    def append_to_all(self):
        k, v = self.new(self.random.integers(1, 12), self.cache.sequences)
        counts = [int(self.random.integers(0, k.shape[2] + 1)) * (n in self.held) for n in range(len(k))]
        self.cache.append(k, v, counts)
        for n in self.held:
            self.keep(n, k[n : n + 1, :, : counts[n]], v[n : n + 1, :, : counts[n]])

    def truncate(self):
        n = self.any_sequence()
        length = int(self.random.integers(0, self.held[n][0].shape[2] + 1))
        self.cache.truncate(n, length)
        self.held[n] = [array[:, :, :length] for array in self.held[n]]

    def fork(self):
        n = self.any_sequence()
        if len(self.held) < 5:
            length = int(self.random.integers(0, self.held[n][0].shape[2] + 1))
            self.held[self.cache.fork(n, length)] = [array[:, :, :length] for array in self.held[n]]

    def release(self):
        if len(self.held) > 1:
            n = self.any_sequence()
            self.cache.release(n)
            del self.held[n]

    def run(self, steps=14):
        moves = [self.append_to_one, self.append_to_one, self.append_to_all, self.truncate, self.fork, self.release]
        for _ in range(steps):
            moves[self.random.integers(len(moves))]()
        self.append_to_one()


@pytest.mark.parametrize("seed", range(40))
def test_any_feeding_gives_the_bits_of_plain_attention(seed):
    schedule = Schedule(seed)
    schedule.run()
    wrong, compared = [], 0
    for n, (k, v) in schedule.held.items():
        assert schedule.cache.length(n) == k.shape[2]
        for queries in {1, min(3, k.shape[2]), k.shape[2]} if k.shape[2] else ():
            (q,) = textbook.random_arrays(n, (1, HEADS, queries, DIM), dtype=schedule.dtype)
            found = heed.attention(q, cache=schedule.cache, sequences=[n], causal=True)
            compared += 1
            if textbook.bits(found) != textbook.bits(heed.attention(q, k, v, causal="ends")):
                wrong.append((n, queries))
    assert compared and not wrong, f"seed {seed}: {len(wrong)} of {compared} differ, (sequence, queries): {wrong[:3]}"


def test_a_batch_of_different_lengths_has_the_bits_of_each_alone():
    cache, held = filled([70, 3, 40])
    (q,) = textbook.random_arrays(9, (3, HEADS, 2, DIM))
    out, weights, lse = heed.attention(q, cache=cache, causal=True, return_weights=True, return_lse=True)
    assert weights.shape == (3, HEADS, 2, 70)
    for n, (k, v) in enumerate(held):
        alone = heed.attention(q[n : n + 1], k, v, causal="ends", return_weights=True, return_lse=True)
        found = out[n : n + 1], weights[n : n + 1, ..., : k.shape[2]], lse[n : n + 1]
        assert list(map(textbook.bits, found)) == list(map(textbook.bits, alone))
        assert not weights[n, ..., k.shape[2] :].any()


def test_sequences_may_be_chosen_repeated_and_packed():
    cache, held = filled([70, 3, 40])
    (q,) = textbook.random_arrays(9, (1, HEADS, 6, DIM))
    packed = heed.attention(q, cache=cache, sequences=[2, 0, 2], query_starts=[0, 3, 4, 6], causal=True)
    for n, first, last in ((2, 0, 3), (0, 3, 4), (2, 4, 6)):
        k, v = held[n]
        rows = slice(first, last)
        assert textbook.bits(packed[:, :, rows]) == textbook.bits(heed.attention(q[:, :, rows], k, v, causal="ends"))


def test_packed_arrays_are_computed_sequence_by_sequence():
    q, k, v = textbook.random_arrays(5, (HEADS, 9, DIM), (KV_HEADS, 20, DIM), (KV_HEADS, 20, VALUE_DIM))
    starts = [0, 4, 4, 9], [0, 11, 14, 20]
    out, weights = heed.attention(
        q, k, v, query_starts=starts[0], key_starts=np.array(starts[1]), causal="ends", return_weights=True
    )
    assert weights.shape == (HEADS, 9, 11)
    for (a, b), (c, d) in zip(zip(starts[0], starts[0][1:]), zip(starts[1], starts[1][1:])):
        alone = heed.attention(q[:, a:b], k[:, c:d], v[:, c:d], causal="ends")
        assert textbook.bits(out[:, a:b]) == textbook.bits(alone)
        assert not weights[:, a:b, d - c :].any()


def test_a_window_keeps_its_front_and_gives_pages_back():
    cache, ((k, v),) = filled([0], window=20, front=3)[0], [tokens(1, 140)]
    (q,) = textbook.random_arrays(2, (1, HEADS, 140, DIM))
    whole = heed.attention(q, k, v, causal=True, window=(19, 0), front=3)
    most = 0
    for n in range(140):
        one = slice(n, n + 1)
        cache.append(k[:, :, one], v[:, :, one])
        most = max(most, cache.pages_in_use)
        out = heed.attention(q[:, :, one], cache=cache, causal=True)
        assert textbook.bits(out) == textbook.bits(whole[:, :, one]), f"token {n}"
    assert most <= 1 + 2 + 1 < cache.pages and cache.length(0) == 140
    unbounded, _ = filled([0])
    unbounded.append(k, v)
    windowed = heed.attention(q[:, :, -1:], cache=unbounded, causal=True, window=(19, 0), front=3)
    assert textbook.bits(windowed) == textbook.bits(whole[:, :, -1:])


def test_a_tree_mask_is_about_the_drafted_tokens():
    cache, ((k, v),) = filled([30])
    (q,) = textbook.random_arrays(3, (1, HEADS, 3, DIM))
    tree = np.array([[1, 0, 0], [1, 1, 0], [1, 0, 1]], bool)  # two continuations of one token
    keep = np.ones((3, 30), bool)
    keep[:, 27:] = tree
    assert textbook.bits(heed.attention(q, cache=cache, tree=tree)) == textbook.bits(heed.attention(q, k, v, keep=keep))


def test_int8_is_as_close_as_its_scale_says():
    cache, ((k, v),) = filled([50], quantize="int8")
    for found, given in zip(cache.read(0), (k, v)):
        assert found.dtype == np.float32
        largest = np.abs(given).max(axis=3, keepdims=True)
        assert np.sum(np.abs(found - given) > largest / 254 + 2**-23 * largest + 2**-143) == 0
    (q,) = textbook.random_arrays(3, (1, HEADS, 4, DIM))
    out, _, _ = textbook.attention(q, *cache.read(0), seen=np.tri(4, 50, 46, dtype=bool))
    assert textbook.misses(heed.attention(q, cache=cache, causal=True), out) == 0
    f32 = make(dtype=torch.float32)
    assert cache.bytes_per_token == KV_HEADS * (DIM + VALUE_DIM + 8) and cache.dtype == "int8"
    assert f32.bytes_per_token == 4 * KV_HEADS * (DIM + VALUE_DIM)


@pytest.mark.parametrize("rotate_at", ["append", "read"])
def test_rotary_turns_keys_by_their_place_in_the_sequence(rotate_at):
    cache, ((k, v),) = filled([45], rotary=heed.Rotary(base=100.0), rotate_at=rotate_at)
    turned = heed.rotate(k, rotary=heed.Rotary(base=100.0))
    found_k, found_v = cache.read(0)
    assert textbook.bits(found_k) == textbook.bits(turned) and textbook.bits(found_v) == textbook.bits(v)


def test_arrays_of_any_library_and_strides_go_in_and_come_out():
    jax = pytest.importorskip("jax")
    k, v = tokens(4, 9)
    cache = make(4)
    cache.append_to(0, torch.from_numpy(k), torch.from_numpy(v))
    cache.append_to(1, jax.numpy.asarray(k), jax.numpy.asarray(v))
    cache.append_to(2, np.asfortranarray(k)[:, :, ::-1], v[:, :, ::-1])
    cache.append_to(3, k[0], v[0])
    expected = [textbook.bits(k), textbook.bits(v)]
    assert list(map(textbook.bits, cache.read(0))) == expected
    ours = cache.read(1, like=torch.empty(1))
    assert isinstance(ours[0], torch.Tensor) and [textbook.bits(x.numpy()) for x in ours] == expected
    assert isinstance(cache.read(3, like=jax.numpy.zeros(1))[1], jax.Array)
    assert cache.read(3, like=torch.empty(1, dtype=torch.bfloat16))[0].dtype == torch.bfloat16
    assert textbook.bits(cache.read(2)[0][:, :, ::-1]) == expected[0]


def test_a_file_holds_the_whole_cache(tmp_path):
    cache, _ = filled([40, 0, 9], dtype="bfloat16", window=30)
    fork = cache.fork(0)
    cache.release(1)
    cache.save(tmp_path / "cache.safetensors")
    again = heed.KvCache.load(str(tmp_path / "cache.safetensors"))
    assert again.lengths == cache.lengths == [40, None, 9, 40] and fork == 3
    assert repr(again) == repr(cache) and again.bytes == cache.bytes and again.pages_in_use == cache.pages_in_use
    (q,) = textbook.random_arrays(1, (2, HEADS, 1, DIM))
    assert textbook.bits(heed.attention(q, cache=again, sequences=[3, 2])) == textbook.bits(
        heed.attention(q, cache=cache, sequences=[0, 2])
    )


def impossible():
    """sentence -> choices."""
    return {
        "dtype: float64 is none of float32, float16, bfloat16": {"dtype": np.float64},
        'dtype: int8 is none of float32, float16, bfloat16; say quantize="int8"': {"dtype": "int8"},
        "dtype: bfloat16, but quantize says int8; only one can be": {"dtype": torch.bfloat16, "quantize": "int8"},
        'quantize: "int4" is not "int8"': {"quantize": "int4"},
        'layout: "tiled" is none of "contiguous", "paged"': {"layout": "tiled"},
        "page_size: 16, but the layout is contiguous: one page per sequence": {"layout": "contiguous"},
        "page_size: 24 is not a power of two of at least 16": {"page_size": 24},
        "page_size: str is not an integer": {"page_size": "16"},
        "front: 4, but there is no window": {"front": 4},
        "window.length: 0 is not in [1, ": {"window": 0},
        "rotary: float is not a heed.Rotary": {"rotary": 10000.0},
        'rotate_at: "write" is none of "append", "read"': {"rotate_at": "write"},
        'rotate_at: "read", but there is no rotary': {"rotate_at": "read"},
        "rotary.dims: 32 is more than the head's dim: 16": {"rotary": heed.Rotary(dims=32)},
        "batch: -1 is not in [0, ": {"batch": -1},
        "colour: there is no such keyword argument": {"colour": "red"},
    }


def test_what_no_cache_can_be_made_of_is_refused():
    for sentence, choices in impossible().items():
        with pytest.raises(heed.Error) as raised:
            make(**choices)
        assert str(raised.value).startswith(sentence)


def wrong_calls(cache):
    """sentence -> call, over a cache of 70 and 3 tokens and a released number."""
    k, v = tokens(1, 5)
    (q,) = textbook.random_arrays(2, (1, HEADS, 4, DIM))
    nans = np.full_like(k, np.nan)

    def attend(**options):
        return lambda: heed.attention(q, **({"cache": cache, "sequences": [0]} | options))

    return {
        "sequence: 7 is not in [0, 3)": lambda: cache.append_to(7, k, v),
        "sequence: 2 is released": lambda: cache.append_to(2, k, v),
        "sequence: str is not an integer": lambda: cache.length("0"),
        "sequence: 3 is not in [0, 3)": lambda: cache.read(3),
        "like.dtype: float64 is none of float32, float16, bfloat16": lambda: cache.read(0, like=np.zeros(1)),
        "length: 71 is not in [0, 70]": lambda: cache.truncate(0, 71),
        "length: 4 is not in [0, 3]": lambda: cache.fork(1, 4),
        "k: list is not an array": lambda: cache.append_to(0, k.tolist(), v),
        "k.dtype: float64 is none of float32, float16, bfloat16": lambda: cache.append_to(0, k.astype(np.float64), v),
        "v.shape: (2, 5, 24) has not as many axes as k.shape: (1, 2, 5, 16)": lambda: cache.append_to(0, k, v[0]),
        "k: token 0 of head 0 for sequence 0 is not finite": lambda: cache.append_to(0, nans, v),
        "sequence 0 holds 70 of 150 tokens; 100 more do not fit": lambda: cache.append_to(0, *tokens(1, 100)),
        "counts: none are given; one per sequence is needed": lambda: cache.append(*tokens(1, 1, 3), counts=[]),
        "path: int is not a path": lambda: cache.save(5),
        "cache: dict is not a heed.KvCache": attend(cache={}),
        "k: given, but so is the cache": attend(k=k, v=v),
        "sequences: 3 numbers for a batch of 1": attend(sequences=[0, 1, 0]),
        "sequences: none are given; one per batch entry is needed": attend(sequences=[]),
        "cache.sequences: 3 are not the batch: 1; say which by sequences": attend(sequences=None),
        "q.length: 4 queries for batch entry 0 are more than the 3 tokens": attend(sequences=[1]),
        "query_starts: no entries": attend(query_starts=[]),
        "key_starts: given, but the cache knows its lengths": attend(query_starts=[0, 4], key_starts=[0, 70]),
        "front: 2, but there is no window": attend(front=2),
        "tree.dtype: float32 is not bool": attend(tree=np.ones((4, 4), np.float32)),
        "sequences: given, but no cache whose sequences they are": attend(cache=None, k=k, v=v),
        "k: None is not an array, and there is no cache in its place": attend(cache=None),
    }


def described(cache):
    return cache.lengths, cache.bytes, [list(map(textbook.bits, cache.read(n))) for n in (0, 1)]


def test_wrong_calls_are_refused_with_a_sentence_and_change_nothing():
    cache, _ = filled([70, 3, 0], quantize="int8")
    cache.release(2)
    before = described(cache)
    calls = wrong_calls(cache)
    for sentence, call in calls.items():
        with pytest.raises(heed.Error) as raised:
            call()
        assert str(raised.value).startswith(sentence)
        assert described(cache) == before, sentence


def test_out_of_pages_says_how_many_are_missing():
    cache = make(2, pages=3)
    cache.append(*tokens(1, 16, 2))
    with pytest.raises(heed.Error, match="cache: .* need 2 pages, 1 is free") as raised:
        cache.append(*tokens(2, 1, 2))
    assert raised.value.code == "capacity" and cache.lengths == [16, 16]


def test_a_damaged_file_is_refused(tmp_path):
    cache, _ = filled([20])
    path = tmp_path / "cache"
    cache.save(path)
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(heed.Error) as raised:
        heed.KvCache.load(path)
    assert raised.value.code == "file"


def test_arrays_may_die_while_the_cache_lives_and_the_cache_before_its_results():
    cache = make()
    k, v = (torch.from_numpy(array) for array in tokens(6, 33))
    expected = [textbook.bits(k.numpy()), textbook.bits(v.numpy())]
    gone = weakref.ref(k)
    cache.append(k, v)
    del k, v
    gc.collect()
    assert gone() is None
    for _ in range(20):  # memory that would be reused is
        np.full((1, KV_HEADS, 33, VALUE_DIM), np.nan, np.float32)
    read = cache.read(0)
    del cache
    gc.collect()
    assert list(map(textbook.bits, read)) == expected


def test_threads_with_sequences_of_their_own_get_the_bits_of_one():
    """Forks of one prompt, by themselves and over a layer: nothing is refused, and every answer is that of a cache alone."""
    layer, rounds, callers = heed.AttentionLayer(DIM * HEADS, HEADS, KV_HEADS), 20, 4

    def shared_cache():
        cache = make(2, page_size=16, pages=100, value_dim=DIM)
        for n in range(2):
            cache.append_to(n, *textbook.random_arrays(n, *2 * [(1, KV_HEADS, 21 + n, DIM)]))
        return cache

    def work(cache, seed):
        answers = []
        for step in range(rounds):
            own = cache.fork(step % 2, None if step % 3 else 9 + step % 5)
            for count in (1, 3):
                q, k, v, x = textbook.random_arrays(
                    1000 * seed + step,
                    (1, HEADS, 1, DIM),
                    *2 * [(1, KV_HEADS, count, DIM)],
                    (1, count, DIM * HEADS),
                )
                cache.append_to(own, k, v)
                answers.append(textbook.bits(heed.attention(q, cache=cache, sequences=[own])))
                answers.append(textbook.bits(layer(x, cache=cache, sequences=[own], causal=True)))
            cache.release(own)
        return answers

    expected = [work(shared_cache(), seed) for seed in range(callers)]
    cache = shared_cache()
    with concurrent.futures.ThreadPoolExecutor(callers) as pool:
        assert list(pool.map(lambda seed: work(cache, seed), range(callers))) == expected
    assert cache.pages_in_use == 4


def test_ten_threads_reading_at_once_get_the_bits_of_one():
    cache, _ = filled([150, 100], dtype="bfloat16")
    (q,) = textbook.random_arrays(8, (2, HEADS, 5, DIM))
    calls = [
        lambda: heed.attention(q, cache=cache, causal=True),
        lambda: heed.attention(q[:1, :, :1], cache=cache, sequences=[1]),
        lambda: cache.read(1)[0],
    ]
    expected = [textbook.bits(call()) for call in calls]
    barrier = threading.Barrier(10)

    def work(n):
        barrier.wait()
        order = [(n + i) % 3 for i in range(30)]
        return sum(textbook.bits(calls[i]()) != expected[i] for i in order)

    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        assert sum(pool.map(work, range(10))) == 0


def test_an_append_while_others_read_happens_whole_or_is_refused():
    cache, ((k, v),) = filled([100])
    (q,) = textbook.random_arrays(8, (1, HEADS, 1, DIM))
    more = tokens(7, 10)
    ways = {
        textbook.bits(heed.attention(q, *(np.concatenate([a, b[:, :, :n]], 2) for a, b in zip((k, v), more))))
        for n in range(11)
    }
    appended, done = 0, threading.Event()

    def read():
        wrong = 0
        while not done.is_set():
            try:
                wrong += textbook.bits(heed.attention(q, cache=cache)) not in ways
            except heed.Error as error:
                wrong += "sequence 0 is being changed" not in str(error)
        return wrong

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(read) for _ in range(3)]
        try:
            while appended < 10:
                try:
                    cache.append(more[0][:, :, appended : appended + 1], more[1][:, :, appended : appended + 1])
                    appended += 1
                except heed.Error as error:
                    assert "sequence 0 is being read" in str(error)
        finally:
            done.set()
    assert sum(reader.result() for reader in readers) == 0
    assert textbook.bits(heed.attention(q, cache=cache)) == textbook.bits(
        heed.attention(q, *(np.concatenate([a, b], 2) for a, b in zip((k, v), more)))
    )


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_a_layer_decodes_with_the_bits_of_prefill(kv_heads):
    layer = heed.AttentionLayer(32, 4, kv_heads, rotary=heed.Rotary(), seed=3)
    (x,) = textbook.random_arrays(5, (2, 12, 32))
    whole, weights = layer(x, causal=True, return_weights=True)
    cache = heed.KvCache(2, kv_heads, 40, 8)
    parts = [layer(x[:, :5], cache=cache, causal=True)]
    for n in range(5, 12):
        out, row = layer(x[:, n : n + 1], cache=cache, causal=True, return_weights=True)
        parts.append(out)
        assert textbook.bits(row) == textbook.bits(weights[:, :, n : n + 1, : n + 1])
    assert textbook.bits(np.concatenate(parts, 1)) == textbook.bits(whole) and cache.lengths == [12, 12]


def test_a_layer_that_refuses_leaves_the_cache_alone():
    layer = heed.AttentionLayer(32, 4, 2)
    cache = heed.KvCache(2, 2, 4, 8)
    (x,) = textbook.random_arrays(5, (2, 3, 32))
    layer(x, cache=cache, causal=True)
    for sentence, options in {
        "sequence 0 holds 3 of 4 tokens; 3 more do not fit": {},
        "context: given, but so is a cache": {"context": x},
        "sequences: 1 numbers for x.batch: 2": {"sequences": [1]},
    }.items():
        with pytest.raises(heed.Error, match=sentence):
            layer(x, cache=cache, causal=True, **options)
    assert cache.lengths == [3, 3]


def test_a_layer_keeps_padding_out_of_the_cache():
    layer = heed.AttentionLayer(32, 4, 2, bias=True, rotary=heed.Rotary(), seed=3)
    (x,) = textbook.random_arrays(61, (2, 12, 32))
    whole = layer(x, causal=True)
    cache = heed.KvCache(batch=2, kv_heads=2, capacity=20, dim=8)
    done = [0, 0]
    for counts in ([6, 4], [1, 0], [0, 3], [5, 5]):
        padded = np.full((2, max(counts), 32), np.nan, np.float32)
        for b, count in enumerate(counts):
            padded[b, :count] = x[b, done[b] : done[b] + count]
        y, weights, lse, scores = layer(
            padded, cache=cache, causal=True, counts=counts, return_weights=True, return_lse=True, return_scores="raw"
        )
        for b, count in enumerate(counts):
            assert textbook.bits(y[b, :count]) == textbook.bits(whole[b, done[b] : done[b] + count])
            assert not y[b, count:].any() and not weights[b, :, count:].any() and not scores[b, :, count:].any()
            assert np.isneginf(lse[b, :, count:]).all()
            done[b] += count
        assert cache.lengths == done


REFUSED_COUNTS = {
    "too few": ({"counts": [5]}, "counts: 1 entries for x.batch: 2"),
    "none": ({"counts": []}, "counts: none are given; one per sequence is needed"),
    "more than there are": ({"counts": [5, 2**62]}, r"counts\[1\]: 4611686018427387904 is not in \[0, 5\], the tokens of x"),
    "less than none": ({"counts": [-1, 5]}, r"counts\[0\]: -1 is not in \[0, 5\]"),
    "two axes": ({"counts": [[5], [5]]}, "counts: 2 axes are not 1"),
    "key_lengths": ({"key_lengths": [5, 3]}, "key lengths: given, but so is a cache, .* say by counts how many tokens of x there are"),
}


@pytest.mark.parametrize("name", REFUSED_COUNTS)
def test_counts_that_cannot_be_and_key_lengths_leave_the_cache_alone(name):
    options, sentence = REFUSED_COUNTS[name]
    layer = heed.AttentionLayer(32, 4, 2)
    (x,) = textbook.random_arrays(62, (2, 5, 32))
    cache = heed.KvCache(batch=2, kv_heads=2, capacity=20, dim=8)
    with pytest.raises(ValueError, match=sentence):
        layer(x, cache=cache, causal=True, **options)
    assert cache.lengths == [0, 0]


def test_counts_without_a_cache_are_refused():
    (x,) = textbook.random_arrays(63, (2, 5, 32))
    with pytest.raises(ValueError, match="counts: given, but the cache that gets so many tokens is not"):
        heed.AttentionLayer(32, 4)(x, counts=[5, 3])
