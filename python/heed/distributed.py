# SPDX-License-Identifier: Apache-2.0
"""Attention over ranks: processes that each have a part of the sequence, of the heads, or of a cache.

The ranks talk over an mpi4py communicator or a torch.distributed process group, and the results have the bits of one process.
Neither library is needed to import this.

>>> from mpi4py import MPI
>>> group = heed.distributed.group(MPI.COMM_WORLD)
>>> split = heed.distributed.split_sequence(queries=n, keys=n, heads=32, kv_heads=8, ranks=group.size)
>>> mine = split.of_rank[group.rank]
>>> out = heed.distributed.attention(group, split, mine.queries_of(q), mine.keys_of(k), mine.keys_of(v), causal=True)
"""

import collections
import dataclasses
import threading
import time

from heed import _heed
from heed._errors import KindError

__all__ = [
    "AttentionLayer",
    "Group",
    "LayerShare",
    "Share",
    "Split",
    "append",
    "attention",
    "attention_backward",
    "decode",
    "group",
    "split_grid",
    "split_heads",
    "split_sequence",
]

Group = _heed.Group

PIECE = 64 << 20  # bytes of a message: an int can count them, and a long message is seen to move

# Memory that a library may still write to after a fault. It is never freed.
_left_behind = []

_groups_of_torch = collections.Counter()


class _Word:
    """That a rank gives up, which the others look for now and then while they wait."""

    SECONDS = 0.1  # between two looks
    BYTES = 4096  # of a sentence

    def __init__(self, say, look):
        """say(bytes) tells all others; look() returns what one of them has said, or None."""
        self._say, self._look, self._looked, self._is_said = say, look, time.monotonic(), False

    def say(self, why):
        if not self._is_said:
            self._is_said = True
            self._say(why.encode(errors="replace")[: self.BYTES])

    def look(self):
        if time.monotonic() - self._looked < self.SECONDS:
            return
        said = self._look()
        self._looked = time.monotonic()
        if said is not None:
            self._is_said = True  # to all others, too
            raise RuntimeError(said.decode(errors="replace"))


class _Message:
    """Bytes on their way, in memory of their own: neither MPI nor gloo can call back what is under way."""

    def __init__(self, memory, into, pieces, word):
        self._memory, self._into, self._pieces, self._word = memory, into, pieces, word

    def is_done(self):
        while self._pieces:
            if not self._pieces[0].is_done():
                self._word.look()
                return False
            self._pieces.pop(0)
        if self._into is not None:
            self._into[:] = self._memory
            self._into = None
        return True

    def drop(self):
        self._into = None
        if self._pieces:
            _left_behind.append(self)


def _pieces_of(memory):
    """The last is shorter than the others, and empty where they are all there is.

    A message of another length has a piece that is not what is expected in its place.
    """
    view = memoryview(memory)
    return [view[at : at + PIECE] for at in range(0, len(view) + 1, PIECE)]


class _MpiPiece:
    """expected and agreed: bytes of the piece and of the whole message, where it is received."""

    def __init__(self, mpi, request, expected=None, agreed=None):
        self._mpi, self._request, self._status = mpi, request, mpi.Status()
        self._expected, self._agreed = expected, agreed

    def is_done(self):
        try:
            if not self._request.Test(self._status):
                return False
        except self._mpi.Exception as fault:
            if fault.Get_error_class() == self._mpi.ERR_TRUNCATE:
                raise RuntimeError(f"it is longer than the {self._agreed} bytes that were agreed on") from fault
            raise
        if self._expected is not None and self._status.Get_count(self._mpi.BYTE) != self._expected:
            raise RuntimeError(f"it is shorter than the {self._agreed} bytes that were agreed on")
        return True


class _MpiMessages:
    """Over a duplicate of the communicator, so that heed's messages never meet the program's own."""

    def __init__(self, communicator):
        from mpi4py import MPI

        self._mpi, self._comm = MPI, communicator.Dup()
        self._comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.rank, self.size = self._comm.Get_rank(), self._comm.Get_size()
        self._tags = self._comm.Get_attr(MPI.TAG_UB) or 32767  # and one more, for a rank that gives up
        self._word = _Word(self._tell, self._told)

    def send(self, to, data, step):
        memory = bytearray(data)
        pieces = [self._comm.Isend([part, self._mpi.BYTE], to, step % self._tags) for part in _pieces_of(memory)]
        return _Message(memory, None, [_MpiPiece(self._mpi, request) for request in pieces], self._word)

    def receive(self, peer, data, step):
        memory = bytearray(len(data))
        pieces = [
            _MpiPiece(self._mpi, self._comm.Irecv([part, self._mpi.BYTE], peer, step % self._tags), len(part), len(data))
            for part in _pieces_of(memory)
        ]
        return _Message(memory, data, pieces, self._word)

    def abort(self, why):
        self._word.say(why)

    def _tell(self, why):
        sent = [self._comm.Isend([why, self._mpi.BYTE], rank, self._tags) for rank in range(self.size) if rank != self.rank]
        _left_behind.append((why, sent))

    def _told(self):
        status = self._mpi.Status()
        if not self._comm.Iprobe(self._mpi.ANY_SOURCE, self._tags, status):
            return None
        why = bytearray(status.Get_count(self._mpi.BYTE))
        self._comm.Recv([why, self._mpi.BYTE], status.Get_source(), self._tags)
        return why


