# SPDX-License-Identifier: Apache-2.0
"""heed.transformers: small models with random weights, against the library's own eager attention.

The judge is the same model with the same weights in float64, asked for one sentence at a time, whole and unpadded.
heed may be at most twice as far from it as eager is in the same dtype, plus the rounding of a few operations.
"""

import copy
import dataclasses
import itertools

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from transformers import masking_utils  # noqa: E402
from transformers.models.bert import modeling_bert as bert  # noqa: E402

import heed.transformers  # noqa: E402
from heed import _transformers_masks, _transformers_own  # noqa: E402

heed.transformers.register("heed")

VOCABULARY = 97
WINDOW = 5
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
DECODERS = {
    "llama": lambda: transformers.LlamaConfig(**SMALL),
    "mistral": lambda: transformers.MistralConfig(**SMALL, sliding_window=WINDOW),
    "gemma2": lambda: transformers.Gemma2Config(
        **SMALL, sliding_window=WINDOW, attn_logit_softcapping=0.5, query_pre_attn_scalar=4
    ),
    "gpt-oss": lambda: transformers.GptOssConfig(
        **SMALL, sliding_window=WINDOW, num_local_experts=4, num_experts_per_tok=2, experts_implementation="eager"
    ),
}
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
each_decoder = pytest.mark.parametrize("family", DECODERS)
each_dtype = pytest.mark.parametrize("dtype", DTYPES)


def randomised(model, seed=11):
    """The model with every parameter drawn anew, large enough that attention is far from uniform."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread = 1.0 if parameter.ndim == 1 else 2.0 / parameter.shape[-1] ** 0.5
            if "norm" not in name.lower():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * spread)
    return model.eval()


@dataclasses.dataclass
class Trio:
    """One model three times: heed and eager in the dtype under test, and the judge."""

    heed: torch.nn.Module
    eager: torch.nn.Module
    judge: torch.nn.Module


def trio(auto, config, dtype):
    eager = randomised(auto.from_config(config, attn_implementation="eager")).to(DTYPES[dtype])
    judge = copy.deepcopy(eager).double()
    ours = copy.deepcopy(eager)
    ours.set_attn_implementation("heed")
    return Trio(ours, eager, judge)


def decoder(family, dtype="f32"):
    return trio(transformers.AutoModelForCausalLM, DECODERS[family](), dtype)


def tokens(*lengths, side="left", seed=3):
    """(input_ids, attention_mask), padded to the longest on one side."""
    generator = torch.Generator().manual_seed(seed)
    longest = max(lengths)
    mask = torch.zeros(len(lengths), longest, dtype=torch.int64)
    for row, length in zip(mask, lengths, strict=True):
        row[longest - length :] = 1
    if side == "right":
        mask = mask.flip(1)
    return torch.randint(2, VOCABULARY, mask.shape, generator=generator) * mask, mask


def judged(models, ids, mask, field="logits", **others):
    """What the judge says of every token; zeros in the place of padding."""
    answers = []
    for row, is_token in zip(ids, mask.bool(), strict=True):
        said = models.judge(row[is_token][None], **others)[field][0]
        answers.append(said.new_zeros(len(row), said.shape[1]).index_put_((is_token,), said))
    return torch.stack(answers)


def disagreement(ours, eager, judge, where=...):
    """None if ours is at most twice as far from the judge as eager is; else a sentence."""
    ours, eager, judge = ours[where], eager[where], judge[where]
    assert judge.isfinite().all()
    rounding = torch.finfo(ours.dtype).eps * judge.abs().max().item()
    error, allowed = (ours - judge).abs().max().item(), 2 * (eager - judge).abs().max().item() + 4 * rounding
    return None if error <= allowed else f"heed is {error:.3g} from the judge, allowed are {allowed:.3g}"


@each_dtype
@pytest.mark.parametrize("side", ["none", "left", "right"])
@each_decoder
def test_a_prompt_gives_the_logits_of_eager_attention(family, side, dtype):
    models = decoder(family, dtype)
    ids, mask = tokens(23, 23) if side == "none" else tokens(17, 4, 11, side=side)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        ours, eager = (
            model(ids, attention_mask=mask, position_ids=positions).logits
            for model in (models.heed, models.eager)
        )
        assert disagreement(ours, eager, judged(models, ids, mask), where=mask.bool()) is None


def in_pieces(model, ids, mask, pieces):
    """The logits of a prompt that is fed piece by piece into the model's own cache."""
    cache, logits, end = transformers.DynamicCache(config=model.config), [], 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    for piece in pieces:
        begin, end = end, end + piece
        answer = model(
            ids[:, begin:end],
            attention_mask=mask[:, :end],
            position_ids=positions[:, begin:end],
            past_key_values=cache,
        )
        logits.append(answer.logits)
    return torch.cat(logits, 1)


