# SPDX-License-Identifier: Apache-2.0
"""What the commands of the heed tool compute, against NumPy. HEED_TOOL names the tool."""

import json
import re
import shlex
import signal
import subprocess
import time

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import numpy_layer as judge
from tool import TOOL, assert_near, contents, environment, heed, json_of, write_sample

pytestmark = pytest.mark.skipif(not TOOL, reason="HEED_TOOL does not name the tool")

SMALL = ["--batch", 1, "--length", 5, "--model-dim", 8, "--heads", 2]
LOADED = ["--weights", "w.safetensors", "--heads", 4, "--input", "x.npy", "--out", "y.npy"]
DOCUMENTS = np.array([[1, 1, 1, 4, 4, 2, 2], [3, 3, 9, 9, 9, 9, 9]])
TOKENS = np.array([[5, 3, 9, 1, 4, 0, 0], [0, 7, 2, 0, 8, 6, 0]])

MASKS = {
    "none": ([], None),
    "causal": (["--causal"], judge.causal(7, 7)),
    "window": (["--window", "2,1"], judge.window(7, 7, 2, 1)),
    "causal_window": (["--causal", "--window", "3,3"], judge.causal(7, 7) & judge.window(7, 7, 3, 3)),
    "padding": (["--tokens", "t.npy"], (TOKENS != 0)[:, None, None, :]),
    "causal_padding": (
        ["--causal", "--tokens", "t.npy", "--pad-id", 9],
        (TOKENS != 9)[:, None, None, :] & judge.causal(7, 7),
    ),
    "documents": (["--document", "d.npy"], (DOCUMENTS[:, :, None] == DOCUMENTS[:, None, :])[:, None]),
    "causal_document_for_all": (
        ["--causal", "--document", "one.npy"],
        (DOCUMENTS[0][:, None] == DOCUMENTS[0]) & judge.causal(7, 7),
    ),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kv_heads", [4, 2, 1], ids=["mha", "gqa", "mqa"])
def test_run_computes_what_numpy_computes(tmp_path, kv_heads, mask):
    weights, x = write_sample(tmp_path, kv_heads)
    for name, array in [("t", TOKENS), ("d", DOCUMENTS), ("one", DOCUMENTS[0])]:
        np.save(tmp_path / f"{name}.npy", array)
    flags, visible = MASKS[mask]
    answer = json_of(tmp_path, "run", *LOADED, *flags, "--save-weights", "a.npy")
    y, attention = judge.layer(weights, x, 4, kv_heads, visible=visible)
    assert_near(np.load(tmp_path / "y.npy"), y, 2e-6)
    assert_near(np.load(tmp_path / "a.npy"), attention, 1e-6)
    assert answer["shape"] == [2, 7, 16] and answer["kv_heads"] == kv_heads
    assert answer["files"] == ["y.npy", "a.npy"]


def test_run_reports_mean_deviation_and_digest_of_the_output(tmp_path):
    write_sample(tmp_path)
    answer = json_of(tmp_path, "run", *LOADED)
    y = np.load(tmp_path / "y.npy")
    assert answer["mean"] == pytest.approx(y.astype(np.float64).mean(), rel=1e-9)
    assert answer["std"] == pytest.approx(y.astype(np.float64).std(), rel=1e-9)
    assert answer["digest"] == judge.fnv1a64(y.tobytes())
    assert answer["kernel"] in json_of(tmp_path, "doctor")["kernels"]


def test_run_applies_biases(tmp_path):
    weights, x = write_sample(tmp_path, biases=True)
    json_of(tmp_path, "run", *LOADED)
    assert_near(np.load(tmp_path / "y.npy"), judge.layer(weights, x, 4, 2)[0], 4e-6)


def test_run_attends_to_a_context_from_a_file(tmp_path):
    weights, x = write_sample(tmp_path)
    context = np.random.default_rng(3).normal(size=(2, 9, 16)).astype(np.float32)
    np.save(tmp_path / "c.npy", context)
    answer = json_of(tmp_path, "run", *LOADED, "--context", "c.npy", "--causal", "--align", "ends")
    visible = judge.causal(7, 9, offset=2)
    assert_near(
        np.load(tmp_path / "y.npy"), judge.layer(weights, x, 4, 2, context=context, visible=visible)[0], 2e-6
    )
    assert answer["keys"] == 9


@pytest.mark.parametrize("base", [10000, 500])
def test_run_turns_queries_and_keys_by_position(tmp_path, base):
    weights, x = write_sample(tmp_path)
    json_of(tmp_path, "run", *LOADED, "--rotary", *([] if base == 10000 else [base]))
    assert_near(np.load(tmp_path / "y.npy"), judge.layer(weights, x, 4, 2, base=base)[0], 2e-6)


def test_run_gives_zeros_where_every_key_is_padding(tmp_path):
    write_sample(tmp_path)
    np.save(tmp_path / "t.npy", np.array([[1] * 7, [0] * 7]))
    json_of(tmp_path, "run", *LOADED, "--tokens", "t.npy")
    y = np.load(tmp_path / "y.npy")
    assert np.count_nonzero(y[1]) == 0 and np.count_nonzero(y[0]) == y[0].size


def test_run_takes_a_sequence_without_a_batch(tmp_path):
    weights, x = write_sample(tmp_path)
    np.save(tmp_path / "x.npy", x[1])
    np.save(tmp_path / "t.npy", TOKENS[1])
    assert json_of(tmp_path, "run", *LOADED, "--tokens", "t.npy")["shape"] == [1, 7, 16]
    expected = judge.layer(weights, x[1:], 4, 2, visible=(TOKENS[1] != 0))[0]
    assert_near(np.load(tmp_path / "y.npy"), expected, 2e-6)


@pytest.mark.parametrize(
    "dtype,rounded,tolerance", [("f16", np.float16, 4e-3), ("bf16", ml_dtypes.bfloat16, 4e-2)]
)
def test_run_rounds_input_and_output_to_the_dtype(tmp_path, dtype, rounded, tolerance):
    weights, x = write_sample(tmp_path)
    answer = json_of(tmp_path, "run", *LOADED, "--dtype", dtype)
    y = np.load(tmp_path / "y.npy")
    assert y.dtype == (np.float16 if dtype == "f16" else np.float32)
    assert np.array_equal(y.astype(rounded).astype(np.float32), y.astype(np.float32))
    assert_near(y, judge.layer(weights, x.astype(rounded), 4, 2)[0], tolerance)
    assert answer["digest"] == judge.fnv1a64(y.astype(rounded).tobytes())


def test_run_draws_its_random_input_from_the_documented_generator(tmp_path):
    identity = {f"W_{name}.weight": np.eye(8, dtype=np.float32) for name in "qkvo"}
    save_file(identity, tmp_path / "w.safetensors")  # with one key, identity matrices return the input
    json_of(
        tmp_path,
        "run",
        "--weights",
        "w.safetensors",
        "--heads",
        2,
        "--batch",
        3,
        "--length",
        1,
        "--seed",
        11,
        "--out",
        "y.npy",
    )
    expected = judge.splitmix_uniform(11, 1, 24).reshape(3, 1, 8)
    assert np.array_equal(np.load(tmp_path / "y.npy"), expected)


def test_run_reads_back_the_layer_it_saved_and_gets_the_same_bits(tmp_path):
    first = json_of(tmp_path, "run", *SMALL, "--kv-heads", 1, "--seed", 4, "--save-layer", "w.safetensors")
    again = json_of(tmp_path, "run", *SMALL, "--seed", 4, "--weights", "w.safetensors")
    assert first["digest"] == again["digest"]
    assert json_of(tmp_path, "run", *SMALL, "--kv-heads", 1, "--seed", 5)["digest"] != first["digest"]


def test_no_bit_depends_on_the_threads(tmp_path):
    shape = ["--batch", 2, "--length", 70, "--model-dim", 32, "--heads", 4, "--causal"]
    assert len({json_of(tmp_path, "run", *shape, "--threads", n)["digest"] for n in [1, 2, 5]}) == 1


def test_every_kernel_gives_the_same_bits_in_float32_but_the_reference(tmp_path):
    rows = json_of(tmp_path, "check", *SMALL)["kernels"]
    kernels = [row["kernel"] for row in rows if row["kernel"].startswith("cpu.") and "refused" not in row]
    assert len(kernels) >= 2
    digests = {name: json_of(tmp_path, "run", *SMALL, "--kernel", name)["digest"] for name in kernels}
    assert len(set(digests.values())) == 1, digests


@pytest.mark.parametrize("command", ["run", "check", "explain"])
def test_every_type_that_help_lists_is_taken(tmp_path, command):
    for dtype in re.search(r"--dtype (\S+)", heed(tmp_path, command, "--help").stdout)[1].split("|"):
        json_of(tmp_path, command, *SMALL, "--dtype", dtype)


@pytest.mark.parametrize("flags", [[], ["--causal"], ["--dtype", "bf16"], ["--dtype", "f64"]])
def test_check_backward_finds_every_kernel_for_gradients_right(tmp_path, flags):
    answer = json_of(tmp_path, "check", *SMALL, "--kv-heads", 1, "--backward", *flags)
    assert answer["failed"] is False and "--backward" in answer["problem"]
    *ran, reference = [row for row in answer["kernels"] if "refused" not in row]
    assert reference["kernel"] == "reference" and ran
    assert all(row["kernel"].startswith("cpu.f64." if "f64" in flags else "cpu.backward.") for row in ran)
    assert all(row["beyond_bound"] == 0 and row["compared"] > 0 for row in ran)
    ended = heed(tmp_path, "check", *SMALL, "--backward", "--at-most", "0")
    assert ended.returncode == 1 and "--backward --kernel cpu.backward." in ended.stderr


def test_run_finds_weights_after_a_prefix_under_the_llama_names(tmp_path):
    weights, x = write_sample(tmp_path)
    renamed = {f"model.layers.3.self_attn.{name[2]}_proj.weight": matrix for name, matrix in weights.items()}
    save_file({**renamed, "lm_head.weight": np.zeros((2, 2), np.float32)}, tmp_path / "w.safetensors")
    json_of(tmp_path, "run", *LOADED, "--prefix", "model.layers.3.self_attn.")
    assert_near(np.load(tmp_path / "y.npy"), judge.layer(weights, x, 4, 2)[0], 2e-6)


def test_an_empty_batch_is_an_empty_answer(tmp_path):
    assert json_of(
        tmp_path, "run", "--batch", 0, "--length", 3, "--model-dim", 8, "--heads", 2, "--out", "y.npy"
    )["shape"] == [0, 3, 8]
    assert np.load(tmp_path / "y.npy").shape == (0, 3, 8)


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--causal"],
        ["--window", "2,2"],
        ["--dtype", "f16"],
        ["--dtype", "bf16"],
        ["--context-length", 9, "--causal", "--align", "starts"],
    ],
    ids=lambda f: "_".join(map(str, f)) or "plain",
)
def test_check_finds_every_kernel_right(tmp_path, flags):
    answer = json_of(tmp_path, "check", *SMALL, "--kv-heads", 1, *flags)
    assert not answer["failed"]
    assert [row["kernel"] for row in answer["kernels"]] == json_of(tmp_path, "doctor")["kernels"]
    for row in answer["kernels"]:
        if "refused" not in row:
            assert row["compared"] == 5 * 8 + 2 * 5  # out and log-sum-exp
            assert row["beyond_bound"] == 0 and row["worst_error_in_bounds"] <= 1