class _TorchPiece(threading.Thread):
    """A thread that waits: gloo says whether a message has arrived only to who waits for it."""

    def __init__(self, work, tensor):
        super().__init__(daemon=True)
        self._work, self._tensor, self._fault = work, tensor, None
        self.start()

    def run(self):
        try:
            self._work.wait()
        except RuntimeError as fault:
            self._fault = fault

    def is_done(self):
        if self.is_alive():
            return False
        if self._fault is not None:
            raise self._fault
        return True


class _TorchMessages:
    def __init__(self, process_group):
        import torch
        import torch.distributed

        self._torch, self._group = torch, process_group
        distributed = torch.distributed
        self.rank, self.size = distributed.get_rank(process_group), distributed.get_world_size(process_group)
        everybody = range(self.size)
        self._peers = (
            everybody if process_group is None else [distributed.get_global_rank(process_group, r) for r in everybody]
        )
        name = f"{getattr(process_group, 'group_name', '')} {list(self._peers)}"
        _groups_of_torch[name] += 1  # all its ranks make as many, in the same order
        self._key = f"heed: a rank of group {_groups_of_torch[name]} of {name} gave up"
        self._store = distributed.distributed_c10d._get_default_store()
        self._word = _Word(self._tell, self._told)

    def _begin(self, operation, peer, memory, step):
        pieces = []
        for part in filter(len, _pieces_of(memory)):  # torch makes no tensor of nothing
            tensor = self._torch.frombuffer(part, dtype=self._torch.uint8)
            pieces.append(_TorchPiece(operation(tensor, self._peers[peer], group=self._group, tag=step), tensor))
        return pieces

    def send(self, to, data, step):
        memory = bytearray(data)
        return _Message(memory, None, self._begin(self._torch.distributed.isend, to, memory, step), self._word)

    def receive(self, peer, data, step):
        memory = bytearray(len(data))
        return _Message(memory, data, self._begin(self._torch.distributed.irecv, peer, memory, step), self._word)

    def abort(self, why):
        self._word.say(why)

    def _tell(self, why):
        self._store.set(self._key, why)

    def _told(self):
        try:
            return self._store.get(self._key) if self._store.check([self._key]) else None
        except RuntimeError:  # whoever keeps the store is gone, which the messages will tell
            return None


def group(over=None, *, deadline=60.0):
    """This rank's end of a group. All ranks of `over` call it.

    over: an mpi4py communicator; a torch.distributed process group whose backend is gloo; None: the default one of torch.distributed.
    deadline: seconds for a message to move. What does not is heed.Error with the code "rank", which names the rank, the step and the
    direction; every later call of the group is refused with the same sentence. A rank that gives up, by a fault or by Ctrl-C, tells the
    others, who then wait no longer. KeyboardInterrupt, and whatever a handler of a signal raises, comes out of the call as it is.
    """
    if type(over).__module__.startswith("mpi4py"):
        return Group(_MpiMessages(over), deadline)
    if over is None or type(over).__module__.startswith("torch"):
        return Group(_TorchMessages(over), deadline)
    raise KindError(f"over: {type(over).__name__} is neither an mpi4py communicator nor a torch.distributed process group")


def _rows(array, stretches):
    if len(stretches) <= 1:
        first, length = stretches[0] if stretches else (0, 0)
        return array[..., first : first + length, :]
    parts = [array[..., first : first + length, :] for first, length in stretches]
    if type(array).__module__.startswith("torch"):
        import torch

        return torch.cat(parts, dim=-2)
    import numpy

    return numpy.concatenate(parts, axis=-2)


@dataclasses.dataclass(frozen=True)
class Share:
    """What one rank has: stretches (first, length) of the queries and keys, and KV heads with the query heads that read them."""

    queries: list[tuple[int, int]]
    keys: list[tuple[int, int]]
    first_kv_head: int
    kv_heads: int
    group: int  # query heads that read one KV head

    def _heads(self, array, of_one):
        first = self.first_kv_head * of_one
        return array[..., first : first + self.kv_heads * of_one, :, :]

    def queries_of(self, q):
        """The share's part of all queries, or of all results: (..., heads, queries, any)."""
        return _rows(self._heads(q, self.group), self.queries)

    def keys_of(self, k):
        """The share's part of all keys or values: (..., kv_heads, keys, any)."""
        return _rows(self._heads(k, 1), self.keys)


@dataclasses.dataclass(frozen=True)
class Split:
    """Who has what of a call. Any list of shares will do in which every query and key is somebody's, once."""

    queries: int
    keys: int
    heads: int
    kv_heads: int
    of_rank: list[Share]

    def _in_numbers(self):
        shares = [(share.queries, share.keys, share.first_kv_head, share.kv_heads) for share in self.of_rank]
        return (self.queries, self.keys, self.heads, self.kv_heads), shares


