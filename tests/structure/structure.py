#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The shape of the source tree, as checks. `structure.py ROOT` prints every violation and fails if there is one.

Each check takes the root folder and returns sentences. planted_violations.py shows that every one of them can fail.
"""

import pathlib
import re
import sys

import argument_order

CODE = {".hpp", ".cpp", ".h", ".c", ".cu", ".cuh"}
TEXT = CODE | {".py", ".cmake", ".md", ".txt", ".in", ".json", ".js", ".css", ".html", ""}
LINE_LIMIT = 500
JUNK_DRAWER = re.compile(r"(utils?|common|helpers?|misc|core|base)", re.IGNORECASE)

# Data falls downward: a folder of src/ may include those after it, itself, and include/heed.
BACKENDS = ("cpu", "cuda")
ORDER = (("c",), ("ranks",), ("layer",), ("check",), ("plan",), ("lowering",), (*BACKENDS, "reference"), ("backend",), ("problem",),
         ("softmax", "cache"), ("threads", "rotary"), ("refusal",))
DEPTH = {folder: depth for depth, folders in enumerate(ORDER) for folder in folders}
# Beside that order: the arrays a layer's weights are made of, and files of caches and views.
ALLOWED_BESIDE = {("layer", "files"), ("cache", "files"), ("view", "files")}


def source_files(root, *folders):
    """Every file below the given folders (all of them without any), build products and hidden folders aside."""
    for folder in folders or [""]:
        for path in sorted((root / folder).rglob("*")):
            parts = path.relative_to(root).parts
            if path.is_file() and not any(p.startswith((".", "build", "__pycache__")) for p in parts[:-1]):
                yield path


def code_files(root, *folders):
    return [path for path in source_files(root, *folders) if path.suffix in CODE]


def lines_of(path):
    return path.read_text(encoding="utf-8", errors="replace").splitlines()


def includes(path):
    """(line number, name, is quoted) of every #include."""
    for number, line in enumerate(lines_of(path), 1):
        found = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
        if found:
            yield number, found[2], found[1] == '"'


def may_include(folder, target):
    """May a file of src/<folder> include `target`, a path relative to src/?"""
    other = target.split("/")[0]
    if other == folder or (folder, other) in ALLOWED_BESIDE:
        return True
    if other in BACKENDS:  # a line of the plan's list; nobody else knows which there are
        return folder == "plan" and target == f"{other}/backend.hpp"
    return DEPTH.get(folder, 99) < DEPTH.get(other, -1)


def resolve(root, path, name):
    """The file a quoted include means, relative to the root, or None."""
    for start in (path.parent, root / "include", root / "src"):
        target = (start / name).resolve()
        if target.is_file() and target.is_relative_to(root.resolve()):
            return target.relative_to(root.resolve()).as_posix()
    return None


def third_party(name):
    """Neither the C++ standard library, the operating system nor the compiler's own intrinsics."""
    if "." not in name:
        return False
    return not name.endswith(".h") or ("/" in name and not name.startswith(("sys/", "linux/", "mach/")))


def check_includes_point_downward(root):
    problems = []
    for path in code_files(root, "src", "include"):
        here = path.relative_to(root)
        is_public = here.parts[0] == "include"
        if not is_public and len(here.parts) < 3:
            problems.append(f"{here}: lies in no folder of src/")
            continue
        for number, name, quoted in includes(path):
            place = f"{here}:{number}"
            target = resolve(root, path, name) if quoted or name.startswith("heed/") else None
            if target is None:
                if quoted:
                    problems.append(f'{place}: includes "{name}", which is nowhere in the tree')
                elif third_party(name):
                    problems.append(f"{place}: includes <{name}>, which belongs to a third party")
            elif target.startswith("include/"):
                continue
            elif is_public:
                problems.append(f"{place}: a public header includes {target}")
            elif not may_include(here.parts[1], target.removeprefix("src/")):
                problems.append(f"{place}: {here.parts[1]} may not include {target}")
    return problems


def check_the_tool_uses_only_the_public_api(root):
    problems = []
    for path in code_files(root, "cli", "examples"):
        here = path.relative_to(root)
        for number, name, quoted in includes(path):
            target = resolve(root, path, name) if quoted or name.startswith("heed/") else None
            if target and not target.startswith(("include/", here.parts[0] + "/")):
                problems.append(
                    f"{here}:{number}: {here.parts[0]} may include only include/heed, not {target}"
                )
    return problems


def check_names_say_something(root):
    return [
        f"{path.relative_to(root)}: a name that could hold anything"
        for path in source_files(root)
        if any(JUNK_DRAWER.fullmatch(part.split(".")[0]) for part in path.relative_to(root).parts)
    ]


def check_files_are_short(root):
    problems = []
    for path in source_files(root):
        here = path.relative_to(root)
        if path.suffix not in TEXT or here.as_posix().startswith("tests/fixtures/"):
            continue
        lines = lines_of(path)
        generated = any("generated by" in line.lower() for line in lines[:3])
        if len(lines) > LINE_LIMIT and not generated:
            problems.append(f"{here}: {len(lines)} lines, the limit is {LINE_LIMIT}")
    return problems


def check_code_names_its_licence(root):
    return [
        f"{path.relative_to(root)}: the first line is not the SPDX line"
        for path in code_files(root)
        if lines_of(path)[:1] != ["// SPDX-License-Identifier: Apache-2.0"]
    ]


def rules_named(root, folder):
    """The rules S1, S2, ..., G1, ..., O1, ... that comments in a folder name."""
    named = {}
    for path in code_files(root, folder):
        for number, line in enumerate(lines_of(path), 1):
            comment = line.partition("//")[2]
            for rule in re.findall(r"\b[SOG]\d+\b", comment):
                named.setdefault(rule, f"{path.relative_to(root)}:{number}")
    return named


