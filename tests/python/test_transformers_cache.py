# SPDX-License-Identifier: Apache-2.0
"""heed.transformers.HeedCache: small models generate with it what they generate with the library's own cache."""

import copy
import types

import pytest
import test_transformers as small

torch = small.torch
transformers = small.transformers

import heed  # noqa: E402

HeedCache = heed.transformers.HeedCache
CHUNKS = (5, 1, 1, 4, 1, 1)


def generate(model, lengths, cache, **how):
    ids, mask = small.tokens(*lengths)
    how = {"max_new_tokens": 16, "do_sample": False, "output_logits": True, "return_dict_in_generate": True} | how
    answer = model.generate(ids, attention_mask=mask, past_key_values=cache, **how)
    return answer.sequences, torch.stack(answer.logits, 1)


@pytest.mark.parametrize("lengths", [(9,), (9, 3)], ids=["alone", "padded"])
@small.each_dtype
@small.each_decoder
def test_generation_has_the_bits_of_the_librarys_own_cache(family, dtype, lengths):
    model = small.decoder(family, dtype).heed
    ours, our_logits = generate(model, lengths, HeedCache(model.config, page_size=16))
    theirs, their_logits = generate(model, lengths, transformers.DynamicCache(config=model.config))
    assert torch.equal(ours, theirs)
    assert torch.equal(our_logits, their_logits)


@small.each_decoder
def test_beams_fork_and_release_sequences(family):
    model = small.decoder(family).heed
    beams = {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 12}
    cache = HeedCache(model.config, page_size=16, pages=40)
    ours, _ = generate(model, (9, 4), cache, **beams)
    theirs, _ = generate(model, (9, 4), transformers.DynamicCache(config=model.config), **beams)
    assert torch.equal(ours, theirs)
    assert all(layer.batch_size == 6 for layer in cache.layers)


@small.each_decoder
def test_attention_reads_the_cache_in_place(family, monkeypatch):
    def refuse(_):
        raise AssertionError("a copy of the cache was made")

    monkeypatch.setattr(heed.transformers.CachedStates, "dense", refuse)
    model = small.decoder(family).heed
    generate(model, (9, 3), HeedCache(model.config))


def in_pieces(model, cache, ids, pieces=CHUNKS):
    logits, end = [], 0
    for piece in pieces:
        begin, end = end, end + piece
        with torch.no_grad():
            logits.append(model(ids[:, begin:end], past_key_values=cache).logits)
    return torch.cat(logits, 1)


@small.each_decoder
def test_other_attention_gets_copies(family):
    eager = small.decoder(family).eager
    ids, _ = small.tokens(13, 13)
    ours = in_pieces(eager, HeedCache(eager.config), ids)
    assert torch.equal(ours, in_pieces(eager, transformers.DynamicCache(config=eager.config), ids))


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_a_cropped_cache_goes_on_as_if_nothing_had_come(family):
    model = small.decoder(family).heed
    ids, _ = small.tokens(13, 13)
    wrong, _ = small.tokens(3, 3, seed=8)
    cache = HeedCache(model.config, page_size=16)
    first = in_pieces(model, cache, ids, (7,))
    in_pieces(model, cache, wrong, (3,))
    cache.crop(-3)
    assert cache.get_seq_length() == 7
    rest = in_pieces(model, cache, ids[:, 7:], (6,))
    assert torch.equal(torch.cat([first, rest], 1), in_pieces(model, HeedCache(model.config), ids, (7, 6)))
    cache.reset()
    assert cache.get_seq_length() == 0
    assert torch.equal(in_pieces(model, cache, ids[:1], (7,)), in_pieces(model, HeedCache(model.config), ids[:1], (7,)))


def encoder_decoder():
    config = transformers.BartConfig(
        vocab_size=small.VOCABULARY, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=40, decoder_ffn_dim=40, max_position_embeddings=64, forced_eos_token_id=None, eos_token_id=None, pad_token_id=0,
        decoder_start_token_id=1,
    )  # fmt: skip
    return small.trio(transformers.AutoModelForSeq2SeqLM, config, "f32").heed