def test_check_prints_a_table_with_a_line_for_each_kernel(tmp_path):
    shape = ["--batch", 1, "--length", 140, "--model-dim", 8, "--heads", 2]
    title, *lines = heed(tmp_path, "check", *shape).stdout.splitlines()
    assert title.split() == "kernel compared beyond bound worst error of bound verdict".split()
    rows = json_of(tmp_path, "check", *shape)["kernels"]
    assert len(lines) == len(rows)
    for line, row in zip(lines, rows):
        if "refused" in row:
            assert re.fullmatch(rf"{row['kernel']} +refused: {re.escape(row['refused'])}", line)
        else:  # 140 * 8 of out and 2 * 140 of log-sum-exp
            assert re.fullmatch(rf"{row['kernel']} +1,400 +0 +[0-9.e-]+ +[0-9.e-]+  right", line)


def test_check_that_fails_exits_with_1_and_a_line_that_reproduces_it(tmp_path):
    ended = heed(tmp_path, "check", *SMALL, "--causal", "--seed", 3, "--at-most", "0")
    assert ended.returncode == 1
    lines = [line for line in ended.stderr.splitlines() if line.startswith("heed: reproduce: heed check ")]
    rows = json_of(tmp_path, "check", *SMALL, "--causal", "--seed", 3)["kernels"]
    assert len(lines) == len([row for row in rows if "refused" not in row])
    for line in lines:
        again = heed(tmp_path, *shlex.split(line)[3:])
        assert again.returncode == 1 and line in again.stderr


