# SPDX-License-Identifier: Apache-2.0
"""Every object that `heed COMMAND --json` prints is what docs/tool.schema.json says, field for field."""

import json
import pathlib
import signal
import subprocess
import time

import pytest
from tool import TOOL, contents, environment, heed, json_of, on_a_terminal

SCHEMA = json.loads((pathlib.Path(__file__).parents[2] / "docs/tool.schema.json").read_text())
TYPES = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list, "object": dict, "null": type(None)}


def faults(value, schema, place="$"):
    """What of a value is not as the schema says: the part of JSON Schema that the file uses."""
    if "anyOf" in schema:
        each = [faults(value, one, place) for one in schema["anyOf"]]
        return [] if [] in each else min(each, key=len)
    if "enum" in schema:
        return [] if value in schema["enum"] else [f"{place}: {value!r} is none of {schema['enum']}"]
    kind = schema["type"]
    if not isinstance(value, TYPES[kind]) or (kind in ("integer", "number") and isinstance(value, bool)):
        return [f"{place}: {type(value).__name__} is no {kind}"]
    found = []
    if kind == "array":
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            found.append(f"{place}: {len(value)} items")
        for n, item in enumerate(value):
            found += faults(item, schema["items"], f"{place}[{n}]")
    if kind == "object" and "properties" in schema:
        found += [f"{place}.{name}: is missing" for name in schema["required"] if name not in value]
        for name, item in value.items():
            known = schema["properties"].get(name)
            found += [f"{place}.{name}: is not in the schema"] if known is None else faults(item, known, f"{place}.{name}")
    return found


DECODE = "^decode/f32/1x32x8x1x4096x128$"
SHORT = ("bench", "--suite", "decode", "--filter", DECODE, "--seconds", "0.001")
CALLS = {
    "demo": ("demo",),
    "run": ("run", "--model-dim", 16, "--heads", 2, "--batch", 1, "--length", 4, "--save-layer", "w.safetensors", "--out", "y.npy"),
    "check": ("check", "--batch", 1, "--length", 9, "--heads", 2, "--model-dim", 16),
    "check of gradients": ("check", "--backward", "--batch", 1, "--length", 9, "--heads", 2, "--model-dim", 16, "--dtype", "f64"),
    "bench": (*SHORT, "--skip-limits"),
    "bench_list": ("bench", "--suite", "all", "--list"),
    "convert": ("convert", "mha.safetensors", "gqa.safetensors", "--heads", 4, "--kv-heads", 2),
    "view": ("view", "--out", "a.html"),
    "view of a playground": ("view", "--play", "--out", "p.html"),
    "explain": ("explain", "--length", 64),
    "doctor": ("doctor",),
    "completion": ("completion", "fish"),
    "manual": ("manual",),
}


@pytest.mark.parametrize("call", CALLS)
def test_what_json_prints_is_what_the_schema_says(tmp_path, call):
    if call == "convert":
        json_of(tmp_path, "run", "--model-dim", 16, "--heads", 4, "--batch", 1, "--length", 2, "--save-layer", "mha.safetensors")
    assert faults(json_of(tmp_path, *CALLS[call]), SCHEMA["$defs"][call.split()[0]]) == []


def test_every_command_has_a_schema_and_a_refusal_is_one_object(tmp_path):
    commands = set(json_of(tmp_path, "manual")["page"].split(r"\fBheed ")[1:])
    named = {words.split(r"\fR")[0].split()[0] for words in commands} - {"help"}
    assert {name for name in named if name.isalpha()} <= set(SCHEMA["$defs"])
    ended = heed(tmp_path, "convert", "--json", "nowhere", "x", "--heads", 2, "--kv-heads", 1)
    assert ended.returncode == 2 and faults(json.loads(ended.stdout), SCHEMA["$defs"]["error"]) == []


def interrupted(folder, *words, when):
    """(status, stdout, stderr) of a process that gets Ctrl-C once when() is true, although a shell that works behind another ignores it."""
    with subprocess.Popen(
        [TOOL, *map(str, words)], cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:  # fmt: skip
        for _ in range(600):
            if when() or process.poll() is not None:
                break
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        shown, errors = process.communicate(timeout=60)
    return process.returncode, shown, errors


def test_ctrl_c_while_a_file_is_written_leaves_nothing_and_says_so(tmp_path):
    begun = time.monotonic()
    words = ("run", "--model-dim", 1024, "--heads", 16, "--batch", 1, "--length", 8192, "--save-weights", "a.npy")
    status, shown, errors = interrupted(tmp_path, *words, when=lambda: time.monotonic() - begun > 0.7)
    assert (status, shown) == (-signal.SIGINT, "") and errors == "heed: interrupted; nothing was written\n"
    assert contents(tmp_path) == {}


def test_ctrl_c_while_kernels_are_checked_reports_those_that_were(tmp_path):
    begun = time.monotonic()
    words = ("check", "--batch", 2, "--length", 2048, "--heads", 12, "--json")
    status, shown, errors = interrupted(tmp_path, *words, when=lambda: time.monotonic() - begun > 0.7)
    answer = json.loads(shown)
    assert (status, errors) == (130, "") and faults(answer, SCHEMA["$defs"]["check"]) == []
    assert answer["interrupted_after"] == len(answer["kernels"])


def test_what_takes_long_shows_its_progress_on_a_terminal(tmp_path):
    json_of(tmp_path, "run", "--model-dim", 16, "--heads", 4, "--batch", 1, "--length", 2, "--save-layer", "mha.safetensors")
    for words, expected in {
        ("check", "--batch", "1", "--length", "40"): "computing the reference: ",
        ("view", "--out", "a.html"): "computing MHA: ",
        ("convert", "mha.safetensors", "gqa.safetensors", "--heads", "4", "--kv-heads", "2"): "converting ",
    }.items():
        _, progress = on_a_terminal(tmp_path, *words)
        assert expected in progress and progress.endswith("\r\x1b[K"), words


