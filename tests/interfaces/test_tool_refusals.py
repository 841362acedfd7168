# SPDX-License-Identifier: Apache-2.0
"""How the heed tool behaves: what it refuses in which words, what it leaves behind, where its words go."""

import json
import os
import re
import resource
import signal
import subprocess

import numpy as np
import pytest
from safetensors.numpy import save_file

import heed as package
from tool import TOOL, contents, environment, heed, on_a_terminal, write_sample

pytestmark = pytest.mark.skipif(not TOOL, reason="HEED_TOOL does not name the tool")

SMALL = "--batch 1 --length 5 --model-dim 8 --heads 2"
KERNELS = ", ".join(package.kernel_names())
WRITES = "--out y.npy --save-weights a.npy --save-layer l.safetensors"
LOADED = "--weights w.safetensors --heads 4 --input x.npy"
CONVERT = "convert w.safetensors g.safetensors --heads 4 --kv-heads-from 2 --kv-heads"

# Each line: what is typed, and the whole of what appears on stderr after "heed: ".
REFUSALS = [
    ("frobnicate", "frobnicate: unknown command; there are demo, run, check, bench, convert, view, explain, doctor, completion, manual"),
    ("benchmark", "benchmark: unknown command; did you mean bench?"),
    ("conv a b", "conv: unknown command; did you mean convert?"),
    ("dmeo", "dmeo: unknown command; did you mean demo?"),
    ("demo --length 3", "--length: unknown flag"),
    (f"run {SMALL} --kvheads 2", "--kvheads: unknown flag; did you mean --kv-heads?"),
    (
        f"run {SMALL} --wieghts=w.safetensors",
        "--wieghts=w.safetensors: unknown flag; did you mean --weights?",
    ),
    ("doctor twice", "twice: unknown argument"),
    ("run --length -5", "--length: -5 is less than 0"),
    ("run --length many", "--length: 'many' is not a whole number"),
    ("run --length 5.5", "--length: '5.5' is not a whole number"),
    ("run --length 99999999999999999999", "--length: '99999999999999999999' is not a whole number"),
    ("run --batch -1", "--batch: -1 is less than 0"),
    ("run --model-dim 0", "--model-dim: 0 is less than 1"),
    ("run --heads 0", "--heads: 0 is less than 1"),
    ("run --heads 7", "--heads: 7 does not divide --model-dim: 768 (the default)"),
    ("run --model-dim 100", "--heads: 12 (the default) does not divide --model-dim: 100"),
    ("check --heads 8 --kv-heads 3", "--kv-heads: 3 does not divide --heads: 8"),
    (f"run {SMALL} --window 3", "--window: '3' is not two counts LEFT,RIGHT"),
    (f"run {SMALL} --window 3,x", "--window: 'x' is not a whole number"),
    (f"run {SMALL} --window -1,2", "--window: -1 is less than 0"),
    (f"run {SMALL} --dtype f64", "--dtype: 'f64' is not f32, f16 or bf16"),
    (f"run {SMALL} --align middle --causal", "--align: 'middle' is not starts or ends"),
    (f"run {SMALL} --softcap 0", "--softcap: 0 is not a finite number above 0"),
    (f"check {SMALL} --scale nan", "--scale: nan is not a finite number"),
    (f"run {SMALL} --dropout 1", "--dropout: 1 is outside [0, 1)"),
    (f"run {SMALL} --front 2", "--front: means nothing without --window"),
    (f"run {SMALL} --align ends", "--align: means nothing without --causal, --window, --document or --alibi"),
    (
        f"run {SMALL} --causal --context-length 9",
        "--causal: 5 queries and 9 keys; say --align ends or --align starts",
    ),
    (
        f"explain {SMALL} --window 2,2 --context-length 3",
        "--window: 5 queries and 3 keys; say --align ends or --align starts",
    ),
    (f"run {SMALL} --pad-id 3", "--pad-id: means nothing without --tokens"),
    (f"run {SMALL} --prefix a.", "--prefix: means nothing without --weights"),
    (f"run {SMALL} --layer 0", "--layer: means nothing without --model"),
    ("run --model folder --weights w.safetensors", "--weights: means nothing beside --model"),
    ("run --model folder --rotary", "--rotary: means nothing beside --model, which says it"),
    ("run --model folder --prefix a.", "--prefix: means nothing without --weights"),
    (f"run {SMALL} --no-causal", "--no-causal: means nothing without --model"),
    ("run --model folder --no-causal --causal", "--no-causal: means nothing beside --causal or --window"),
    ("run --model folder --layer -1", "--layer: -1 is less than 0"),
    ("run --model x.npy", "x.npy: is not a folder; a model's has config.json and safetensors files"),
    ("run --weights x.npy --heads 4", "x.npy: is an .npy file, not a safetensors file"),
    (f"run {SMALL} --input w.safetensors", "w.safetensors: is a safetensors file, not an .npy file"),
    (f"run {SMALL} --threads 0", "--threads: 0 is outside [1, 4096]"),
    (f"check {SMALL} --threads 4294967297", "--threads: 4294967297 is outside [1, 4096]"),
    (f"run {SMALL} --ranks 4294967298", "--ranks: 4294967298 is outside [1, 4096]"),
    (f"run {SMALL} --seed -1", "--seed: '-1' is not a whole number from 0 to 2^64 - 1"),
    (f"run {SMALL} --rotary fast", "--rotary: 'fast' is not a number"),
    (f"run {SMALL} --rotary 0", "config.rotary.base: 0 is not a positive finite number"),
    (f"run {SMALL} --kernel warp", f'--kernel: "warp" is not a kernel of this build; there are {KERNELS}'),
    (f"check {SMALL} --kernel warp", f'--kernel: "warp" is not a kernel of this build; there are {KERNELS}'),
    (f"check {SMALL} --color blue", "--color: 'blue' is not auto, always or never"),
    (f"run {SMALL} --out nowhere/y.npy", "--out: there is no folder 'nowhere'"),
    (f"run {SMALL} --out folder", "--out: 'folder' is not a regular file"),
    (f"run {SMALL} --out pipe", "--out: 'pipe' is not a regular file"),
    (
        f"run {SMALL} --out z.npy --save-weights ./folder/../z.npy",
        "--save-weights: './folder/../z.npy' is already what --out writes",
    ),
    (f"run {SMALL} --input none.npy", "none.npy: cannot be opened: No such file or directory"),
    (f"run {SMALL} --tokens none.npy", "none.npy: cannot be opened: No such file or directory"),
    ("run --weights none.safetensors", "none.safetensors: cannot be opened: No such file or directory"),
    ("run --weights w.safetensors", "--heads: must be said with --weights, a file of matrices does not tell"),
    ("run --weights w.safetensors --heads 3", "--heads: 3 does not divide the 16 rows of W_q"),
    (f"run {LOADED} --kv-heads 4", "--kv-heads: 4 differs from the 2 of --weights"),
    (f"run {LOADED} --model-dim 32", "--model-dim: 32 differs from the 16 of --weights"),
    (f"run {LOADED} --length 8", "--length: 8 differs from the 7 of --input"),
    (f"run {LOADED} --batch 1", "--batch: 1 differs from the 2 of --input"),
    (
        "run --weights w.safetensors --heads 4 --input wide.npy",
        "--model-dim: 16 (of --weights) differs from the 20 of --input",
    ),
    (
        "run --weights w.safetensors --heads 4 --input deep.npy",
        "--input: shape (1, 2, 7, 16) is neither (batch, length, width) nor (length, width)",
    ),
    (f"run {LOADED} --context wide.npy", "--context: width 20 differs from the 16 columns of W_k"),
    (
        f"run {LOADED} --context deep.npy --context-length 3",
        "--context: shape (1, 2, 7, 16) is neither (batch, length, width) nor (length, width)",
    ),
    (f"run {LOADED} --tokens short.npy", "--tokens: shape (2, 6) is not (batch, keys) = (2, 7)"),
    (f"run {LOADED} --document short.npy", "--document: shape (2, 6) is not (batch, keys) = (2, 7)"),
    (f"{CONVERT} 3", "--kv-heads: 3 does not divide --kv-heads-from: 2"),
    (
        "convert w.safetensors g.safetensors --heads 4 --kv-heads 1",
        "--kv-heads-from: 4 key heads would be 2 wide, the 4 query heads are 4",
    ),
    (
        "convert w.safetensors g.safetensors --heads 4 --kv-heads-from 3 --kv-heads 1",
        "--kv-heads-from: 3 does not divide --heads: 4",
    ),
    (
        f"{CONVERT} 1 --prefix model.",
        "--prefix: no attention weights after 'model.'; there are some after ''",
    ),
    (
        "convert other.safetensors g.safetensors --heads 4 --kv-heads 1",
        "--prefix: no attention weights after ''; there are none in the file",
    ),
    (
        "convert w.safetensors g.safetensors --heads 4 --kv-heads 1 --naming keras",
        "--naming: 'keras' is not paper, torch or llama",
    ),
    ("convert w.safetensors --heads 4 --kv-heads 1", "OUT is required"),
    ("convert w.safetensors g.safetensors --kv-heads 1", "--heads is required"),
]


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    folder = tmp_path_factory.mktemp("samples")
    write_sample(folder)
    np.save(folder / "wide.npy", np.zeros((2, 7, 20), np.float32))
    np.save(folder / "deep.npy", np.zeros((1, 2, 7, 16), np.float32))
    np.save(folder / "short.npy", np.ones((2, 6), np.int64))
    save_file({"embedding": np.zeros(3, np.float32)}, folder / "other.safetensors")
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")  # stands for every device: never try this on a real one, root would replace it
    (folder / "y.npy").write_bytes(b"what was here before")
    return folder


