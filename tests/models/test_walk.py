# SPDX-License-Identifier: Apache-2.0
"""A sample of the walk over transformers' model classes: those whose masks are told in unusual ways, and every fortieth of the others.

The whole walk is `python tests/models/walk.py`.
"""

import collections

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import walk  # noqa: E402

UNUSUAL = (
    "AlignTextModel", "ClapTextModel", "SplinterModel",  # encoders that do not say whether they are causal
    "NllbMoeModel", "BigBirdPegasusModel", "PegasusXModel",  # decoders that say they are not
    "InformerModel", "AutoformerModel",  # that refuse a mask which shows every key
    "BertLMHeadModel",  # that generates without being causal
    "BloomModel", "MptModel", "XGLMModel", "RemBertModel", "MPNetModel", "RoFormerModel", "MegatronBertModel", "LukeModel",
    "GPTNeoXJapaneseModel", "BlipTextModel", "GroupViTTextModel",  # that add the mask to scores of their own
    "GPTJModel", "GPTNeoModel", "FalconModel", "GitModel",  # that look their attention up in a table
    "DeepseekV32Model", "GptOssForCausalLM", "Gemma3ForCausalLM", "LlavaForConditionalGeneration", "Qwen2VLModel",
)  # fmt: skip


def test_a_sample_of_all_model_classes_answers_as_with_eager_attention():
    names = walk.names_to_walk([])
    assert len(names) > 500
    chosen = [name for name in UNUSUAL if name in names] + [name for name in names[::40] if name not in UNUSUAL]
    outcomes = list(walk.walk(chosen))
    kinds = collections.Counter(outcome.kind for outcome in outcomes)
    wrong = [f"python tests/models/walk.py --only {o.name}: {o.ways}" for o in outcomes if o.kind == "WRONG"]
    assert not wrong, "\n".join(wrong)
    assert kinds["equal"] + kinds["equal, heed not asked"] > len(chosen) // 2, kinds