def rules_specified(root):
    """Rule -> the folders that must name it: `### S15 Rotary (src/layer)` says so; without, it is the reference."""
    rules = {}
    for line in lines_of(root / "docs/spec.md"):
        found = re.match(r"### ([SOG]\d+)\b[^(]*(?:\((src/[^)]*)\))?", line)
        if found:
            rules[found[1]] = [f.strip() for f in (found[2] or "src/reference").split(",")]
    return rules


def check_spec_and_code_name_the_same_rules(root):
    specified = rules_specified(root)
    problems = [] if specified else ["docs/spec.md: no rules found"]
    named = {folder: rules_named(root, folder) for folders in specified.values() for folder in folders}
    for rule, folders in specified.items():
        for folder in folders if rule[0] in "SG" else []:
            if rule not in named[folder]:
                problems.append(f"docs/spec.md: {rule} is never named in {folder}")
    for rule, place in rules_named(root, "src/reference").items():
        if rule in specified and rule[0] in "SG" and "src/reference" not in specified[rule]:
            problems.append(
                f"{place}: names {rule}, which docs/spec.md gives to {', '.join(specified[rule])}"
            )
    for folder in ("src", "include"):
        for rule, place in rules_named(root, folder).items():
            if rule not in specified:
                problems.append(f"{place}: names {rule}, which docs/spec.md does not have")
    return problems


def check_rules_are_in_order(root):
    rules = list(rules_specified(root))
    return [
        f"docs/spec.md: {rule} comes after {before}"
        for before, rule in zip(rules, rules[1:])
        if rule[0] == before[0] and int(rule[1:]) <= int(before[1:])
    ]


# Comments, strings and characters, which may hold braces; and numbers, whose ' begins no character.
LITERAL = re.compile(
    r"""//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\b\d[\w']*|'(?:\\.|[^'\\\n])+'""", re.DOTALL
)
DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.MULTILINE)


def only_line_ends(found):
    return "\n" * found[0].count("\n")


def without_literals(text):
    return DIRECTIVE.sub(only_line_ends, LITERAL.sub(only_line_ends, text))


NAMESPACE = re.compile(r"\bnamespace\s+(heed[\w:]*(?:inline\s+\w+)?)\s*\{")
ONLY_USING = re.compile(r"(?:\s*using\s[^;{}]*;)*\s*\}")
ONLY_DECLARES = re.compile(r"(?:\s*(?:struct|class)\s+\w+;)*\s*\}")
# What a folder calls its namespace where that is not its own name.
NAMESPACE_OF = {"src/check": "checking", "src/plan": "planning", "src/refusal": "refusing", "cli": "tool"}


def api_namespace(root):
    """heed::inline v0_2 for version 0.2.x: what was compiled against another minor version does not link."""
    found = re.findall(r"define HEED_VERSION_(?:MAJOR|MINOR) (\d+)", (root / "include/heed/version.hpp").read_text())
    return f"heed::inline v{'_'.join(found)}"


def may_open(folder, namespace, rest):
    """May a file of `folder` open this namespace? `rest` is the text after its brace."""
    if folder == "include/heed":
        return bool(ONLY_DECLARES.match(rest))
    own = "heed::" + NAMESPACE_OF.get(folder, folder.rpartition("/")[2])
    if namespace == own or namespace.startswith(own + "::"):
        return True
    return namespace == "heed" and bool(ONLY_USING.match(rest))


def check_each_folder_has_its_namespace(root):
    """So that two folders cannot define one name: the linker would keep the functions of either.

    The API has the inline one of its version, and any folder of src/ may define what it declares. `namespace heed` itself
    holds nothing but using declarations, for the words that all folders share.
    """
    problems, api = [], api_namespace(root)
    for path in code_files(root, "include", "src", "cli", "python"):
        here = path.relative_to(root)
        folder = "/".join(here.parts[:2]) if here.parts[0] in ("include", "src") else here.parts[0]
        text = without_literals(path.read_text(encoding="utf-8", errors="replace"))
        for found in NAMESPACE.finditer(text):
            namespace = " ".join(found[1].split())
            is_api = namespace == api and folder.startswith(("include/", "src/"))
            if not is_api and not may_open(folder, namespace, text[found.end() :]):
                line = text.count("\n", 0, found.start()) + 1
                problems.append(f"{here}:{line}: {folder} may not define anything in {namespace}")
    return problems


# What is compiled together. Not backends: kernels do not throw, and those who would, copy and fill, have names of the
# standard library's.
COMPILED_TOGETHER = (("python",), ("include", "src"), ("cli",))


def check_at_most_one_argument_of_a_call_may_refuse(root):
    problems = []
    for folders in COMPILED_TOGETHER:
        paths = [
            path
            for path in code_files(root, *folders)
            if not any(path.is_relative_to(root / "src" / backend) for backend in BACKENDS)
        ]
        texts = {path: without_literals(path.read_text(encoding="utf-8", errors="replace")) for path in paths}
        refusing = argument_order.refusing_functions(texts.values())
        for path, text in texts.items():
            for line, name, found in argument_order.races(text, refusing):
                problems.append(
                    f"{path.relative_to(root)}:{line}: {' and '.join(found)} may refuse in one call of {name}; "
                    "which is first depends on the compiler"
                )
    return problems


CHECKS = [check for name, check in sorted(globals().items()) if name.startswith("check_")]


def main():
    root = pathlib.Path(sys.argv[1])
    problems = [problem for check in CHECKS for problem in check(root)]
    for problem in problems:
        print(problem)
    print(f"{len(CHECKS)} checks, {len(problems)} violations")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
