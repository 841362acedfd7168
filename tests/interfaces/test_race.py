# SPDX-License-Identifier: Apache-2.0
"""bench/race.py and bench/table.py refuse what means nothing in a sentence, and before a race that takes minutes."""

import importlib
import json
import pathlib
import subprocess
import sys

import pytest

BENCH = pathlib.Path(__file__).parents[2] / "bench"


def refusal(script, *words):
    """Its last line, without the tool ever being asked: /bin/true prints no JSON."""
    ended = subprocess.run(
        [sys.executable, BENCH / script, *map(str, words)], capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.returncode != 0 and "Traceback" not in ended.stderr, ended.stderr
    return ended.stderr.splitlines()[-1]


RACES = {
    "rivals": (["--rivals", "torch,cuda"], "--rivals: cuda: not one of torch"),
    "no threads": (["--threads", "0"], "--threads: 0 is less than 1"),
    "no rounds": (["--rounds", "0"], "--rounds: 0 is less than 1"),
    "no runs": (["--runs", "0"], "--runs: 0 is less than 1"),
    "no time": (["--seconds", "0"], "--seconds: 0.0 is no time to run"),
    "less than no time": (["--mode", "turns", "--seconds", "-1"], "--seconds: -1.0 is no time to run"),
    "time that is no number": (["--seconds", "nan"], "--seconds: nan is no time to run"),
    "half an expression": (["--filter", "("], "--filter: ( is no regular expression: missing )"),
    "no tool": (["--heed", "/nowhere/heed"], "--heed: /nowhere/heed is not there, or cannot be run"),
    "no folder": (["--json", "/nowhere/race.json"], "--json: /nowhere/race.json cannot be written"),
}


@pytest.mark.parametrize("case", RACES)
def test_a_race_that_means_nothing_is_refused(case):
    words, sentence = RACES[case]
    assert sentence in refusal("race.py", "--heed", "/bin/true", *words)


@pytest.mark.parametrize("text", ["", "{}", "[]", "3", '{"median_ratios": {}}', '{"cases": 1, "limits": {}}'])
def test_a_file_that_holds_no_race_makes_no_table(tmp_path, text):
    file = tmp_path / "race.json"
    file.write_text(text, encoding="utf-8")
    assert refusal("table.py", file) == f"table: {file}: is not what race.py --json or heed bench --json writes"


def test_a_file_that_is_not_there_makes_no_table(tmp_path):
    assert refusal("table.py", tmp_path / "race.json").endswith("race.json: No such file or directory")
    (tmp_path / "race.json").write_text("{}", encoding="utf-8")
    assert "--into: /nowhere.md is no file" in refusal("table.py", "--into", "/nowhere.md", tmp_path / "race.json")


@pytest.fixture
def bench(monkeypatch):
    """Imports a script of bench/ by its name."""
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module


@pytest.mark.parametrize("mode", ["tool", "blocks", "turns"])
def test_projections_are_raced_in_every_mode_and_training_where_the_package_is(tmp_path, bench, mode):
    cases = ["prefill/f32/1x2x2x8x8x64", "cache/f32/1x2x2x1x8x64", "projection/f32/64x96x96"]
    tool = tmp_path / "heed"
    tool.write_text(f"#!/bin/sh\necho '{json.dumps({'cases': cases})}'\n", encoding="utf-8")
    tool.chmod(0o755)
    race = bench("race")
    names = race.cases_of(race.options_of(["--heed", str(tool), "--mode", mode]))
    assert names == [cases[0], cases[2]] + (race.TRAINING if mode != "tool" else [])


@pytest.mark.parametrize("rows, width", [(2048, 768), (1, 4096), (12, 96), (7, 5)])
def test_a_projection_is_one_of_the_four_of_a_layer(bench, rows, width):
    pytest.importorskip("ml_dtypes")
    problem = bench("problem")
    layer = problem.in_a_layer(problem.parse(f"projection/bf16/{rows}x{width}x{width}"))
    assert (layer.role, layer.dtype, layer.is_grouped) == ("layer", "bf16", False)
    arrays = problem.inputs_of(layer)
    assert arrays["x"].size == rows * width and arrays["x"].shape[1] <= 8
    assert [arrays[name].shape for name in ("w_q", "w_k", "w_v", "w_o")] == [(width, width)] * 4


def test_a_run_of_several_cases_counts_as_a_share_of_its_time(bench, monkeypatch):
    race = bench("race")
    monkeypatch.setattr(race, "take_turns", lambda runs, _: {name: (8.0, 4.0) for name in runs})
    record = {"name": "projection/f32/8x8x8", "heed_seconds": [], "heed_least": [], "cases_of_a_run": 4}
    rival = {"run": None, "seconds": [], "least": []}
    options = race.options_of(["--heed", "/bin/true", "--mode", "turns"])
    assert race.race_round(options, record, {"torch": rival}, {"way": "layer", "run": None})
    assert (record["heed_seconds"], record["heed_least"]) == (rival["seconds"], rival["least"]) == ([2.0], [1.0])
