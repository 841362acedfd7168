# SPDX-License-Identifier: Apache-2.0
"""bench/race.py and bench/table.py refuse what means nothing in a sentence, and before a race that takes minutes."""

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
