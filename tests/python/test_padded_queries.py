# SPDX-License-Identifier: Apache-2.0
"""query_lengths: batches whose queries are padded (S19). And heads of no dimensions (S1), which every library may hand over."""

import numpy as np
import pytest
import textbook
import torch

import heed

LENGTHS = [3, 0, 5]
OPTIONS = [{}, {"causal": "ends"}, {"causal": "starts", "key_lengths": [7, 4, 2]}, {"alibi": ([0.5, 0.1, 0.2, 1.0], "ends")}]


def arrays():
    return textbook.random_arrays(7, (3, 4, 5, 16), (3, 2, 7, 16), (3, 2, 7, 8))


def entry(options, b):
    lengths = options.get("key_lengths")
    return options | ({"key_lengths": lengths[b : b + 1]} if lengths else {})


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_entry_has_the_bits_of_its_own_queries_alone(options):
    q, k, v = arrays()
    out, weights, lse = heed.attention(q, k, v, query_lengths=LENGTHS, return_weights=True, return_lse=True, **options)
    for b, n in enumerate(LENGTHS):
        one = slice(b, b + 1)
        alone = heed.attention(
            q[one, :, :n], k[one], v[one], return_weights=True, return_lse=True, **entry(options, b)
        )
        for found, wanted in zip((out, weights, lse), alone):
            assert textbook.bits(found[one, :, :n]) == textbook.bits(wanted)
        assert (out[b, :, n:] == 0).all() and (weights[b, :, n:] == 0).all() and np.isneginf(lse[b, :, n:]).all()


def test_padding_is_not_read_and_a_callers_out_is_left_alone_there():
    q, k, v = arrays()
    wanted = heed.attention(q, k, v, query_lengths=LENGTHS)
    for b, n in enumerate(LENGTHS):
        q[b, :, n:] = np.nan
    out = np.full_like(wanted, 77)
    assert heed.attention(q, k, v, query_lengths=np.array(LENGTHS), out=out) is out
    for b, n in enumerate(LENGTHS):
        assert (out[b, :, :n] == wanted[b, :, :n]).all() and (out[b, :, n:] == 77).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_tensors_of_torch_are_padded_too(dtype):
    q, k, v = (torch.from_numpy(x).to(dtype) for x in arrays())
    out, scores = heed.attention(q, k, v, query_lengths=torch.tensor(LENGTHS), return_scores="biased")
    for b, n in enumerate(LENGTHS):
        assert (out[b, :, n:] == 0).all() and torch.isneginf(scores[b, :, n:]).all() and out[b, :, :n].isfinite().all()


def test_gradients_of_padding_are_0():
    q, k, v = arrays()
    out, lse = heed.attention(q, k, v, query_lengths=LENGTHS, return_lse=True)
    (d_out,) = textbook.random_arrays(8, out.shape)
    dq, dk, dv = heed.attention_backward(d_out, q, k, v, out, lse, query_lengths=LENGTHS)
    assert (dk[1] == 0).all() and (dv[1] == 0).all()
    for b, n in enumerate(LENGTHS):
        assert (dq[b, :, n:] == 0).all() and (n == 0 or (dq[b, :, :n] != 0).any())


REFUSED = {
    "of another batch": ([1, 2], "query_lengths: 2 entries for q.batch: 3"),
    "beyond the rows": ([3, 6, 1], r"query_lengths\[1\]: 6 is not in \[0, 5\], the queries of q"),
    "none": ([], "query_lengths: none are given; one per batch entry is needed"),
    "in rows": ([[1, 2, 3]], "query_lengths: 2 axes are not 1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_mistakes_are_named(name):
    lengths, sentence = REFUSED[name]
    with pytest.raises(heed.Error, match=sentence):
        heed.attention(*arrays(), query_lengths=lengths)


def test_queries_that_could_stand_anywhere_are_refused():
    q, k, v = arrays()
    with pytest.raises(heed.Error, match="causal: 3 queries, 7 keys"):
        heed.attention(q, k, v, query_lengths=LENGTHS, causal=True)
    with pytest.raises(heed.Error, match="query_lengths: given, but so are query_starts"):
        heed.attention(q[:1], k[:1], v[:1], query_lengths=[5], query_starts=[0, 5], key_starts=[0, 7])


def test_heads_of_no_dimensions_average_the_values_they_see():
    q, k, (v,) = np.ones((2, 4, 5, 0), np.float32), np.ones((2, 2, 7, 0), np.float32), textbook.random_arrays(9, (2, 2, 7, 8))
    theirs = torch.nn.functional.scaled_dot_product_attention(
        torch.from_numpy(q), torch.from_numpy(k).repeat_interleave(2, 1), torch.from_numpy(v).repeat_interleave(2, 1)
    )
    assert np.allclose(heed.attention(q, k, v), theirs.numpy(), atol=1e-6)
    ours = heed.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    assert np.allclose(ours, theirs.numpy(), atol=1e-6)
    out, lse = heed.attention(q, k, v, causal="ends", scale=3.0, return_lse=True)
    assert np.allclose(out[:, 0, 0], v[:, 0, :3].mean(axis=1), atol=1e-6) and np.allclose(np.exp(lse[0, 0]), [3, 4, 5, 6, 7])
    dq, dk, dv = heed.attention_backward(np.ones_like(out), q, k, v, out, lse, causal="ends")
    assert dq.shape == q.shape and dk.shape == k.shape and np.allclose(dv.sum(axis=(1, 2)), 20, atol=1e-4)
