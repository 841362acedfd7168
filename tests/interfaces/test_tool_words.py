# SPDX-License-Identifier: Apache-2.0
"""Completion and manual pages say what --help says, and shells and man understand them."""

import re
import shutil
import subprocess

import pytest

from tool import TOOL, heed, json_of

pytestmark = pytest.mark.skipif(not TOOL, reason="HEED_TOOL does not name the tool")

SHELLS = ["bash", "zsh", "fish"]


def help_of(*command):
    return heed("/", *command, "--help").stdout


def flags_of(*command):
    return set(re.findall(r"^ +(?:-h,)?(--[a-z-]+)", help_of(*command), re.MULTILINE))


def commands():
    return re.findall(r"^  ([a-z]+)  ", help_of().split("Subcommands:")[1].split("\n\n")[0], re.MULTILINE)


def needs(program):
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")


def script_of(shell, folder):
    path = folder / f"heed.{shell}"
    path.write_text(heed(folder, "completion", shell).stdout)
    return path


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_has_every_command_and_every_flag_of_the_help(shell):
    script = heed("/", "completion", shell).stdout
    missing = [command for command in commands() if not re.search(rf"\b{command}\b", script)]
    for command in [(), *((name,) for name in commands())]:
        flags = {flag[2:] if shell == "fish" else flag for flag in flags_of(*command)}
        missing += [flag for flag in flags if not re.search(rf"(?<![\w-]){flag}(?![\w-])", script)]
    assert not missing
    assert json_of("/", "completion", shell) == {"shell": shell, "script": script}


def completed_by_bash(folder, *words):
    """What bash offers for the last of the words."""
    needs("bash")
    quoted = " ".join(f"'{word}'" for word in ["heed", *words])
    program = f"source {script_of('bash', folder)}; COMP_WORDS=({quoted}); COMP_CWORD={len(words)}; _heed; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    ran = subprocess.run(["bash", "--norc", "-c", program], capture_output=True, text=True, cwd=folder, check=True)
    return ran.stdout.split()


def completed_by_fish(folder, *words):
    needs("fish")
    program = f"source {script_of('fish', folder)}; complete -C 'heed {' '.join(words)}'"
    ran = subprocess.run(["fish", "--no-config", "-c", program], capture_output=True, text=True, cwd=folder, check=True)
    return [line.split("\t")[0] for line in ran.stdout.splitlines()]


@pytest.mark.parametrize("complete", [completed_by_bash, completed_by_fish])
def test_commands_flags_and_choices_are_completed(tmp_path, complete):
    assert complete(tmp_path, "b") == ["bench"]
    assert set(complete(tmp_path, "")) >= set(commands())
    assert sorted(complete(tmp_path, "bench", "--se")) == ["--seconds"]
    suites = re.search(r"--suite (\S+)", help_of("bench"))[1].split("|")
    assert sorted(complete(tmp_path, "bench", "--suite", "l")) == sorted(name for name in suites if name.startswith("l"))
    assert sorted(complete(tmp_path, "run", "--color", "a")) == ["always", "auto"]
    assert complete(tmp_path, "completion", "z") == ["zsh"]
    assert complete(tmp_path, "bench", "--seconds", "") == []
    assert not set(complete(tmp_path, "explain", "--")) & {"--suite", "--picture"}


def test_fish_offers_files_where_a_file_belongs(tmp_path):
    (tmp_path / "x.npy").touch()
    assert "x.npy" in completed_by_fish(tmp_path, "view", "--weights", "x")
    assert "x.npy" in completed_by_fish(tmp_path, "convert", "x")


def test_bash_leaves_files_to_its_own_completion(tmp_path):
    (tmp_path / "x.npy").touch()
    for words in (["view", "--weights", "x"], ["convert", "x"]):
        assert completed_by_bash(tmp_path, *words) == []
    assert "complete -o default" in script_of("bash", tmp_path).read_text()


def test_zsh_completes_commands_flags_and_choices(tmp_path):
    """A zsh of its own behind a terminal, as somebody would use it."""
    needs("zsh")
    script = script_of("zsh", tmp_path)
    program = f"""
zmodload zsh/zpty
zpty shell zsh -f -i
ask() {{ zpty -w shell "$1"; zpty -r -m shell found "*DONE-$2*" }}
ask "PS1= ; autoload -Uz compinit; compinit -u -D; source {script}; zstyle ':completion:*' list-separator '='; LISTMAX=1000; bindkey '^I' list-choices; echo DONE-\\$((0+1))" 1
for line in "heed b" "heed bench --suite l" "heed run --color a" "heed completion z" "heed bench --secon"; do
  zpty -w -n shell "$line"$'\\t'; sleep 0.7
  zpty -w -n shell $'\\C-u'; zpty -w shell "echo DONE-\\$((1+1))"
  zpty -r -m shell found "*DONE-2*"; print -r -- "$found"
done
"""
    ran = subprocess.run(["zsh", "-f", "-c", program], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    said = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", ran.stdout)
    for word in ("bench", "layer", "limits", "always", "auto", "zsh", "--seconds"):
        assert re.search(rf"(?<![\w-]){word}\b", said), f"{word} is not offered: {said}"


@pytest.mark.parametrize("page", ["", "demo", "run", "check", "bench", "convert", "view", "explain", "doctor", "completion", "manual"])
def test_a_manual_page_says_what_the_help_says(page):
    command = [page] if page else []
    text = heed("/", "manual", *command).stdout
    plain = text.replace("\\-", "-").replace("\\(aq", "'").replace("\\(ga", "`").replace("\\(rs", "\\")
    missing = [flag for flag in flags_of(*command) if f"\\fB{flag}\\fR" not in plain]
    # Every line of the help but its headings is there, flags apart from what they do.
    for line in help_of(*command).splitlines():
        said = re.split(r" {2,}", line.strip())[-1]
        if not line.startswith("Usage") and not said.startswith("-") and not said.endswith((":", "REQUIRED")):
            missing += [said] if said not in plain else []
    assert not missing
    name = f"heed-{page}.1" if page else "heed.1"
    assert json_of("/", "manual", *command) == {"name": name, "page": text}


@pytest.mark.parametrize("page", ["", "bench", "convert", "view"])
def test_man_reads_a_page_without_a_warning(page):
    needs("groff")
    text = heed("/", "manual", *([page] if page else [])).stdout
    ran = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-P-cbou", "-rLL=100n"], input=text, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "NAME" in ran.stdout and "SYNOPSIS" in ran.stdout


def test_an_unknown_page_is_refused():
    ended = heed("/", "manual", "benches")
    assert ended.returncode == 2 and "COMMAND: 'benches' is no command of heed" in ended.stderr