def test_check_that_fails_says_so_in_json(tmp_path):
    ended = heed(tmp_path, "check", *SMALL, "--at-most", "0", "--json")
    assert ended.returncode == 1 and json.loads(ended.stdout)["failed"] is True


def test_explain_names_one_taken_kernel_and_gives_every_other_a_word(tmp_path):
    rows = json_of(tmp_path, "explain", *SMALL)["kernels"]
    assert [row["verdict"] for row in rows].count("taken") == 1
    assert all(bool(row["reason"]) == (row["verdict"] == "refused") for row in rows)
    assert rows[-1]["kernel"] == "reference"
    plain = heed(tmp_path, "explain", *SMALL).stdout.splitlines()
    assert plain == [": ".join(filter(None, row.values())) for row in rows]


def test_explain_obeys_a_forced_kernel(tmp_path):
    rows = json_of(tmp_path, "explain", *SMALL, "--kernel", "reference")["kernels"]
    assert [row["kernel"] for row in rows if row["verdict"] == "taken"] == ["reference"]


def test_explain_says_why_a_forced_kernel_is_not_taken(tmp_path):
    forced = next(name for name in json_of(tmp_path, "doctor")["kernels"] if ".decode." in name)
    rows = json_of(tmp_path, "explain", "--length", 300, "--kernel", forced)["kernels"]
    assert [row["verdict"] for row in rows].count("taken") == 0
    assert [row["reason"] for row in rows if row["kernel"] == forced] != [""]


