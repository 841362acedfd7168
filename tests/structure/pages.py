#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Everything in the README and in docs/ that is code is true: C++ is compiled, run and its output compared; commands of the
tool are run, or have the options they are given; CMake lines stand in a consumer project that the tests build. Python is
tests/python/test_examples.py's affair, C tests/c/guide.py's.

pages.py ROOT --tool HEED -- COMPILER FLAGS...   (the flags include the library, after the source)

A comment before a block says what the page does not show:
    <!-- cpp                 <!-- not run: why; C++ is compiled all the same -->
    code before the block
    -->
"""

import argparse
import dataclasses
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

LANGUAGES = {"cpp", "c", "python", "pycon", "sh", "cmake", "text"}
RUN = ("README.md", "docs/commands.md", "docs/path.md", "docs/lessons/")  # pages whose commands are run, one after another
NOT_RUN = {"demo", "doctor"}  # that they exist is checked by asking for their help
ELSEWHERE = ("conan", "vcpkg", "rattler-build")  # package managers that need not be here
SHOWN = ("&&", "|", "$(")  # commands of a shell: their first word must exist


@dataclasses.dataclass
class Block:
    page: str
    line: int
    language: str
    text: str
    hidden: str = ""  # the comment before it, without its marks
    output: str | None = None  # of the text block that follows at once

    @property
    def place(self):
        return f"{self.page}:{self.line}"


def blocks_of(text, page="README.md"):
    """Fenced blocks of a page, with the comments right before them and the outputs right after."""
    blocks, current, comment, between = [], None, None, ""
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        if current is None and comment is None and line.startswith("<!--"):
            comment = ""
        if comment is not None:
            comment += line
            if "-->" in line:
                between, comment = comment.strip().removeprefix("<!--").removesuffix("-->").strip(), None
        elif line.startswith("```"):
            if current is None:
                current = Block(page, number, line[3:].strip(), "", between)
            else:
                blocks.append(current)
                current, between = None, ""
        elif current is not None:
            current.text += line
        elif line.strip():
            between = ""
    if current is not None:
        raise ValueError(f"{current.place}: the block is never closed")
    lines = text.splitlines()
    for block, after in zip(blocks, blocks[1:]):
        end = block.line + block.text.count("\n") + 1
        if after.language == "text" and not "".join(lines[end : after.line - 1]).strip():
            block.output = after.text
    return blocks


def pages(root):
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def unknown_languages(blocks):
    return [
        f"{block.place}: a block of language '{block.language}' is not checked by anything"
        for block in blocks
        if block.language not in LANGUAGES
    ]


def is_run(block):
    return not block.hidden.startswith("not run:")


def as_function(block):
    """A block as a function of a namespace of its own: programs by their main, fragments among the views of the prelude."""
    place = f'#line {block.line + 1} "{block.page}"\n'
    setup = block.hidden.removeprefix("cpp").strip() + "\n" if block.hidden.startswith("cpp") else ""
    body = re.sub(r"^#include .*$", "", block.text, flags=re.MULTILINE)
    if "int main(" in body:
        body = body.replace("int main(", "int run(").rstrip().removesuffix("}") + "  return 0;\n}\n"  # which main may leave out
        return f"namespace block_{block.line} {{\n{place}{body}}}\n"
    return f"namespace block_{block.line} {{\nint run() {{\n{setup}{place}{body}return 0;\n}}\n}}\n"


def as_program(blocks):
    """All C++ blocks of a page as one program, which runs the one that it is told to."""
    includes = sorted({line for block in blocks for line in re.findall(r"^#include .*$", block.text, flags=re.MULTILINE)})
    chosen = "".join(f"  if (which == {block.line}) return block_{block.line}::run();\n" for block in blocks)
    return (
        '#include "pages_prelude.hpp"\n#include <cstdlib>\n'
        + "\n".join(includes)
        + "\n"
        + "".join(map(as_function, blocks))
        + f"int main(int, char** words) {{\n  const int which = std::atoi(words[1]);\n{chosen}  return 99;\n}}\n"
    )


def compiled(name, source, folder, compile_command):
    """The program, or a sentence."""
    path = pathlib.Path(folder, f"{name}.cpp")
    path.write_text(source)
    command = [compile_command[0], f"-I{pathlib.Path(__file__).parent}", str(path), "-o", str(path.with_suffix("")), *compile_command[1:]]
    built = subprocess.run(command, capture_output=True, text=True)
    return (path.with_suffix(""), "") if built.returncode == 0 else (None, built.stderr)


def check_programs(blocks, compile_command):
    problems = []
    blocks = [block for block in blocks if block.language == "cpp"]
    with tempfile.TemporaryDirectory() as folder:
        for page in sorted({block.page for block in blocks}):
            own = [block for block in blocks if block.page == page]
            program, complaint = compiled(page.replace("/", "_").removesuffix(".md"), as_program(own), folder, compile_command)
            if program is None:
                problems.append(f"{page}: does not compile:\n{complaint}")
                continue
            for block in filter(is_run, own):
                ran = subprocess.run([program, str(block.line)], cwd=folder, capture_output=True, text=True, timeout=60)
                if ran.returncode:
                    problems.append(f"{block.place}: ended with status {ran.returncode}: {ran.stderr}")
                expected = block.output or ""
                if ran.stdout.split() != expected.split():
                    problems.append(f"{block.place}: prints {ran.stdout!r}, the page shows {expected!r}")
    return problems


def run_tool(words, folder, tool):
    arguments = [words[1], "--help"] if words[1] in NOT_RUN else words[1:]
    ran = subprocess.run([tool, *arguments], cwd=folder, capture_output=True, text=True, timeout=120)
    return [f"`{shlex.join(words)}` ended with status {ran.returncode}: {ran.stderr}"] if ran.returncode else []


def options_of_tool(words, tool):
    """Whether the command, and every option it is given, is in the tool's help."""
    ran = subprocess.run([tool, words[1], "--help"], capture_output=True, text=True, timeout=60)
    if ran.returncode:
        return [f"there is no `heed {words[1]}`"]
    return [
        f"`heed {words[1]}` has no {word}"
        for word in words[2:]
        if word.startswith("--") and not re.search(rf"(?<![\w-]){word}(?![\w-])", ran.stdout)
    ]