@each_dtype
@pytest.mark.parametrize("lengths", [(13,), (13, 6)], ids=["alone", "padded"])
@pytest.mark.parametrize("pieces", [(1,) * 13, (7, 1, 1, 4)], ids=["token by token", "in chunks"])
@each_decoder
def test_decoding_with_a_cache_gives_the_logits_of_eager_attention(family, pieces, lengths, dtype):
    models = decoder(family, dtype)
    ids, mask = tokens(*lengths)
    with torch.no_grad():
        ours, eager = (in_pieces(model, ids, mask, pieces) for model in (models.heed, models.eager))
        assert disagreement(ours, eager, judged(models, ids, mask), where=mask.bool()) is None


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("lengths", [(9,), (9, 3)], ids=["alone", "padded"])
@each_decoder
def test_generation_gives_the_tokens_of_eager_attention(family, lengths, cache):
    models = decoder(family)
    ids, mask = tokens(*lengths)
    how = {"max_new_tokens": 16, "do_sample": False, "cache_implementation": cache}
    ours = models.heed.generate(ids, attention_mask=mask, **how)
    assert ours.tolist() == models.eager.generate(ids, attention_mask=mask, **how).tolist()


@pytest.mark.parametrize("lengths", [(9, 9), (9, 3)], ids=["full", "padded"])
@each_decoder
def test_no_matrix_of_queries_by_keys_is_made(family, lengths, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a dense mask was made")

    models = decoder(family)
    ids, mask = tokens(*lengths)
    monkeypatch.setattr(_transformers_masks, "sdpa_mask", refuse)
    monkeypatch.setattr(heed.transformers.SeenKeys, "dense", refuse)
    models.heed.generate(ids, attention_mask=mask, max_new_tokens=8, do_sample=False)


@each_dtype
@each_decoder
def test_weights_are_returned_when_they_are_asked_for(family, dtype):
    models = decoder(family, dtype)
    ids, _ = tokens(11, 11)
    with torch.no_grad():
        ours, eager, judge = (
            model(ids, output_attentions=True).attentions for model in (models.heed, models.eager, models.judge)
        )
    assert len(ours) == SMALL["num_hidden_layers"]
    for layer in zip(ours, eager, judge, strict=True):
        assert disagreement(*layer) is None


ENCODER = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "pad_token_id": 0,
}
ENCODERS = {
    "bert": lambda: transformers.BertConfig(**ENCODER),
    "modernbert": lambda: transformers.ModernBertConfig(
        **ENCODER, local_attention=6, global_attn_every_n_layers=2, cls_token_id=1, sep_token_id=1,
        bos_token_id=1, eos_token_id=1,
    ),
}  # fmt: skip


@each_dtype
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", ENCODERS)
def test_an_encoder_gives_the_states_of_eager_attention(family, side, dtype):
    models = trio(transformers.AutoModel, ENCODERS[family](), dtype)
    for lengths in ((15, 15), (15, 4, 9)):
        ids, mask = tokens(*lengths, side=side)
        with torch.no_grad():
            ours, eager = (
                model(ids, attention_mask=mask).last_hidden_state for model in (models.heed, models.eager)
            )
            judge = judged(models, ids, mask, "last_hidden_state")
        assert disagreement(ours, eager, judge, where=mask.bool()) is None, f"lengths {lengths}"


