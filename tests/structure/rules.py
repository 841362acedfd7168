#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""From a rule of docs/spec.md to the tests that hold it: the page of the site about it. Fails where nothing holds a rule.

rules.py ROOT [--print]

A rule that the comment at the head of a test file names, as (S13), is held by all tests of the file; one that a comment names
further down, by the test that follows the comment or has it in it. Planted faults name the rule they break.
"""

import pathlib
import re
import sys

FOLDERS = ("tests", "ranks/tests", "view/tests")
NOT_TESTS = ("tests/cases", "tests/faults", "tests/fixtures", "tests/structure")
RULE = re.compile(r"\b([SGO]\d+)\b")
TEST = re.compile(r"^\s*(?:TYPED_)?TEST(?:_[FP])?\(\s*\w+,\s*(\w+)\s*\)|^\s*def (test_\w+)\(", re.MULTILINE)


def specified(root):
    """rule -> (title, anchor)"""
    rules = {}
    for line in (root / "docs/spec.md").read_text().splitlines():
        found = re.match(r"### (([SGO]\d+) [^(]*?)\s*(?:\((src/.*)\))?$", line)
        if found:
            heading = line.removeprefix("### ")
            anchor = re.sub(r"[^\w\s-]", "", heading.lower()).strip().replace(" ", "-")
            rules[found[2]] = (found[1].split(" ", 1)[1], anchor)
    return rules


def comments_of(text, is_python):
    """(offset, comment) of every comment line; of Python also the docstring at the head."""
    marks = r"#(.*)" if is_python else r"//(.*)"
    found = [(m.start(), m[1]) for m in re.finditer(marks, text)]
    docstring = re.search(r'"""(.*?)"""', text, re.DOTALL) if is_python else None
    return found + [(docstring.start(), docstring[1])] if docstring else found


def holders(root):
    """rule -> {file: None for all its tests, or their names}"""
    held = {}
    for path in sorted(file for folder in FOLDERS for file in (root / folder).rglob("*") if file.suffix in (".cpp", ".py")):
        here = path.relative_to(root).as_posix()
        text = path.read_text()
        tests = [(m.start(), m[1] or m[2]) for m in TEST.finditer(text)]
        if here.startswith(NOT_TESTS) or not tests:
            continue
        begins = re.search(r"^(?!//|#|$)", text, re.MULTILINE).start() if path.suffix == ".cpp" else tests[0][0]
        for offset, comment in comments_of(text, path.suffix == ".py"):
            for rule in RULE.findall(comment):
                files = held.setdefault(rule, {})
                if offset < begins:
                    files[here] = None
                elif files.get(here, []) is not None:
                    lines = text[offset:].splitlines()
                    after = next((line for line in lines if not line.lstrip().startswith(("//", "#"))), "")
                    names = [name for start, name in tests if start < offset] or [tests[0][1]]
                    follows = TEST.match(after)
                    name = (follows[1] or follows[2]) if follows else names[-1]
                    if name not in files.setdefault(here, []):
                        files[here].append(name)
    return held


def faults(root):
    """rule -> names of planted faults that break it"""
    broken = {}
    for name, text in re.findall(r'Fault\("([\w-]+)"(.*?)\),?\n(?=    Fault|\])', (root / "tests/faults/table.py").read_text(), re.DOTALL):
        for rule in re.findall(r"\(([SGO]\d+(?:, [SGO]\d+)*)\)", text):
            for one in rule.split(", "):
                broken.setdefault(one, []).append(name)
    return broken


def page(root):
    held, broken = holders(root), faults(root)
    lines = [
        "# Which tests hold a rule",
        "",
        "Every rule of [the specification](spec.md), the test files or tests that name it, and the [planted faults](testing.md#planted-faults)",
        "that break it. Every kernel is compared with the reference over all of them in `tests/conformance/conformance.cpp` and",
        "`tests/gradients/conformance.cpp`. `tests/structure/rules.py` makes this page.",
        "",
        "| rule | tests | planted faults |",
        "|---|---|---|",
    ]
    for rule, (title, anchor) in specified(root).items():
        tests = [
            f"`{file}`" if names is None else f"`{file}`: {', '.join(name.replace('_', ' ') for name in names)}"
            for file, names in held.get(rule, {}).items()
        ]
        lines.append(f"| [{rule} {title}](spec.md#{anchor}) | {'<br>'.join(tests)} | {', '.join(broken.get(rule, []))} |")
    return "\n".join(lines) + "\n", sorted(rule for rule in specified(root) if rule not in held)


def main():
    root = pathlib.Path(sys.argv[1])
    text, held_by_none = page(root)
    for rule in held_by_none:
        print(f"docs/spec.md: no test names {rule}", file=sys.stderr)
    if "--print" in sys.argv[2:]:
        print(text, end="")
    return 1 if held_by_none else 0


if __name__ == "__main__":
    sys.exit(main())