def test_explain_needs_no_memory_for_what_it_does_not_compute(tmp_path):
    assert heed(tmp_path, "explain", "--batch", 1, "--length", 200000).returncode == 0


def test_doctor_reports_version_threads_and_environment(tmp_path):
    ended = heed(tmp_path, "doctor", "--json", HEED_NUM_THREADS="1")
    found = json.loads(ended.stdout)
    assert heed(tmp_path, "--version").stdout == f"heed {found['version']}\n"
    assert found["threads"] == 1 and found["environment"]["HEED_NUM_THREADS"] == "1"
    assert found["logical_cpus"] >= 1 and found["kernels"][-1] == "reference"
    assert set(found) >= {"compiler", "architecture", "cpu", "warnings"}


@pytest.mark.parametrize(
    "variable, value, sentence",
    [
        ("HEED_TARGET", "avx9", "HEED_TARGET: 'avx9' is no target of this build, which has "),
        ("HEED_NUM_THREADS", "many", "HEED_NUM_THREADS: 'many' is no whole number in [1, 4096], and is ignored"),
        ("HEED_NUM_THREADS", "3x", "HEED_NUM_THREADS: '3x' is no whole number in [1, 4096], and is ignored"),
        ("HEED_NUM_THREADS", "0", "HEED_NUM_THREADS: '0' is no whole number in [1, 4096], and is ignored"),
    ],
)
def test_a_variable_that_says_nothing_is_warned_of_once_and_ignored(tmp_path, variable, value, sentence):
    usual = json_of(tmp_path, "doctor")
    ended = heed(tmp_path, "doctor", "--json", **{variable: value})
    found = json.loads(ended.stdout)
    assert ended.returncode == 0 and ended.stderr.count("heed: warning: " + sentence) == 1 and ended.stderr.count("\n") == 1
    assert [warning for warning in found["warnings"] if warning.startswith(sentence)]
    assert found["kernels"] == usual["kernels"] and found["threads"] == usual["threads"]
    for command in (["doctor"], ["run", "--model-dim", 16, "--heads", 4, "--batch", 1, "--length", 5]):
        assert heed(tmp_path, *command, **{variable: value}).stderr.count("heed: warning: " + sentence) == 1


def test_a_variable_that_is_empty_is_not_set(tmp_path):
    ended = heed(tmp_path, "doctor", HEED_TARGET="", HEED_NUM_THREADS="")
    assert (ended.returncode, ended.stderr) == (0, "")


def test_help_names_the_variables_of_the_environment(tmp_path):
    text = heed(tmp_path, "--help").stdout
    assert "HEED_NUM_THREADS" in text and "HEED_TARGET" in text


def test_check_and_demo_have_the_same_words_for_errors(tmp_path):
    check = heed(tmp_path, "check", "--model-dim", 16, "--heads", 4, "--batch", 1, "--length", 5).stdout
    demo = heed(tmp_path, "demo").stdout
    for heading in (check.splitlines()[0], demo):
        assert "worst error  of bound" in heading