@each_dtype
def test_position_biases_and_cross_attention_give_the_logits_of_eager_attention(dtype):
    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=48, d_kv=16, d_ff=64, num_layers=2, num_heads=3,
        decoder_start_token_id=0, pad_token_id=0,
    )  # fmt: skip
    models = trio(transformers.AutoModelForSeq2SeqLM, config, dtype)
    ids, mask = tokens(15, 4, 9, side="right")
    answer_ids, _ = tokens(7, 7, 7)
    with torch.no_grad():
        ours, eager = (
            model(ids, attention_mask=mask, decoder_input_ids=answer_ids).logits
            for model in (models.heed, models.eager)
        )
        judge = torch.cat([
            models.judge(row[None, is_token], decoder_input_ids=answer[None]).logits
            for row, is_token, answer in zip(ids, mask.bool(), answer_ids, strict=True)
        ])  # fmt: skip
    assert disagreement(ours, eager, judge) is None


@pytest.mark.parametrize("kind", ["boolean", "additive"])
def test_a_mask_of_the_callers_own_is_taken(kind):
    models = decoder("llama")
    ids, _ = tokens(9, 9)
    seen = (torch.arange(9)[:, None] - torch.arange(9)) % 3 == 0  # neither causal nor a window
    dense = torch.zeros(1, 1, 9, 9).masked_fill(~seen, torch.finfo(torch.float32).min)
    with torch.no_grad():
        ours = models.heed(ids, attention_mask=seen[None, None] if kind == "boolean" else dense).logits
        eager, judge = (model(ids, attention_mask=dense).logits for model in (models.eager, models.judge))
    assert disagreement(ours, eager, judge) is None


def mask_calls():
    """Arguments of the mask interface: every kind of mask, cache and padding."""
    causal = [("causal", masking_utils.causal_mask_function, None)]
    causal += [(f"window {w}", masking_utils.sliding_window_causal_mask_function(w), w) for w in (1, 2, 5)]
    for shifts, w in itertools.product((torch.tensor([0, 1, 2]), torch.tensor([1, 0, 2])), (2, 5)):
        causal.append((f"chunk {w}", masking_utils.chunked_causal_mask_function(w, shifts), w))
    both = [("all", masking_utils.bidirectional_mask_function, None)]
    both += [(f"around {w}", masking_utils.sliding_window_bidirectional_mask_function(w), w) for w in (1, 3)]
    lengths = [(1, 1, 0, 0), (6, 6, 0, 0), (1, 9, 8, 0), (4, 9, 5, 0), (3, 7, 9, 5), (6, 12, 0, 0), (1, 12, 4, 0)]
    paddings = [None, "left", "right", "none", "scattered"]
    for kind, length, padding in itertools.product(causal + both, lengths, paddings):
        yield kind, length, padding