def check_commands(blocks, root, tool):
    """Lines of one page, in order: what one command writes, the next may read."""
    problems = []
    for page in sorted({block.page for block in blocks}):
        with tempfile.TemporaryDirectory() as folder:
            for block in blocks:
                if block.page != page or block.language != "sh":
                    continue
                for number, line in enumerate(block.text.splitlines(), block.line + 1):
                    words = [line.split()[0]] if any(mark in line for mark in SHOWN) else shlex.split(line, comments=True)
                    if not words or "=" in words[0]:
                        continue
                    found = []
                    if words[0] == "heed" and tool and len(words) > 1:
                        found = run_tool(words, folder, tool) if page.startswith(RUN) else options_of_tool(words, tool)
                    elif words[0] != "heed" and not words[0].startswith("build/"):
                        if words[0] not in ELSEWHERE and not (root / words[0]).is_file() and shutil.which(words[0]) is None:
                            found = [f"there is no command {words[0]}"]
                    problems += [f"{page}:{number}: {problem}" for problem in found]
    return problems


def check_first_program(blocks, example):
    """The README's program is an example too, comments at its head aside."""
    first = next((block for block in blocks if block.language == "cpp"), None)
    return [] if first and example.endswith(first.text) else ["README.md: the first program is not examples/quickstart.cpp"]


def check_cmake(blocks, consumers):
    known = {line.strip() for line in consumers.splitlines()}
    return [
        f"{block.page}:{number}: no consumer project in the tests has the line `{line.strip()}`"
        for block in blocks
        if block.language == "cmake" and is_run(block)
        for number, line in enumerate(block.text.splitlines(), block.line + 1)
        if line.strip() and line.strip() not in known and "<" not in line
    ]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("--tool")
    parser.add_argument("compile_command", nargs="+")
    arguments = parser.parse_args()
    root = arguments.root
    blocks = [block for page in pages(root) for block in blocks_of(page.read_text(), page.relative_to(root).as_posix())]
    consumers = "\n".join(path.read_text() for path in (root / "tests/interfaces/consumers").glob("*/CMakeLists.txt"))
    problems = [
        *unknown_languages(blocks),
        *check_programs(blocks, arguments.compile_command),
        *check_commands(blocks, root, arguments.tool),
        *check_first_program(blocks, (root / "examples/quickstart.cpp").read_text()),
        *check_cmake(blocks, consumers),
    ]
    for problem in problems:
        print(problem)
    print(f"{len(blocks)} blocks, {len(problems)} problems")
    return 1 if problems or not blocks else 0


if __name__ == "__main__":
    sys.exit(main())