@pytest.mark.parametrize("typed,sentence", REFUSALS, ids=[typed for typed, _ in REFUSALS])
def test_bad_usage_and_input_exit_with_2_and_one_sentence_and_write_nothing(samples, typed, sentence):
    before = contents(samples)
    words = typed.split()
    if words[0] == "run" and "--out" not in words:
        words += WRITES.split()
    ended = heed(samples, *words)
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", f"heed: {sentence}\n")
    assert contents(samples) == before and (samples / "pipe").is_fifo()


def test_a_flag_without_its_value_is_refused(tmp_path):
    ended = heed(tmp_path, "run", "--length")
    assert ended.returncode == 2 and ended.stdout == "" and ended.stderr.startswith("heed: --length: ")


def test_a_flag_given_twice_is_refused(tmp_path):
    ended = heed(tmp_path, "run", "--heads", 2, "--heads", 4)
    assert ended.returncode == 2 and ended.stdout == "" and ended.stderr.startswith("heed: --heads: ")


def test_an_empty_file_name_is_a_mistake(tmp_path):
    ended = heed(tmp_path, "run", *SMALL.split(), "--out", "")
    assert (ended.returncode, ended.stderr) == (2, "heed: --out: is empty\n")


def test_no_command_shows_the_help_and_exits_with_2(tmp_path):
    ended = heed(tmp_path)
    assert ended.returncode == 2 and ended.stdout == ""
    assert all(name in ended.stderr for name in ["demo", "run", "check", "convert", "explain", "doctor"])


