# SPDX-License-Identifier: Apache-2.0
"""bench/: one list of cases, one format of results, a race that means something, and a page that is what the results say."""

import importlib
import json
import math
import pathlib
import subprocess
import sys

import pytest

from tool import TOOL, json_of

BENCH = pathlib.Path(__file__).parents[2] / "bench"


@pytest.fixture
def bench(monkeypatch):
    """Imports a script of bench/ by its name."""
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module


def refusal(script, *words):
    ended = subprocess.run(
        [sys.executable, BENCH / script, *map(str, words)], capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.returncode != 0 and "Traceback" not in ended.stderr, ended.stderr
    return ended.stderr.splitlines()[-1]


RACES = {
    "rivals": (["--rivals", "torch,cuda"], "--rivals: cuda: not one of torch"),
    "no threads": (["--threads", "0"], "--threads: 0 is less than 1"),
    "no rounds": (["--rounds", "0"], "--rounds: 0 is less than 1"),
    "no time": (["--seconds", "0"], "--seconds: 0.0 is no time to run"),
    "time that is no number": (["--seconds", "nan"], "--seconds: nan is no time to run"),
    "half an expression": (["--filter", "("], "--filter: ( is no regular expression: missing )"),
    "no tool": (["--heed", "/nowhere/heed"], "--heed: /nowhere/heed is not there, or cannot be run"),
    "no folder": (["--json", "/nowhere/race.json"], "--json: /nowhere/race.json cannot be written"),
    "no case": (["--filter", "^nothing$"], "race: --filter ^nothing$ matches no case of quick"),
}


@pytest.mark.parametrize("case", RACES)
def test_a_race_that_means_nothing_is_refused_before_it_takes_minutes(case):
    words, sentence = RACES[case]
    assert sentence in refusal("race.py", *words)


@pytest.mark.skipif(not TOOL, reason="HEED_TOOL does not name the tool")
def test_the_tool_and_the_race_count_the_same_work_for_every_case(tmp_path, bench):
    records, raced = bench("records"), 0
    for case in json_of(tmp_path, "bench", "--suite", "all", "--list")["cases"]:
        described = records.described(case["name"])
        raced += bool(described)
        assert not described or described == {key: value for key, value in case.items() if key != "name"}
    assert raced > 50


@pytest.mark.skipif(not TOOL, reason="HEED_TOOL does not name the tool")
def test_the_tool_writes_the_format(tmp_path, bench):
    words = ["--suite", "all", "--filter", "^(decode/bf16/1x32x1x1x4096x128|prefill/f32/1x12x12x128x128x64)$"]
    document = json_of(tmp_path, "bench", "--seconds", "0.001", *words)
    assert bench("records").misses(document) == [] and len(document["cases"]) == 2


def test_every_result_is_of_the_format_and_names_cases(bench):
    records, files = bench("records"), sorted((BENCH / "results").glob("*.json"))
    assert len(files) >= 7
    for file in files:
        document = records.read(file)  # a sentence where it is not
        assert document["cases"], file


@pytest.mark.parametrize("name", ["prefill/f64/1x2x2x8x8x64", "prefill/f32/1x2x2x8x8", "projection/f32/1x2x2x8x8x64", "cache/f32/1x2x2x1x8x64", ""])
def test_what_is_not_raced_is_no_case(bench, name):
    with pytest.raises(ValueError, match="not the name of a case"):
        bench("cases").parse(name)


def test_every_listed_case_of_the_race_is_one(bench):
    cases = bench("cases")
    for suite in ("training", "calls", "quick", "cuda"):
        assert [case.name for case in cases.raced(suite)] == cases.suites()[suite] != []
    everything = {case.name for case in cases.raced("all")}
    assert everything > {"training/f32/2x12x6x1024x1024x64", "projection/f32/2048x768x768"}
    assert not any(name.startswith(("cache/", "step/")) for name in everything)


BROKEN = {
    "another format": ({"format": 2}, "its format is 2, not 1"),
    "no date": ({"date": None}, "the run: date is None, not str"),
    "a field of its own": ({"speed": 3}, "the run: speed is not a field"),
    "a record that is none": ({"cases": [3]}, "record 0: it is no object"),
    "a record without a name": ({"cases": [{"by": "heed", "right": True}]}, "record 0: name is missing"),
    "a time of a wrong result": (
        {"cases": [{"name": "x", "by": "heed", "right": False, "median_seconds": 1.0}]},
        "record 0: a wrong result has a time",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_not_of_the_format_is_refused(bench, tmp_path, case):
    records = bench("records")
    change, sentence = BROKEN[case]
    document = records.run("x", {"name": "y", "threads": 1}, {}) | change
    assert sentence in records.misses(document)
    file = tmp_path / "run.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    assert refusal("plots.py", "--table", file).startswith(f"plots: {file}: ")


def test_a_written_run_reads_as_it_was(bench, tmp_path):
    records = bench("records")
    document = records.run("x", {"name": "µ", "threads": 1}, {"heed": "1"}, {"dram_bytes_per_second": None})
    document["cases"] = [records.record("decode/f32/1x2x2x1x8x64", "heed", None, [3.0, 1.0, 2.0]), records.record("a", "torch", "b", [])]
    records.write(tmp_path / "run.json", document)
    assert records.read(tmp_path / "run.json") == document
    assert document["cases"][0]["bytes_per_second"] == 2 * 2 * 8 * 64 * 4 / 2.0 and document["cases"][1]["right"] is False


class Clock:
    """Says how long calls take: run() returns the seconds of a turn."""

    def ready(self, run):
        return run

    def turn(self, run):
        return run()


def test_a_ratio_is_the_median_of_turns_and_who_is_hopeless_has_one(bench):
    race, cases = bench("race"), bench("cases")
    times = {"heed": iter([[2.0], [4.0], [2.0]]), "torch": iter([[3.0], [4.0], [4.0]]), "numpy": iter([[30.0]])}
    contestants = [race.Contestant(by, "x", lambda by=by: next(times[by]), 1e-7) for by in times]
    race.take_turns(contestants, Clock(), rounds=3)
    made = race.records_of(cases.parse("prefill/f32/1x2x2x8x8x64"), contestants, None)
    assert [(record["by"], record.get("ratio"), record["runs"]) for record in made] == [
        ("heed", None, 3), ("torch", 1.5, 3), ("numpy", 15.0, 1),
    ]  # fmt: skip
    assert made[1]["best_ratio"] == 1.5 and made[0]["flops"] == 4 * 2 * 8 * 8 * 64 / 2.0


@pytest.mark.parametrize("every_way, expected", [(False, ["b"]), (True, ["a", "b"])])
def test_the_fastest_right_way_is_raced_and_wrong_ones_are_seen(bench, every_way, expected):
    race = bench("race")
    found = [race.Contestant("x", how, lambda seconds=seconds: [seconds], 1e-7) for how, seconds in (("a", 2.0), ("b", 1.0))]
    wrong = race.Contestant("x", "c", error=math.inf)
    chosen = race.chosen_ways([*found, wrong], Clock(), every_way)
    assert [each.how for each in chosen] == [*expected, "c"]
    (record,) = race.records_of(bench("cases").parse("prefill/f32/1x2x2x8x8x64"), [wrong], None)
    assert record["right"] is False and "median_seconds" not in record


@pytest.mark.parametrize("role", ["prefill", "backward", "layer", "training", "decode"])
def test_a_wrong_element_of_a_sampled_row_is_an_error(bench, role):
    pytest.importorskip("ml_dtypes")
    problem = bench("problem")
    case = bench("cases").parse(f"{role}/f32/1x4x2x{1 if role == 'decode' else 8}x8x16")
    expected = problem.expected_rows(case, problem.inputs_of(case))
    result = {row.index: row.values.copy() for row in expected}
    assert problem.largest_error(expected, result) == 0
    last = expected[-1]
    result[last.index][-1] += 0.5 * last.size
    assert problem.largest_error(expected, result) == pytest.approx(0.5)
    result[last.index][0] = math.nan
    assert problem.largest_error(expected, result) == math.inf


def test_the_page_and_its_pictures_are_what_the_results_say():
    ended = subprocess.run([sys.executable, "-B", BENCH / "plots.py", "--check"], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_calls_of_the_plateau_have_names_of_their_own_and_options_that_are_known(bench):
    plateau = bench("plateau")
    calls = list(plateau.calls())
    assert len({call.name for call in calls}) == len(calls) >= 80
    assert {name for call in calls for name in call.options} == set(plateau.OPTIONS)


def test_a_share_of_the_plateau_is_of_the_plain_call_with_heads_of_the_same_size(bench):
    plateau = bench("plateau")
    plain, masked, narrow = plateau.Call("a"), plateau.Call("a", ("keep",)), plateau.Call("a", ("causal",), dim=64)
    found = {call: [{"right": True, "flops": flops}] for call, flops in ((plain, 8e14), (masked, 2e14), (narrow, 5e14))}
    plateau.add_shares(found)
    assert [made[0]["share_of_plain"] for made in found.values()] == [1, 0.25, 1]


@pytest.mark.parametrize("words", [["--rounds", "0"], ["--seconds", "nan"], ["--filter", "("], ["--filter", "no such call"]])
def test_the_plateau_refuses_in_a_sentence(words):
    assert words[1] in refusal("plateau.py", *words)
