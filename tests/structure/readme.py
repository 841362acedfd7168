#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Everything in the README that is code is true: C++ is compiled, run and its output compared, commands are run
or exist, CMake lines stand in a consumer project that the tests build.

readme.py ROOT --tool HEED -- COMPILER FLAGS...   (the flags include the library, after the source)
"""

import argparse
import dataclasses
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile

LANGUAGES = {"cpp", "text", "sh", "cmake", "pycon"}  # pycon: tests/python/test_examples.py
NOT_RUN = {"demo"}  # commands of the tool that take long; that they exist is checked by asking for their help


@dataclasses.dataclass
class Block:
    line: int
    language: str
    text: str


def blocks_of(text):
    blocks, current = [], None
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        if line.startswith("```"):
            if current is None:
                current = Block(number, line[3:].strip(), "")
            else:
                blocks.append(current)
                current = None
        elif current is not None:
            current.text += line
    if current is not None:
        raise ValueError(f"README.md:{current.line}: the block is never closed")
    return blocks


def unknown_languages(blocks):
    return [
        f"README.md:{block.line}: a block of language '{block.language}' is not checked by anything"
        for block in blocks
        if block.language not in LANGUAGES
    ]


def stray_outputs(blocks):
    return [
        f"README.md:{block.line}: a text block that no program is held to"
        for before, block in zip([None, *blocks], blocks)
        if block.language == "text" and (before is None or before.language != "cpp")
    ]


def programs(blocks):
    """(C++ block, the output it must have): the text block that follows, or nothing."""
    for block, after in zip(blocks, [*blocks[1:], None]):
        if block.language == "cpp":
            yield block, after.text if after and after.language == "text" else ""


def as_program(block):
    """A block without a main is a fragment: it becomes the body of one, among the views of readme_prelude.hpp."""
    place = f'#line {block.line + 1} "README.md"\n'
    if "int main(" in block.text:
        return place + block.text
    return f'#include "readme_prelude.hpp"\nint main() {{\n{place}{block.text}}}\n'


def difference(line, expected, printed):
    same = [text.rstrip() for text in expected.splitlines()] == [
        text.rstrip() for text in printed.splitlines()
    ]
    return (
        [] if same else [f"README.md:{line}: the program prints {printed!r}, the README shows {expected!r}"]
    )


def check_programs(blocks, compile_command):
    problems = []
    here = pathlib.Path(__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        for block, expected in programs(blocks):
            source = pathlib.Path(folder, f"block_{block.line}.cpp")
            source.write_text(as_program(block))
            program = source.with_suffix("")
            command = [compile_command[0], f"-I{here}", str(source), "-o", str(program), *compile_command[1:]]
            built = subprocess.run(command, capture_output=True, text=True)
            if built.returncode:
                problems.append(f"README.md:{block.line}: does not compile:\n{built.stderr}")
                continue
            ran = subprocess.run([program], cwd=folder, capture_output=True, text=True, timeout=60)
            if ran.returncode:
                problems.append(f"README.md:{block.line}: ended with status {ran.returncode}: {ran.stderr}")
            problems += difference(block.line, expected, ran.stdout)
    return problems


def run_tool(words, folder, tool):
    if tool is None:
        return []
    arguments = [words[1], "--help"] if words[1] in NOT_RUN else words[1:]
    ran = subprocess.run([tool, *arguments], cwd=folder, capture_output=True, text=True, timeout=120)
    return (
        [f"`{shlex.join(words)}` ended with status {ran.returncode}: {ran.stderr}"] if ran.returncode else []
    )


def check_commands(blocks, root, tool):
    """Lines of one folder, in order: what one command writes, the next may read."""
    problems = []
    with tempfile.TemporaryDirectory() as folder:
        for block in blocks:
            for number, line in enumerate(block.text.splitlines(), block.line + 1):
                words = shlex.split(line, comments=True)
                if block.language != "sh" or not words:
                    continue
                if words[0] == "heed":
                    problems += [
                        f"README.md:{number}: {problem}" for problem in run_tool(words, folder, tool)
                    ]
                elif not (root / words[0]).is_file() and shutil.which(words[0]) is None:
                    problems.append(f"README.md:{number}: there is no command {words[0]}")
    return problems


def check_first_program(blocks, example):
    """The first screen's program is an example too, comments at its head aside."""
    first = next((block for block in blocks if block.language == "cpp"), None)
    if first and example.endswith(first.text):
        return []
    return ["README.md: the first program is not examples/quickstart.cpp"]


def check_cmake(blocks, consumers):
    known = {line.strip() for line in consumers.splitlines()}
    return [
        f"README.md:{number}: no consumer project in the tests has the line `{line.strip()}`"
        for block in blocks
        if block.language == "cmake"
        for number, line in enumerate(block.text.splitlines(), block.line + 1)
        if line.strip() and line.strip() not in known
    ]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("--tool")
    parser.add_argument("compile_command", nargs="+")
    arguments = parser.parse_args()
    blocks = blocks_of((arguments.root / "README.md").read_text())
    projects = (arguments.root / "tests/interfaces/consumers").glob("*/CMakeLists.txt")
    consumers = "\n".join(path.read_text() for path in projects)
    problems = [
        *unknown_languages(blocks),
        *stray_outputs(blocks),
        *check_programs(blocks, arguments.compile_command),
        *check_commands(blocks, arguments.root, arguments.tool),
        *check_first_program(blocks, (arguments.root / "examples/quickstart.cpp").read_text()),
        *check_cmake(blocks, consumers),
    ]
    for problem in problems:
        print(problem)
    print(f"{len(blocks)} blocks, {len(problems)} problems")
    return 1 if problems or not blocks else 0


if __name__ == "__main__":
    sys.exit(main())
