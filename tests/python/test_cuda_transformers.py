# SPDX-License-Identifier: Apache-2.0
"""heed.transformers on a CUDA device, in a build with CUDA: small models generate there what they generate with the library's own
cache, and are as close to float64 as its eager attention."""

import pytest
import test_cuda  # noqa: F401, which skips where there is no device
import test_transformers as small
import test_transformers_cache as cached

import heed

torch, transformers = small.torch, small.transformers


def on_cuda(family, dtype="f32"):
    return small.decoder(family, dtype).heed.cuda()


def generate(model, cache, **how):
    ids, mask = (x.cuda() for x in small.tokens(9, 3))
    how = {"max_new_tokens": 16, "do_sample": False, "output_logits": True, "return_dict_in_generate": True} | how
    answer = model.generate(ids, attention_mask=mask, past_key_values=cache, **how)
    return answer.sequences, torch.stack(answer.logits, 1)


@small.each_dtype
@small.each_decoder
def test_models_are_as_close_as_eager(family, dtype):
    models = small.decoder(family, dtype)
    ids, mask = small.tokens(9, 3)
    with torch.no_grad():
        judge = small.judged(models, ids, mask)
        ours = models.heed.cuda()(ids.cuda(), attention_mask=mask.cuda()).logits.cpu()
        eager = models.eager.cuda()(ids.cuda(), attention_mask=mask.cuda()).logits.cpu()
    assert small.disagreement(ours, eager, judge, mask.bool()) is None


@small.each_decoder
def test_generation_has_the_bits_of_the_librarys_own_cache(family):
    model = on_cuda(family)
    ours, our_logits = generate(model, cached.HeedCache(model.config, page_size=16))
    theirs, their_logits = generate(model, transformers.DynamicCache(config=model.config))
    assert torch.equal(ours, theirs)
    assert torch.equal(our_logits, their_logits)


@small.each_decoder
@pytest.mark.parametrize("choices", [{}, {"quantize": "int8"}], ids=["whole", "int8"])
def test_the_cache_lies_where_the_model_does(family, choices):
    model = on_cuda(family, "bf16")
    cache = cached.HeedCache(model.config, page_size=16, **choices)
    sequences, _ = generate(model, cache, num_beams=2)
    assert sequences.shape == (2, 25)
    assert all(layer.cache.device == "cuda" for layer in cache.layers)


def test_another_implementation_gets_copies_on_the_device():
    model = on_cuda("llama")
    cache = cached.HeedCache(model.config, page_size=16)
    ours, _ = generate(model, cache)
    model.set_attn_implementation("eager")
    theirs, _ = generate(model, cached.HeedCache(model.config, page_size=16))
    assert torch.equal(ours, theirs)


def test_generation_on_a_stream_of_its_own_is_the_same():
    model = on_cuda("llama")
    wanted, _ = generate(model, cached.HeedCache(model.config, page_size=16))
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        found, _ = generate(model, cached.HeedCache(model.config, page_size=16))
    torch.cuda.synchronize()
    assert torch.equal(found, wanted)


def test_what_a_model_sees_is_recorded():
    model = on_cuda("llama")
    ids, _ = small.tokens(9)
    with torch.no_grad(), heed.transformers.watch(model) as run:
        model(ids.cuda())
    (shown,) = run.shown_runs()
    for layer in shown.layers:
        for rows in layer.rows:
            assert rows.weights.device.type == "cpu"
