#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A page's scripts: `scripts.py SCRIPT...`, in the order of the page, prints what is wrong and fails if anything is.

Each is a module of one idea: it parses (by node), imports what it uses of others before it and nothing else, and touches neither
the network nor markup made from text. All of them joined, as the page has them, parse as well: no name stands twice. The
folder of the last has no others; those of another folder are another page's too.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

LONGEST = 300
FORBIDDEN = {
    "innerHTML": "text would become markup",
    "outerHTML": "text would become markup",
    "insertAdjacentHTML": "text would become markup",
    "document.write": "text would become markup",
    "eval(": "text would become code",
    "new Function": "text would become code",
    "fetch(": "the page needs no network",
    "XMLHttpRequest": "the page needs no network",
    "WebSocket": "the page needs no network",
    "http://": "the page needs no network",
    "https://": "the page needs no network",
    "var ": "const and let have a scope",
    "console.": "left over from a search for a mistake",
}
ALLOWED = ['"http://www.w3.org/2000/svg"']  # a name, not a place


def without_comments(text):
    return re.sub(r"(?m)(^|\s)//.*$", "", text)


def without_texts(code):
    """Without comments, imports and what is quoted, but with what templates compute."""
    code = re.sub(r'(?m)^import .*$|"(?:[^"\\\n]|\\.)*"', "", without_comments(code))
    kept, inside = [], []  # of templates (`) and of what they compute ({)
    for at, c in enumerate(code):
        is_text = bool(inside) and inside[-1] == "`"
        if c == "`":
            inside.pop() if is_text else inside.append(c)
        elif c == "{" and (not is_text or code[at - 1] == "$"):
            inside.append(c)
        elif c == "}" and not is_text:
            inside.pop()
        kept.append(" " if is_text else c)
    return "".join(kept)


def syntax(text):
    with tempfile.NamedTemporaryFile("w", suffix=".mjs", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        ran = subprocess.run(["node", "--check", file.name], capture_output=True, text=True)
    return [line for line in ran.stderr.splitlines() if "Error" in line]


def imports(text):
    for names, source in re.findall(r'^import \{ ([^}]*) \} from "[./\w]*/(\w+)\.js";$', text, re.MULTILINE):
        yield from ((name, source) for name in names.split(", "))


def exports(text):
    return set(re.findall(r"^export (?:async )?(?:const|let|function|class) (\w+)", text, re.MULTILINE))


def declared(text):
    return re.findall(r"^(?:async )?(?:const|let|function|class) (\w+)", text, re.MULTILINE)


def complaints(name, texts):
    text, code = texts[name], without_comments(texts[name])
    for allowed in ALLOWED:
        code = code.replace(allowed, '""')
    lines = text.splitlines()
    if lines[0] != "// SPDX-License-Identifier: Apache-2.0" or not lines[1].startswith("// "):
        yield "does not begin with its licence and what it is for"
    if len(lines) > LONGEST:
        yield f"{len(lines)} lines, the limit is {LONGEST}"
    for word, why in FORBIDDEN.items():
        if word in code:
            yield f"{word}: {why}"
    if re.search(r"[^=!]==[^=]|!=[^=]", code):
        yield "== compares what it has converted; === does not"
    for imported, source in imports(text):
        if imported not in exports(texts.get(source, "")):
            yield f"imports {imported}, which {source}.js does not export"
        if len(re.findall(rf"\b{imported}\b", code)) < 2:
            yield f"imports {imported} and does not use it"
    if len(re.findall(r"^import ", text, re.MULTILINE)) != len({source for _, source in imports(text)}):
        yield "has an import that is not on one line, or two of one file"
    for own in declared(text):
        if len(re.findall(rf"\b{own}\b", code)) < 2:
            yield f"declares {own} and does not use it"
    yield from syntax(text)


# How a name comes about where it is used: declared, taken apart, a parameter.
BOUND = (r"\b(?:const|let|class|function) {0}\b", r"\b(?:const|let) [\[{{][^=]*\b{0}\b[^=]* =", r"\([^()]*\b{0}\b[^()]*\) (?:=>|{{)", r"\b{0} =>",
         r"\(\{{[^}}]*\b{0}\b")  # fmt: skip


def borrowed(name, texts):
    """Names of other scripts that it uses and does not import: joined, they are found, and are another's."""
    code, imported = without_texts(texts[name]), {each for each, _ in imports(texts[name])}
    for other in texts.keys() - {name}:
        for word in sorted({*declared(texts[other]), *exports(texts[other])} - imported):
            is_used = re.search(rf"(?<![.\w]){word}\b(?!\s*:)", code)
            if is_used and not any(re.search(bound.format(word), code) for bound in BOUND):
                yield f"{name}.js: uses {word} of {other}.js and does not import it"


def unwanted_exports(name, texts):
    for exported in exports(texts[name]):
        if not any((exported, name) in set(imports(other)) for other in texts.values()):
            yield f"{name}.js: exports {exported}, which nobody imports"


def misplaced_imports(name, order, texts):
    for _, source in imports(texts[name]):
        if source in order and order.index(source) > order.index(name):
            yield f"{name}.js: imports {source}.js, which the page has after it"


def main():
    paths = [pathlib.Path(path) for path in sys.argv[1:]]
    order, own = [path.stem for path in paths], paths[-1].parent
    texts = {path.stem: path.read_text(encoding="utf-8") for path in paths}
    problems = [f"{name}.js: {problem}" for name in texts for problem in complaints(name, texts)]
    for path in paths:
        if path.parent == own:
            problems += unwanted_exports(path.stem, texts)
        problems += misplaced_imports(path.stem, order, texts)
        problems += borrowed(path.stem, texts)
    problems += [f"{path}: no page has it" for path in own.glob("*.js") if path not in paths]
    joined = "\n".join(re.sub(r"(?m)^import .*$|^export ", "", texts[name]) for name in order)
    problems += [f"all scripts together: {problem}" for problem in syntax(joined)]
    for problem in problems:
        print(problem)
    print(f"{len(texts)} scripts, {len(problems)} complaints")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