def padding_of(kind, length):
    mask = torch.ones(3, length, dtype=torch.bool)
    if kind == "left":
        mask[1, : length // 2] = False
    elif kind == "right":
        mask[2, (length + 1) // 2 :] = False
    elif kind == "scattered":
        mask[0, length // 3 :: 3] = False
    return None if kind is None else mask


def test_every_mask_means_what_transformers_own_mask_means():
    failures, named, calls = [], 0, list(mask_calls())
    for (name, function, local_size), (queries, keys, q_offset, kv_offset), padding in calls:
        arguments = {
            "batch_size": 3, "q_length": queries, "kv_length": keys, "q_offset": q_offset, "kv_offset": kv_offset,
            "mask_function": function, "local_size": local_size,
            "attention_mask": padding_of(padding, min(kv_offset + keys, q_offset + queries)),
        }  # fmt: skip
        ours = heed.transformers.make_mask(**arguments, allow_is_causal_skip=True)
        dense = masking_utils.sdpa_mask(**arguments, allow_is_causal_skip=False)
        named += ours.pattern is not None
        if not torch.equal(ours.seen(), dense) or not torch.equal(ours + 0, masking_utils.eager_mask(**arguments)):
            failures.append(f"{name}, {queries} queries at {q_offset}, {keys} keys at {kv_offset}, {padding}")
    assert not failures, f"{len(failures)} of {len(calls)} masks differ, first: {failures[0]}"
    assert named > len(calls) // 4


@pytest.mark.parametrize("padding", [None, "none"])
@pytest.mark.parametrize("lengths", [(6, 6, 0), (1, 9, 8), (4, 9, 5)])
def test_no_mask_means_every_key_and_never_causal(lengths, padding):
    queries, keys, q_offset = lengths
    arguments = {"batch_size": 3, "q_length": queries, "kv_length": keys, "q_offset": q_offset}
    arguments["attention_mask"] = padding_of(padding, keys)
    for causal_skip, bidirectional_skip in itertools.product((False, True), repeat=2):
        arguments |= {"allow_is_causal_skip": causal_skip, "allow_is_bidirectional_skip": bidirectional_skip}
        causal = heed.transformers.make_mask(**arguments, mask_function=masking_utils.causal_mask_function)
        assert causal.pattern == heed.transformers.Pattern(causal=True) and causal.padding is None and causal.drawn is None
        every = heed.transformers.make_mask(**arguments, mask_function=masking_utils.bidirectional_mask_function)
        theirs = masking_utils.eager_mask(**arguments, mask_function=masking_utils.bidirectional_mask_function)
        assert (every is None) == (theirs is None) == bidirectional_skip
        assert every is None or every.pattern == heed.transformers.Pattern(causal=False)


def call_of_attention(module, mask, **others):
    """(what attend answers, what transformers' plain attention does) over one set of queries, keys and values."""
    q, k, v = torch.randn(3, 2, 4, 5, 8, generator=torch.Generator().manual_seed(4))
    ours, _ = heed.transformers.attend(module, q, k, v, mask, **others)
    theirs, _ = bert.eager_attention_forward(module, q, k, v, mask)
    return ours, theirs


def module_that(**says):
    module = torch.nn.Module().eval()
    for name, value in says.items():
        setattr(module, name, value)
    return module


@pytest.mark.parametrize("says", [{}, {"is_causal": False}, {"is_causal": True}], ids=["nothing", "not causal", "causal"])
def test_a_model_that_hands_over_no_mask_means_every_key(says):
    ours, theirs = call_of_attention(module_that(**says), None)
    torch.testing.assert_close(ours, theirs)


def test_is_causal_without_a_mask_is_refused():
    with pytest.raises(heed.KindError, match=r"^is_causal: True without a mask is causal in transformers' sdpa attention and every key"):
        call_of_attention(module_that(), None, is_causal=True)


def test_a_mask_decides_whatever_a_module_says_of_itself():
    for causal in (False, True):
        mask = heed.transformers.make_mask(2, 5, 5, mask_function=masking_utils.causal_mask_function)
        ours, theirs = call_of_attention(module_that(is_causal=causal), mask)
        torch.testing.assert_close(ours, theirs)


def test_tensors_of_continuous_batching_are_of_no_consequence():
    plain, _ = call_of_attention(module_that(), None)
    handed, _ = call_of_attention(
        module_that(), None, logits_indices=torch.arange(3), logits_processor_args=torch.ones(2, 3)
    )
    assert torch.equal(plain, handed)
    with pytest.raises(heed.KindError, match=r"^block_indices: a tensor that heed's attention does not know"):
        call_of_attention(module_that(), None, block_indices=torch.arange(3))


class PagedCache:
    """What continuous batching hands over: it keeps what it is given, and answers all it has."""

    def __init__(self, key, value):
        self.states = key, value

    def update(self, key_states, value_states, layer_idx, kwargs):
        assert layer_idx == 3 and "read_index" in kwargs
        return tuple(torch.cat([old, new], 2) for old, new in zip(self.states, (key_states, value_states), strict=True))


def test_a_cache_of_continuous_batching_is_read():
    q, k, v = torch.randn(3, 1, 4, 7, 8, generator=torch.Generator().manual_seed(4))
    mask = heed.transformers.make_mask(1, 7, 7)
    whole, _ = heed.transformers.attend(module_that(), q, k, v, mask)
    last, _ = heed.transformers.attend(
        module_that(layer_idx=3), q[:, :, 5:], k[:, :, 5:], v[:, :, 5:], mask.seen()[:, :, 5:], read_index=[],
        cache=PagedCache(k[:, :, :5], v[:, :, :5]),
    )  # fmt: skip
    torch.testing.assert_close(last, whole[:, 5:])
    with pytest.raises(heed.KindError, match="^block_table: a tensor that heed's attention does not know"):
        heed.transformers.attend(
            module_that(layer_idx=3), q, k, v, None, read_index=[], block_table=torch.zeros(1, 2), cache=PagedCache(k, v)
        )


def test_only_the_keys_that_an_index_chooses_are_seen():
    indices = torch.tensor([[[0, 0], [0, 1], [1, 2], [0, 3], [2, 4]]] * 2)
    chosen = torch.zeros(2, 5, 5, dtype=torch.bool).scatter_(-1, indices, True)[:, None]
    mask = heed.transformers.make_mask(2, 5, 5, attention_mask=torch.tensor([[1, 1, 1, 1, 0], [1] * 5]).bool())
    lowest = torch.finfo(torch.float32).min
    both = torch.zeros(2, 1, 5, 5).masked_fill(~(chosen & mask.seen()), lowest)
    for given in (mask, mask.seen(), mask + 0):
        ours, _ = call_of_attention(module_that(), given, indices=indices)
        _, theirs = call_of_attention(module_that(), both)
        torch.testing.assert_close(ours[:, 1:], theirs[:, 1:])


def test_a_model_that_computes_its_attention_itself_does_so_as_with_eager_and_says_so(caplog):
    config = transformers.GPTJConfig(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, rotary_dim=4, n_positions=64)
    with caplog.at_level("WARNING", logger="heed.transformers"):
        _transformers_own._told.clear()
        models = trio(transformers.AutoModelForCausalLM, config, "f32")
        ours = transformers.AutoModelForCausalLM.from_config(copy.deepcopy(config), attn_implementation="heed").eval()
    assert "GPTJ" in caplog.text and "computes some attention itself" in caplog.text
    ours.load_state_dict(models.eager.state_dict())
    ids, mask = tokens(9, 4)
    with torch.no_grad():
        assert torch.equal(ours(ids, attention_mask=mask).logits, models.eager(ids, attention_mask=mask).logits)


def test_padding_is_looked_at_once_for_all_layers(monkeypatch):
    looks = []
    look = _transformers_masks._lengths
    monkeypatch.setattr(_transformers_masks, "_lengths", lambda padding: looks.append(padding) or look(padding))
    padding = torch.tensor([[True, True, False], [True, True, True]])
    mask = heed.transformers.make_mask(2, 3, 3, attention_mask=padding)
    q = torch.randn(2, 4, 3, 8)
    for _ in range(3):
        heed.transformers.attend(torch.nn.Module(), q, q, q, mask)
    assert len(looks) == 1


def test_everybody_else_sees_the_mask_of_eager_attention():
    padding = torch.tensor([[False, True, True, True, True, False, False], [True, True, True, True, True, False, False]])
    pattern = heed.transformers.Pattern(causal=True, window=(2, 0))
    mask = heed.transformers.SeenKeys((2, 4, 7), pattern, filled=5, padding=padding, dtype=torch.bfloat16)
    dense = mask.dense()
    assert type(dense) is torch.Tensor and dense.shape == mask.shape == (2, 1, 4, 7) and mask.dtype == dense.dtype == torch.bfloat16
    assert mask.seen()[0, 0].tolist() == [
        [False, True, False, False, False, False, False],
        [False, True, True, False, False, False, False],
        [False, True, True, True, False, False, False],
        [False, False, True, True, True, False, False],
    ]
    assert torch.equal(dense, torch.zeros(2, 1, 4, 7).bfloat16().masked_fill(~mask.seen(), torch.finfo(torch.bfloat16).min))
    for look in (
        lambda m: m[:, :, 1:, :3],
        lambda m: m < 0,
        lambda m: torch.randn(2, 1, 4, 7, generator=torch.Generator().manual_seed(1)) + m,
        lambda m: torch.cat([m, m], -1),
        lambda m: m.expand(2, 3, 4, 7),
        lambda m: m.clone(),
    ):
        assert type(look(mask)) is torch.Tensor and torch.equal(look(mask), look(dense))


def test_dropout_follows_the_generator_of_torch():
    config = DECODERS["llama"]()
    config.attention_dropout = 0.5
    model = randomised(transformers.AutoModelForCausalLM.from_config(config, attn_implementation="heed")).train()
    ids, _ = tokens(9)
    answers = []
    with torch.no_grad():
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            answers.append(model(ids).logits)
    assert torch.equal(answers[0], answers[1]) and not torch.equal(answers[0], answers[2])


def test_a_mask_for_another_number_of_keys_is_refused():
    mask = heed.transformers.SeenKeys((1, 2, 5), heed.transformers.Pattern(causal=True), filled=4, padding=None)
    q = torch.zeros(1, 2, 2, 8)
    with pytest.raises(ValueError, match="attention_mask: its 5 keys are not the 2 keys of key"):
        heed.transformers.attend(torch.nn.Module(), q, q, q, mask)


def test_a_tensor_that_attention_does_not_know_is_refused():
    module, q = torch.nn.Module(), torch.randn(1, 2, 3, 8)
    with pytest.raises(heed.KindError, match="^sinks: a tensor that heed's attention does not know"):
        heed.transformers.attend(module, q, q, q, None, sinks=torch.zeros(2))
    out, _ = heed.transformers.attend(module, q, q, q, None, position_ids=torch.arange(3), sliding_window=4)
    assert out.shape == (1, 3, 2, 8)


COMPILED = {
    "llama": DECODERS["llama"],
    "qwen3": lambda: transformers.Qwen3Config(**SMALL),
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=48, n_layer=2, n_head=6, n_positions=64, pad_token_id=0, bos_token_id=1, eos_token_id=None
    ),
}


@pytest.mark.parametrize("family", COMPILED)
def test_generation_over_a_static_cache_compiles_as_often_as_with_sdpa(family):
    model = randomised(transformers.AutoModelForCausalLM.from_config(COMPILED[family]()))
    prompt, mask = tokens(3, 5)
    graphs, said = {}, {}
    for implementation in ("sdpa", "heed"):
        model.set_attn_implementation(implementation)
        torch.compiler.reset()
        model.__dict__.pop("_compiled_call", None)
        found = []
        compiling = transformers.CompileConfig(
            fullgraph=True, dynamic=False, mode=None, backend=lambda graph, _, found=found: found.append(graph) or graph
        )
        compiling._compile_all_devices = True  # the CPU is none that generate() compiles for by itself
        asked = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False}
        said[implementation] = model.generate(prompt, cache_implementation="static", compile_config=compiling, **asked)
        assert torch.equal(said[implementation], model.generate(prompt, **asked))
        graphs[implementation] = len(found)
    assert 0 < graphs["heed"] <= graphs["sdpa"] and torch.equal(said["heed"], said["sdpa"])