def beside_its_own(config, **choices):
    return transformers.EncoderDecoderCache(HeedCache(config, **choices), transformers.DynamicCache(config=config))


@pytest.mark.parametrize("model", [encoder_decoder, lambda: small.decoder("llama").heed, lambda: small.decoder("mistral").heed],
                         ids=["encoder and decoder", "decoder", "decoder with a window"])  # fmt: skip
@pytest.mark.parametrize("drafting", ["prompt lookup", "a draft model", "beams"])
def test_drafted_tokens_are_taken_back_from_a_cache(model, drafting):
    model = model()
    ids, _ = small.tokens(12)
    ids[0, 4:8] = ids[0, :4]  # something to look up
    wrap = beside_its_own if model.config.is_encoder_decoder else HeedCache
    how = {"max_new_tokens": 20, "min_new_tokens": 20, "do_sample": False}
    draft = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in draft.parameters():  # so that some tokens are taken and others are not
            parameter.mul_(1 + 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    more = {
        "prompt lookup": {"prompt_lookup_num_tokens": 3}, "a draft model": {"assistant_model": draft}, "beams": {"num_beams": 3}
    }[drafting]  # fmt: skip
    plain = model.generate(ids, **how, **(more if drafting == "beams" else {}))
    assert torch.equal(model.generate(ids, past_key_values=wrap(model.config), **how, **more), plain)


def test_states_that_are_no_longer_whole_are_read_as_copies():
    layer = HeedCache(transformers.LlamaConfig(**small.SMALL)).layers[0]
    k, v = torch.randn(2, 2, 2, 5, 16)
    old_k, old_v = layer.update(k, v)
    assert torch.equal(old_k + 0, k) and torch.equal(old_v[:, :, 2:], v[:, :, 2:])
    layer.update(k, v)
    query = torch.randn(2, 6, 5, 16)
    module = torch.nn.Module()
    found, _ = heed.transformers.attend(module, query, old_k, old_v, None)
    assert torch.equal(found, heed.transformers.attend(module, query, k, v, None)[0])


def test_batch_entries_can_be_selected_and_repeated():
    layer = HeedCache(transformers.LlamaConfig(**small.SMALL), page_size=16, pages=60).layers[0]
    k, v = torch.randn(2, 3, 2, 5, 16)
    layer.update(k, v)
    layer.batch_select_indices(torch.tensor([2, 0]))
    layer.batch_repeat_interleave(2)
    expected = k[[2, 2, 0, 0]]
    more = torch.randn(2, 4, 2, 1, 16)
    keys, _ = layer.update(*more)
    assert torch.equal(keys + 0, torch.cat([expected, more[0]], 2))


def test_an_append_that_does_not_fit_changes_no_sequence():
    cache = HeedCache(transformers.LlamaConfig(**small.SMALL), page_size=16, pages=3)
    layer = cache.layers[0]
    k, v = torch.randn(2, 2, 2, 15, 16)
    layer.update(k, v)
    layer.reorder_cache(torch.tensor([1, 0]))
    with pytest.raises(heed.Error, match="page"):
        layer.update(k[:, :, :2], v[:, :, :2])
    assert layer.cache.lengths == [15, 15]


def test_windows_bound_what_is_kept_and_int8_takes_a_quarter():
    config = transformers.MistralConfig(**small.SMALL | {"max_position_embeddings": 400}, sliding_window=small.WINDOW)
    model = small.randomised(transformers.AutoModelForCausalLM.from_config(config, attn_implementation="heed"))
    bounded = HeedCache(config, page_size=16)
    generate(model, (9,), bounded, max_new_tokens=90)
    assert bounded.get_seq_length() == 98
    assert max(layer.cache.pages_in_use for layer in bounded.layers) <= 2
    llama = small.decoder("llama").heed
    whole, quarter = HeedCache(llama.config), HeedCache(llama.config, quantize="int8")
    for cache in (whole, quarter):
        generate(llama, (9,), cache)
    per_token = [cache.layers[0].cache.bytes_per_token for cache in (whole, quarter)]
    assert per_token == [2 * 2 * 16 * 4, 2 * 2 * (16 + 4)]


def test_what_cannot_be_kept_is_refused():
    with pytest.raises(ValueError, match="layer 0 is a linear_attention"):
        HeedCache(transformers.LlamaConfig(**small.SMALL, layer_types=["linear_attention", "full_attention"]))
    layer = HeedCache(transformers.LlamaConfig(**small.SMALL), capacity=8).layers[0]
    with pytest.raises(heed.Error, match="8 tokens; 9 more do not fit"):
        layer.update(*torch.zeros(2, 1, 2, 9, 16))
    with pytest.raises(ValueError, match="tokens_to_remove: 2 is positive"):
        layer.crop(2)


def test_eight_bits_are_not_spent_on_the_dimensions_that_stand_out():
    generator = torch.Generator().manual_seed(5)
    query, k, v = torch.randn(3, 1, 2, 60, 16, generator=generator)
    k[..., 3] *= 40
    query[..., 3] /= 40
    exact, _ = heed.transformers.attend(torch.nn.Module(), query, k, v, None)
    layer = HeedCache(transformers.LlamaConfig(**small.SMALL), quantize="int8").layers[0]
    states = layer.update(k, v)
    ours, _ = heed.transformers.attend(torch.nn.Module(), query, *states, None)
    plain = heed.KvCache(1, 2, 60, 16, quantize="int8")
    plain.append(k, v)
    theirs = heed.attention(query, cache=plain, causal=True).transpose(1, 2)
    ours, theirs = ((out - exact).square().mean().sqrt().item() for out in (ours, theirs))
    assert 0 < ours < theirs / 2
    assert (states[0] - k).abs().max() < 40 * 4 / 127 and torch.equal(states[1] + 0, plain.read(0, like=v)[1])


@pytest.mark.parametrize("dim", [1, 16, 20, 80])
def test_spreading_twice_gives_back_what_was_there(dim):
    matrix = heed._transformers_cache.spreading(dim)
    assert torch.allclose(matrix @ matrix, torch.eye(dim), atol=1e-6) and torch.equal(matrix, matrix.T)


def test_windows_are_read_from_configs_of_every_release():
    def config(**fields):
        return types.SimpleNamespace(num_hidden_layers=3, **fields)

    windows = heed._transformers_cache.windows_of_layers
    assert windows(config()) == [None] * 3
    assert windows(config(sliding_window=5)) == [5] * 3
    mixed = ["sliding_attention", "full_attention", "sliding_attention"]
    assert windows(config(sliding_window=5, layer_types=mixed)) == [5, None, 5]
    assert windows(config(sliding_window=5, layer_types=mixed, num_kv_shared_layers=1)) == [5, None]
    each = [types.SimpleNamespace(sliding_window=n) for n in (7, None, 9)]
    assert windows(config(sliding_window=5, layer_types=mixed, per_layer_config=each)) == [7, None, 9]


def test_a_batch_that_is_repeated_has_room_for_as_many_tokens():
    cache = heed.transformers.HeedCache(transformers.LlamaConfig(num_hidden_layers=1), capacity=64, page_size=16)
    states = torch.randn(2, 2, 30, 8)
    cache.update(states, states, 0)
    cache.batch_repeat_interleave(3)
    more = torch.randn(6, 2, 34, 8)
    keys, _ = cache.update(more, more, 0)
    assert torch.equal(keys.dense(), torch.cat([states.repeat_interleave(3, 0), more], 2))


def test_a_copied_cache_answers_the_same_and_goes_its_own_way():
    cache = heed.transformers.HeedCache(transformers.LlamaConfig(num_hidden_layers=1), capacity=64, quantize="int8")
    states = torch.randn(2, 2, 5, 8)
    keys, _ = cache.update(states, states, 0)
    other = copy.deepcopy(cache)
    before = keys.dense()
    other.update(states, states, 0)
    assert cache.get_seq_length() == 5 and other.get_seq_length() == 10
    assert torch.equal(keys.dense(), before)