def test_a_refusal_is_an_object_with_json(tmp_path):
    for words in ("foo --json", "run --model-dim x --json", "convert none.safetensors out --heads 2 --kv-heads 1 --json"):
        ended = heed(tmp_path, *words.split())
        assert ended.returncode == 2
        (line,) = ended.stderr.splitlines()
        assert line == "heed: " + json.loads(ended.stdout)["error"]
    failed = heed(tmp_path, "check", "--model-dim", 16, "--heads", 4, "--batch", 1, "--length", 9, "--at-most", 0, "--json")
    assert failed.returncode == 1 and "kernels" in json.loads(failed.stdout)  # still the one object


def test_convert_writes_over_its_input_only_where_it_is_told_to(tmp_path):
    write_sample(tmp_path, kv_heads=4)
    (tmp_path / "link").symlink_to("w.safetensors")
    before = contents(tmp_path)
    for name in ("w.safetensors", "./w.safetensors", "link"):
        ended = heed(tmp_path, "convert", "w.safetensors", name, "--heads", 4, "--kv-heads", 2)
        assert (ended.returncode, ended.stderr) == (2, f"heed: OUT: '{name}' is IN; --in-place replaces it\n")
    assert contents(tmp_path) == before
    assert heed(tmp_path, "convert", "w.safetensors", "w.safetensors", "--heads", 4, "--kv-heads", 2, "--in-place").returncode == 0
    assert load_file(tmp_path / "w.safetensors")["W_k.weight"].shape == (8, 16)


def test_demo_compares_mha_gqa_and_mqa(tmp_path):
    found = json_of(tmp_path, "demo")
    kernels = json_of(tmp_path, "doctor")["kernels"]
    assert [found[name] for name in ["batch", "length", "model_dim", "heads"]] == [2, 1024, 768, 12]
    assert [row["name"] for row in found["layers"]] == ["MHA", "GQA", "MQA"]
    for row, kv_heads in zip(found["layers"], [12, 6, 1]):
        assert row["kv_heads"] == kv_heads
        assert row["parameters"] == 2 * 768 * 768 + 2 * 768 * 64 * kv_heads
        assert row["cache_bytes_per_token"] == 2 * kv_heads * 64 * 4
        assert row["beyond_bound"] == 0 and 0 < row["worst_error"] < 1e-5
        assert row["prefill_seconds"] > 0 and row["decode_seconds_per_token"] > 0
        assert row["decodes_as_it_prefills"] is True
        assert {row["prefill_kernel"], row["decode_kernel"]} <= set(kernels)
        assert row["prefill_tokens_per_second"] == pytest.approx(2048 / row["prefill_seconds"])