def test_more_memory_than_the_machine_has_is_refused_before_it_is_asked_for(tmp_path):
    for flags in [
        "--length 99999999999999",
        "--length 9223372036854775807 --batch 9",
        "--model-dim 1200000000 --heads 12",
    ]:
        ended = heed(tmp_path, "run", *flags.split(), "--out", "y.npy")
        assert ended.returncode == 2, flags
        assert re.fullmatch(
            r"heed: a tensor of shape \(.*\) exceeds this machine's memory of \d+ bytes\n", ended.stderr
        )
    assert contents(tmp_path) == {}


@pytest.mark.parametrize("name", ["x.npy", "w.safetensors"])
def test_a_file_cut_anywhere_is_refused_in_a_sentence_that_names_it(samples, tmp_path, name):
    whole = (samples / name).read_bytes()
    for other in ["x.npy", "w.safetensors"]:
        (tmp_path / other).write_bytes((samples / other).read_bytes())
    wrong = []
    for length in [0, 1, 7, 8, 9, 40, len(whole) // 2, len(whole) - 1]:
        (tmp_path / name).write_bytes(whole[:length])
        ended = heed(tmp_path, "run", *LOADED.split(), "--out", "y.npy")
        one_sentence = ended.stderr.count("\n") == 1 and ended.stderr.startswith(f"heed: {name}: ")
        if ended.returncode != 2 or not one_sentence or (tmp_path / "y.npy").exists():
            wrong.append((length, ended.returncode, ended.stderr))
    assert wrong == []


def test_integers_are_no_input_and_floats_are_no_tokens(samples, tmp_path):
    write_sample(tmp_path)
    np.save(tmp_path / "i.npy", np.ones((2, 7, 16), np.int32))
    np.save(tmp_path / "f.npy", np.ones((2, 7), np.float32))
    for flags in [["--input", "i.npy"], ["--input", "x.npy", "--tokens", "f.npy"]]:
        ended = heed(tmp_path, "run", "--weights", "w.safetensors", "--heads", 4, *flags, "--out", "y.npy")
        assert ended.returncode == 2 and ended.stderr.count("\n") == 1 and not (tmp_path / "y.npy").exists()


def test_two_output_files_appear_together_or_not_at_all(tmp_path):
    def allow_small_files_only():  # y.npy has 1,728 bytes, a.npy 20,128
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))

    (tmp_path / "y.npy").write_bytes(b"what was here before")
    words = "run --batch 1 --length 50 --model-dim 8 --heads 2 --out y.npy --save-weights a.npy".split()
    ended = subprocess.run(
        [TOOL, *words],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=allow_small_files_only,
        restore_signals=False,
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("heed: a.npy") and ended.stderr.endswith(": File too large\n")
    assert contents(tmp_path) == {"y.npy": b"what was here before"}


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no full device")
def test_a_full_disk_behind_stdout_is_an_error(tmp_path):
    with open("/dev/full", "w", encoding="utf-8") as full:
        ended = subprocess.run(
            [TOOL, "doctor"],
            cwd=tmp_path,
            env=environment(),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert ended.returncode == 2 and ended.stderr.endswith("heed: standard output: cannot be written\n")


def test_an_output_file_replaces_the_old_one_and_leaves_nothing_beside_it(tmp_path):
    (tmp_path / "y.npy").write_bytes(b"old")
    assert heed(tmp_path, "run", *SMALL.split(), "--out", "y.npy").returncode == 0
    assert np.load(tmp_path / "y.npy").shape == (1, 5, 8) and list(contents(tmp_path)) == ["y.npy"]


@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_stays_a_link_when_its_file_is_written(tmp_path, is_there):
    if is_there:
        np.save(tmp_path / "real.npy", np.zeros(3))
    (tmp_path / "link.npy").symlink_to("real.npy")
    assert heed(tmp_path, "run", *SMALL.split(), "--out", "link.npy").returncode == 0
    assert (tmp_path / "link.npy").is_symlink() and np.load(tmp_path / "real.npy").shape == (1, 5, 8)


COMMANDS = {
    "run": f"run {SMALL}",
    "check": f"check {SMALL}",
    "explain": f"explain {SMALL}",
    "doctor": "doctor",
    "convert": "convert w.safetensors g.safetensors --heads 4 --kv-heads-from 2 --kv-heads 1",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_quiet_is_silent(tmp_path, command):
    write_sample(tmp_path)
    ended = heed(tmp_path, *COMMANDS[command].split(), "--quiet")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


@pytest.mark.parametrize("command", COMMANDS)
def test_json_is_one_object_and_has_no_colour(tmp_path, command):
    write_sample(tmp_path)
    before = heed(tmp_path, *COMMANDS[command].split(), "--json", "--color=always")
    assert (
        before.returncode == 0 and isinstance(json.loads(before.stdout), dict) and "\x1b" not in before.stdout
    )
    assert heed(tmp_path, "--json", *COMMANDS[command].split()).returncode == 0


def test_quiet_errors_are_still_said(tmp_path):
    assert (
        heed(tmp_path, "run", "--heads", 7, "--quiet").stderr
        == "heed: --heads: 7 does not divide --model-dim: 768 (the default)\n"
    )


def test_colour_needs_a_terminal_or_a_wish(tmp_path):
    assert "\x1b" not in heed(tmp_path, "doctor").stdout
    assert "\x1b[" in heed(tmp_path, "doctor", "--color=always").stdout
    assert "\x1b[" in heed(tmp_path, "doctor", "--color=always", NO_COLOR="1").stdout
    assert "\x1b[31mheed:" in heed(tmp_path, "run", "--color=always", "--heads", "7").stderr


def test_on_a_terminal_colour_is_on_unless_the_environment_or_a_flag_says_no(tmp_path):
    assert "\x1b[1m" in on_a_terminal(tmp_path, "doctor")[0]
    assert "\x1b[1m" in on_a_terminal(tmp_path, "doctor", NO_COLOR="")[0]
    assert "\x1b" not in on_a_terminal(tmp_path, "doctor", NO_COLOR="1")[0]
    assert "\x1b" not in on_a_terminal(tmp_path, "doctor", TERM="dumb")[0]
    assert "\x1b" not in on_a_terminal(tmp_path, "doctor", "--color=never")[0]


def test_progress_is_for_terminals_only(tmp_path):
    check = COMMANDS["check"].split()
    shown = on_a_terminal(tmp_path, *check)[1]
    assert "checking reference" in shown
    assert shown.count("computing the reference: 10 of 10 rows") == 1, "once for all kernels"
    assert on_a_terminal(tmp_path, *check, "--quiet") == ["", ""]
    assert heed(tmp_path, *check).stderr == ""
