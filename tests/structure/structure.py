#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The shape of the source tree, as checks. `structure.py ROOT` prints every violation and fails if there is one.

Each check takes the root folder and returns sentences. planted_violations.py shows that every one of them can fail.
"""

import pathlib
import re
import sys

import argument_order

CODE = {".hpp", ".cpp", ".cu", ".cuh"}
TEXT = CODE | {".py", ".cmake", ".md", ".txt", ".in", ".json", ".js", ".css", ".html", ""}
LINE_LIMIT = 500
JUNK_DRAWER = re.compile(r"(utils?|common|helpers?|misc|core|base)", re.IGNORECASE)

# Data falls downward: a folder of src/ may include those after it, itself, and include/heed.
DEPTH = {"layer": 0, "problem": 1, "plan": 2, "check": 2, "cpu": 3, "cuda": 3, "mpi": 3, "reference": 3, "softmax": 4, "cache": 4, "rotary": 5,
         "refusal": 6}
# Beside that order: the plain data every kernel reads, and the arrays a layer's weights are made of.
ALLOWED_UPWARD = {"problem/problem.hpp", "problem/sequence.hpp"}
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
    if other == folder or target in ALLOWED_UPWARD or (folder, other) in ALLOWED_BESIDE:
        return True
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
    """The rules S1, S2, ..., O1, ... that comments in a folder name."""
    named = {}
    for path in code_files(root, folder):
        for number, line in enumerate(lines_of(path), 1):
            comment = line.partition("//")[2]
            for rule in re.findall(r"\b[SO]\d+\b", comment):
                named.setdefault(rule, f"{path.relative_to(root)}:{number}")
    return named


def rules_specified(root):
    """Rule -> the folders that must name it: `### S15 Rotary (src/layer)` says so; without, it is the reference."""
    rules = {}
    for line in lines_of(root / "docs/spec.md"):
        found = re.match(r"### ([SO]\d+)\b[^(]*(?:\((src/[^)]*)\))?", line)
        if found:
            rules[found[1]] = [f.strip() for f in (found[2] or "src/reference").split(",")]
    return rules


def check_spec_and_code_name_the_same_rules(root):
    specified = rules_specified(root)
    problems = [] if specified else ["docs/spec.md: no rules found"]
    named = {folder: rules_named(root, folder) for folders in specified.values() for folder in folders}
    for rule, folders in specified.items():
        for folder in folders if rule.startswith("S") else []:
            if rule not in named[folder]:
                problems.append(f"docs/spec.md: {rule} is never named in {folder}")
    for rule, place in rules_named(root, "src/reference").items():
        if rule in specified and rule.startswith("S") and "src/reference" not in specified[rule]:
            problems.append(
                f"{place}: names {rule}, which docs/spec.md gives to {', '.join(specified[rule])}"
            )
    for folder in ("src", "include"):
        for rule, place in rules_named(root, folder).items():
            if rule not in specified:
                problems.append(f"{place}: names {rule}, which docs/spec.md does not have")
    return problems


# Comments, strings and characters, which may hold braces; and numbers, whose ' begins no character.
LITERAL = re.compile(
    r"""//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\b\d[\w']*|'(?:\\.|[^'\\\n])+'""", re.DOTALL
)
DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.MULTILINE)
NAMESPACE = re.compile(r"\bnamespace\s*([\w:]*)$")
TYPE = re.compile(r"\b(?:struct|class|union|enum(?: class| struct)?) ([\w:]+(?: ?<.*>)?)(?: final)?(?: ?:(?!:).*)?$")


def without_arguments(head):
    """A declaration without attributes and without the <...> that follow `template`."""
    head = re.sub(r"\[\[.*?\]\]|\b(?:alignas|__attribute__)\s*\((?:[^()]|\([^()]*\))*\)+", " ", head)
    while found := re.search(r"\btemplate\s*<", head):
        depth, end = 1, found.end()
        while depth and end < len(head):
            depth += {"<": 1, ">": -1}.get(head[end], 0)
            end += 1
        head = head[: found.start()] + head[end:]
    return " ".join(head.split())


def only_line_ends(found):
    return "\n" * found[0].count("\n")


def without_literals(text):
    return DIRECTIVE.sub(only_line_ends, LITERAL.sub(only_line_ends, text))


def types_defined(text):
    """(line, qualified name) of every type that named namespaces hold; types within types belong to those.

    None in place of a name where the braces do not balance: then nothing can be said about the rest of the file.
    """
    text = without_literals(text)
    scopes, begin = [], 0  # what each open brace is: the name of a namespace, or None
    for found in re.finditer(r"[{};]", text):
        head, begin, line = text[begin : found.start()], found.end(), text.count("\n", 0, found.start()) + 1
        if found[0] == "}":
            if not scopes:
                yield line, None
                return
            scopes.pop()
        elif found[0] == "{":
            head = without_arguments(head)
            namespace, defined = NAMESPACE.search(head), TYPE.search(head)
            if defined and None not in scopes:
                yield line, "::".join([*scopes, defined[1].replace(" ", "")])
            scopes.append((namespace[1] or None) if namespace else None)
    if scopes:
        yield text.count("\n"), None


def check_types_have_one_definition(root):
    """Two types of one name are one to the linker, which keeps the functions of either. Unnamed namespaces keep them apart."""
    problems, places = [], {}
    for path in code_files(root, "include", "src", "cli", "python"):
        here = path.relative_to(root)
        for line, name in types_defined(path.read_text(encoding="utf-8", errors="replace")):
            if name is None:
                problems.append(f"{here}:{line}: the braces do not balance, so its types cannot be told")
            elif name.startswith("heed::") and places.setdefault(name, here) != here:
                problems.append(f"{here}:{line}: defines {name}, which {places[name]} defines as well")
    return problems


# What is compiled together. Kernels, in src/cpu, do not throw.
COMPILED_TOGETHER = (("python",), ("include", "src"), ("cli",))


def check_at_most_one_argument_of_a_call_may_refuse(root):
    problems = []
    for folders in COMPILED_TOGETHER:
        paths = [path for path in code_files(root, *folders) if not path.is_relative_to(root / "src/cpu")]
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