def pooled(matrix, heads, groups):
    return (
        matrix.reshape(groups, heads // groups, -1, *matrix.shape[1:])
        .mean(axis=1, dtype=np.float64)
        .reshape(-1, *matrix.shape[1:])
    )


@pytest.mark.parametrize("kv_heads", [2, 1])
def test_convert_averages_the_heads_of_each_group(tmp_path, kv_heads):
    weights, _ = write_sample(tmp_path, kv_heads=4, biases=True)
    found = json_of(
        tmp_path, "convert", "w.safetensors", "g.safetensors", "--heads", 4, "--kv-heads", kv_heads
    )
    after = load_file(tmp_path / "g.safetensors")
    assert set(after) == set(weights)
    for name in "kv":
        for part in ["weight", "bias"]:
            assert_near(after[f"W_{name}.{part}"], pooled(weights[f"W_{name}.{part}"], 4, kv_heads), 1e-7)
    for name in ["W_q.weight", "W_o.weight", "W_q.bias", "W_o.bias"]:
        assert np.array_equal(after[name], weights[name])
    assert found["parameters_before"] == sum(a.size for a in weights.values())
    assert found["parameters_after"] == sum(a.size for a in after.values())


@pytest.mark.parametrize(
    "naming,names",
    [
        ("torch", {"in_proj_weight", "out_proj.weight"}),
        ("llama", {"q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight"}),
    ],
)
def test_convert_renames_and_back_without_changing_a_bit(tmp_path, naming, names):
    weights, _ = write_sample(tmp_path, kv_heads=4)
    for source, target, scheme in [("w", "there", naming), ("there", "back", "paper")]:
        json_of(
            tmp_path,
            "convert",
            f"{source}.safetensors",
            f"{target}.safetensors",
            "--heads",
            4,
            "--kv-heads",
            4,
            "--naming",
            scheme,
        )
    assert set(load_file(tmp_path / "there.safetensors")) == names
    back = load_file(tmp_path / "back.safetensors")
    assert set(back) == set(weights)
    assert [name for name in weights if not np.array_equal(back[name], weights[name])] == []


def test_convert_turns_a_tiled_checkpoint_into_an_interleaved_one(tmp_path):
    weights, x = write_sample(tmp_path, kv_heads=2)
    json_of(
        tmp_path,
        "convert",
        "w.safetensors",
        "i.safetensors",
        "--heads",
        4,
        "--kv-heads-from",
        2,
        "--kv-heads",
        2,
        "--from-tiled",
    )
    json_of(tmp_path, "run", "--weights", "i.safetensors", "--heads", 4, "--input", "x.npy", "--out", "y.npy")
    tiled = {
        name: np.tile(weights[name], (2, 1)) if name in ("W_k.weight", "W_v.weight") else weights[name]
        for name in weights
    }
    assert_near(np.load(tmp_path / "y.npy"), judge.layer(tiled, x, 4, 4)[0], 2e-6)


def test_convert_takes_every_layer_that_the_pattern_matches_and_copies_the_rest(tmp_path):
    weights, _ = write_sample(tmp_path, kv_heads=4)
    model = {f"h.{i}.attn.{name}": matrix + i for i in range(3) for name, matrix in weights.items()}
    model |= {"decoder.0.attn." + name: matrix for name, matrix in weights.items()}
    model["embedding"] = np.arange(6, dtype=np.float32).reshape(2, 3)
    save_file(model, tmp_path / "m.safetensors", metadata={"format": "pt"})
    found = json_of(
        tmp_path,
        "convert",
        "m.safetensors",
        "m.safetensors",
        "--heads",
        4,
        "--kv-heads",
        1,
        "--prefix",
        "h.*.attn.",
        "--in-place",
    )
    assert found["prefixes"] == ["h.0.attn.", "h.1.attn.", "h.2.attn."]
    after = load_file(tmp_path / "m.safetensors")
    assert set(after) == set(model)
    for i in range(3):
        assert_near(after[f"h.{i}.attn.W_k.weight"], pooled(model[f"h.{i}.attn.W_k.weight"], 4, 1), 1e-6)
    untouched = [name for name in model if name == "embedding" or name.startswith("decoder")]
    assert [name for name in untouched if not np.array_equal(after[name], model[name])] == []
    with safe_open(tmp_path / "m.safetensors", "numpy") as file:
        assert file.metadata() == {"format": "pt"}


@pytest.mark.parametrize("command", ["run", "check", "convert", "explain", "doctor", "demo"])
def test_the_examples_of_help_run_as_written(tmp_path, command):
    shown = heed(tmp_path, command, "--help")
    assert shown.returncode == 0 and shown.stderr == ""
    examples = [
        line.strip() for line in shown.stdout.split("Examples:")[1].splitlines() if line.startswith("  heed ")
    ]
    assert len(examples) >= 2
    for example in examples:
        ended = heed(tmp_path, *shlex.split(example)[1:])
        said = [line for line in ended.stderr.splitlines() if not line.startswith("heed: warning: built ")]
        assert (ended.returncode, said) == (0, []), example
        if "--json" in example:
            json.loads(ended.stdout)
    assert [name for name in contents(tmp_path) if ".part" in name] == []


def test_a_run_that_is_interrupted_while_it_writes_leaves_nothing(tmp_path):
    # The weights are 200 MB: whoever sees the first file beside its place has time to interrupt.
    command = [TOOL, "run", "--length", "1600", "--model-dim", "60", "--heads", "20", "--out", "y.npy", "--save-weights", "w.npy"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL) as process:
        while process.poll() is None and not list(tmp_path.iterdir()):
            time.sleep(0.001)
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
    assert process.returncode == -signal.SIGTERM, "it ended before it could be interrupted"
    assert [path.name for path in tmp_path.iterdir()] == []


def test_a_picture_shows_what_documents_hide(tmp_path):
    np.save(tmp_path / "d.npy", np.array([0, 0, 1, 1, 1], np.int32))
    flags = ["run", *SMALL, "--seed", 3]
    json_of(tmp_path, *flags, "--picture", "all.svg")
    json_of(tmp_path, *flags, "--document", "d.npy", "--picture", "apart.svg", "--save-weights", "w.npy")
    weights = np.load(tmp_path / "w.npy")
    assert (weights[..., :2, 2:] == 0).all() and (weights[..., 2:, :2] == 0).all()
    assert (tmp_path / "all.svg").read_text() != (tmp_path / "apart.svg").read_text()