def split_grid(*, queries, keys, heads, kv_heads=None, ranks, head_groups):
    """ranks // head_groups ranks share a group of heads and split the sequence: stretches from the front, and as many from the back."""
    kv_heads = heads if kv_heads is None else kv_heads
    shares = _heed.split_over_ranks((queries, keys, heads, kv_heads), ranks, head_groups)
    return Split(queries, keys, heads, kv_heads, [Share(*share, group=heads // kv_heads) for share in shares])


def split_sequence(*, queries, keys, heads, kv_heads=None, ranks):
    """Every rank has stretches from the front of the sequence and from its back, which balances a causal mask, and all heads."""
    return split_grid(queries=queries, keys=keys, heads=heads, kv_heads=kv_heads, ranks=ranks, head_groups=1)


def split_heads(*, queries, keys, heads, kv_heads=None, ranks):
    """Every rank has whole KV heads, and all of the sequence."""
    return split_grid(queries=queries, keys=keys, heads=heads, kv_heads=kv_heads, ranks=ranks, head_groups=ranks)


def attention(group, split, q, k, v, **options):
    """heed.attention of the whole call, by all ranks, each with its share; returns this rank's rows.

    Options are those of heed.attention, and the same on every rank but for what has rows or heads: a bias and boolean masks have the
    rows of the share and all keys, slopes and sinks its heads. What differs is refused on all ranks. Weights, scores, caches and
    packed sequences are not for ranks.
    """
    return _heed.attention_over_ranks(group, split, (q, k, v), **options)


def attention_backward(group, split, out_gradient, q, k, v, out, lse, *, lse_gradient=None, by=("q", "k", "v"), **options):
    """heed.attention_backward of the whole call, by all ranks, each with its share; returns the gradients of this rank's rows.

    out and lse are what attention(group, split, q, k, v, ..., return_lse=True) returned. The gradient by what all queries share, a sink
    or a bias of one row, is whole on every rank. Where heads share it too, all ranks must have all heads.
    """
    arrays = (out_gradient, q, k, v, out, lse, lse_gradient, by)
    return _heed.attention_backward_over_ranks(group, split, arrays, **options)


def append(group, cache, sequence, length, k, v):
    """Keeps of new tokens those that are this rank's: chunk n of 1024 tokens is rank n % size's.

    k and v follow the first `length` tokens of the sequence, and are the same on every rank. The cache has pages of at most 1024 tokens.
    """
    _heed.append_own(group, cache, (sequence, length), k, v)


def decode(group, q, cache, lengths, **options):
    """heed.attention of a few queries over caches that append() filled; called alike by all ranks, which all have the result.

    lengths: of the whole sequences, one for each batch entry.
    """
    return _heed.decode_over_ranks(group, q, cache, lengths, **options)


@dataclasses.dataclass(frozen=True)
class LayerShare:
    """What one rank has of a layer: query heads, the KV heads that they read, and numbers of each row of the output."""

    first_head: int
    heads: int
    first_kv_head: int
    kv_heads: int
    first_output: int
    outputs: int


class AttentionLayer:
    """heed.AttentionLayer over ranks: each has some heads of the projections and some rows of the last one.

    weights: the path of a safetensors file with the whole layer, of which a rank reads its own rows only; or a dict of all arrays.
    prefix: what their names begin with. The other arguments are those of heed.AttentionLayer, of the whole layer. There is no dropout.

    All ranks call it with the same x and have all of the result, which has the bits of one process. A cache has the KV heads of the
    rank, share.kv_heads; a bias, slopes and sinks have its heads, and so has a log-sum-exp.

    >>> layer = heed.distributed.AttentionLayer(group, "model.safetensors", "model.layers.0.self_attn.", model_dim=4096, heads=32, kv_heads=8)
    >>> cache = heed.KvCache(batch=1, kv_heads=layer.share.kv_heads, capacity=8192, dim=128)
    >>> out = layer(x, cache=cache, causal=True)
    """

    def __init__(
        self,
        group,
        weights,
        prefix="",
        *,
        model_dim,
        heads,
        kv_heads=None,
        head_dim=None,
        value_dim=None,
        key_dim=None,
        rotary=None,
        head_map="interleaved",
        value_head_dim=None,
    ):
        config = {
            "model_dim": model_dim,
            "heads": heads,
            "kv_heads": kv_heads,
            "head_dim": head_dim,
            "value_dim": value_dim,
            "key_dim": key_dim,
            "rotary": rotary,
            "head_map": head_map,
            "value_head_dim": value_head_dim,
        }
        self._group, self._part = group, _heed.LayerOverRanks(group, weights, prefix, config)

    @property
    def share(self):
        """What this rank has of the layer."""
        return LayerShare(*self._part.share)

    def __call__(self, x, context=None, value=None, **options):
        return self._part(self._group, x, context, value, **options)
