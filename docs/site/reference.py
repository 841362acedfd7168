# SPDX-License-Identifier: Apache-2.0
"""Pages of the reference, made from the public headers and from the Python package as they are written.

A header's page has its declarations in their order: the comment as text, the code below it. `lost` names every line of code
that no page shows, every public name without an entry, and every exported function without a comment: then nothing is built.
"""

import ast
import dataclasses
import inspect
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]
HEADERS = ROOT / "include/heed"

# The order in which a reader meets them; a header that is not here comes after them.
FIRST = ("attention.hpp", "tensor.hpp", "mask.hpp", "cache.hpp", "layer.hpp", "gradient.hpp", "rotary.hpp", "stream.hpp")
MODULES = {
    "heed": "__init__.py",
    "heed.torch": "torch.py",
    "heed.jax": "jax.py",
    "heed.transformers": "transformers.py",
    "heed.onnx": "onnx/__init__.py",
    "heed.distributed": "distributed.py",
}


# ---- headers ----


@dataclasses.dataclass
class Entry:
    """A comment, the code below it, and the names that the code declares."""

    comment: list
    code: list
    names: list


def page_of_header(name):
    return "reference/c.md" if name == "c.h" else f"reference/cpp/{name.removesuffix('.hpp')}.md"


def headers():
    rest = sorted(path.name for path in HEADERS.iterdir() if path.name not in FIRST and path.name != "c.h")
    return [*FIRST, *rest, "c.h"]


def is_frame(line):
    """Lines of a header that declare nothing, or only that there is such a type."""
    return bool(re.match(r"(struct|class) \w+;$", line)) or bool(re.match(r'#\s*(pragma|include|if|ifdef|ifndef|endif|else|undef)|(inline )?namespace\b|\}  // namespace|extern "C"', line)) or (
        line.strip() == "}" or line.startswith(("#define HEED_C_H", "#define HEED_C_API"))
    )


def declared(code):
    """Names that lines of code declare at the outermost level, in order."""
    text = "\n".join(re.sub(r"//.*", "", line) for line in code)
    outer, depth = "", 0
    for letter in text:
        depth -= letter == "}"
        outer += letter if depth == 0 else ""
        depth += letter == "{"
    outer = re.sub(r"#if.*|#endif.*|#else.*", "", outer)
    while "template <" in outer:  # up to the bracket that closes it
        begin = end = outer.index("template <") + len("template <")
        depth = 1
        while depth:
            depth += (outer[end] == "<") - (outer[end] == ">")
            end += 1
        outer = outer[: begin - len("template <")] + outer[end:]
    outer = re.sub(r"(?m)^\s*requires\b.*$", "", outer)
    found = []
    for statement in re.split(r";|\}|(?=#define)", outer):
        statement = " ".join(statement.split())
        for pattern in (
            r"#define (\w+)",
            r"(?:struct|class|concept|enum class|enum|using|namespace)(?: HEED_API| HEED_C_API)? (\w+)",
            r"typedef .*?(\w+)(?: \{)?$",
            r"(operator ?\S+?|\b\w+) ?\((?!\()",
        ):
            match = re.search(pattern, statement)
            if match and not statement.startswith(("template class", "static_assert", "friend class", "requires")):
                found.append(match[1])
                break
    return list(dict.fromkeys(name for name in found if name != "requires"))


def entries(text):
    """The first comment of a header, and its entries."""
    lines = text.splitlines()[1:]
    intro = []
    while lines and lines[0].startswith("//"):
        intro.append(lines.pop(0))
    found, comment, code, depth = [], [], [], 0

    def close():
        nonlocal comment, code
        if any(line.strip() for line in code):
            found.append(Entry(comment, code, declared(code)))
            comment, code = [], []

    for line in lines:
        if depth == 0 and not code and is_frame(line):
            continue
        if depth == 0 and not line.strip():
            close()
        elif depth == 0 and line.startswith("//"):
            if code:
                close()
            comment.append(line)
        elif depth == 0 and is_frame(line) and not line.startswith("#define"):
            close()
        else:
            code.append(line)
            depth += line.count("{") - line.count("}")
    close()
    return intro, found


def rules():
    """The rules S1, G1, O1, ... -> their places in docs/spec.md."""
    found = re.findall(r"^### (([SGO]\d+) .*)$", (ROOT / "docs/spec.md").read_text(), re.MULTILINE)
    return {rule: re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading, rule in found}


RULES = rules()


def escaped(text):
    """Text that Markdown shows as it is; code between backticks needs no help."""
    return re.sub(r"(`+[^`]*`+)|([*_<>\[\]#|\\])", lambda found: found[1] or "\\" + found[2], text)


def as_text(comment, up="../../"):
    """The lines of a comment as Markdown, with links to the rules and pages that it names."""
    paragraphs = "\n".join(line.removeprefix("//").strip() for line in comment).split("\n\n")
    text = "\n\n".join(escaped(" ".join(paragraph.split())) for paragraph in paragraphs)
    text = re.sub(r"\bdocs/(\w+\.md)", rf"[\1]({up}\1)", text)
    return re.sub(r"\b([SGO]\d+)\b", lambda rule: f"[{rule[0]}]({up}spec.md#{RULES[rule[0]]})" if rule[0] in RULES else rule[0], text)


def title(names):
    return ", ".join(f"`{name}`" for name in names)


def page_of_entries(name, intro, found):
    language, up = ("c", "../") if name == "c.h" else ("cpp", "../../")
    text = f"# `<heed/{name}>`\n\n{as_text(intro, up)}\n"
    taken = set()
    for entry in found:
        anchors = [other for other in entry.names if other not in taken]
        if entry.names and not anchors:  # an overload far from the first
            anchors = [next(other for n in range(2, 99) if (other := f"{entry.names[0]}-{n}") not in taken)]
        taken |= set(anchors)
        if entry.names:
            text += f"\n## {title(entry.names)}" + (f" {{ #{anchors[0]} }}\n" if anchors else "\n")
            text += "".join(f'<a id="{other}"></a>' for other in anchors[1:]) + "\n"
        text += f"\n{as_text(entry.comment, up)}\n\n```{language}\n" + "\n".join(entry.code) + "\n```\n"
    return text


def table_of_headers():
    """Every header with the first sentence of its comment: heed.hpp declares nothing itself, and its page lists the others."""
    rows = ""
    for name in headers():
        if name != "heed.hpp":
            first = as_text(entries((HEADERS / name).read_text())[0]).partition(". ")[0].rstrip(".")
            rows += f"| [{name}]({'../c.md' if name == 'c.h' else name.replace('.hpp', '.md')}) | {first} |\n"
    return "\n| header | what it has |\n|---|---|\n" + rows


def unexplained(entry):
    return not entry.comment and not any("//" in line for line in entry.code)


def lost(name, text, intro, found):
    """What the page of a header lacks, as sentences."""
    shown = {line.strip() for entry in found for line in [*entry.comment, *entry.code]} | set(intro)
    problems = [
        f"include/heed/{name}:{number}: the reference does not show {line.strip()!r}"
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip() and number > 1 and not is_frame(line) and line.strip() not in shown
    ]
    # What a shared library exports, and what C declares, found in another way.
    names = {other for entry in found for other in entry.names}
    plain = re.sub(r"//.*", "", text)
    public = set(re.findall(r"^(?:struct|class|enum class|enum) (?:HEED_API )?(\w+)[^;]*?\{", plain, re.MULTILINE))
    public |= set(re.findall(r"^HEED_API [^;{(]*?\b(\w+)\(", plain, re.MULTILINE))
    public |= set(re.findall(r"^HEED_C_API [^;]*?\b(heed_\w+)\(", plain, re.MULTILINE))
    problems += [f"include/heed/{name}: the reference has no entry for {other}" for other in sorted(public - names)]
    return problems + [
        f"include/heed/{name}: {', '.join(entry.names)} has no comment"
        for entry in found
        if any(line.startswith("HEED_API") for line in entry.code) and unexplained(entry)
    ]


def can_fail():
    """Whether a function that the page lacks, and one without a comment, are noticed."""
    text = "// licence\n// About.\n#pragma once\n\nHEED_API void plain();\n\n// Explained.\nHEED_API void other(int);\n"
    intro, found = entries(text)
    whole, without = lost("x.hpp", text, intro, found), lost("x.hpp", text, intro, found[:1])
    return len(whole) == 1 and "plain has no comment" in whole[0] and any("no entry for other" in problem for problem in without)


# ---- Python ----


def definitions(path):
    """Every function and class at the outermost level of a Python file; of overloads the last."""
    return {node.name: node for node in ast.parse(path.read_text()).body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}


def names_of(path):
    """__all__ of a module."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return ast.literal_eval(node.value)
    raise ValueError(f"{path}: has no __all__")


def sources(module):
    """Files in which what a module offers may be defined, the first that has it."""
    folder = ROOT / "python/heed"
    own = folder / MODULES[module]
    beside = {"heed.torch": "_torch*.py", "heed.transformers": "_transformers*.py"}
    if module == "heed.onnx":
        return [own, *sorted((folder / "onnx").glob("_*.py"))]
    if module == "heed":
        return [own, folder / "_heed.pyi", *sorted(folder.glob("_[!t]*.py"))]
    return [own, *sorted(folder.glob(beside.get(module, "_errors.py"))), folder / "_heed.pyi"]


def signature(node, prefix=""):
    """A function's name and arguments, one to a line where they do not fit one."""
    arguments = ast.unparse(node.args)
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    line = f"{prefix}{node.name}({arguments}){returns}"
    if len(line) <= 90:
        return line
    parts, depth, start = [], 0, 0
    for place, letter in enumerate(arguments):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append(arguments[start:place].strip())
            start = place + 1
    parts.append(arguments[start:].strip())
    rows = [""]
    for part in parts:
        if len(rows[-1]) + len(part) > 84:
            rows.append("")
        rows[-1] += f"{part}, "
    return f"{prefix}{node.name}(\n" + "\n".join(f"    {row.strip()}" for row in rows).rstrip(",") + f"\n){returns}"


def as_table(lines):
    """Lines of names and what they mean, in columns; deeper lines go on with the one before."""
    rows, depth = [], min(len(line) - len(line.lstrip()) for line in lines)
    for line in lines:
        found = re.fullmatch(rf" {{{depth}}}(\S.*?) {{2,}}(\S.*)", line)
        if found:
            rows.append([found[1], found[2]])
        elif rows:
            rows[-1][1] += " " + line.strip()
        else:
            return "\n```text\n" + inspect.cleandoc("\n" + "\n".join(lines)) + "\n```\n"
    named = (", ".join(f"`{name}`" for name in names.split(", ")) for names, _ in rows)
    return "\n| name | meaning |\n|---|---|\n" + "".join(f"| {names} | {escaped(meaning)} |\n" for names, (_, meaning) in zip(named, rows)) + "\n"


def documentation(node):
    """A docstring as Markdown: paragraphs, lists in columns as they are, and sessions."""
    text = inspect.cleandoc(ast.get_docstring(node) or "")
    prose, _, session = text.partition(">>> ")
    session, _, rest = session.partition(next(iter(re.findall(r"\n\n(?!>>>).", session, re.DOTALL)), "\0"))
    prose += "\n" + text[text.rindex(rest) - 1 :] if rest else ""
    made, columns = "", []

    def flush():
        nonlocal made, columns
        if columns:
            made += as_table(columns)
            columns = []

    for line in prose.rstrip().splitlines():
        if line.startswith("  "):
            columns.append(line)
        else:
            flush()
            made += escaped(line) + "\n"
    flush()
    return made + (f"\n```pycon\n>>> {session.rstrip()}\n```\n" if session else "")


def members(node):
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and (not member.name.startswith("_") or member.name in ("__call__", "__init__")):
            decorators = {ast.unparse(decorator) for decorator in member.decorator_list}
            if "overload" in decorators and not ast.get_docstring(member):
                continue
            if ast.get_docstring(member) or member.name == "__init__":
                yield member, decorators


def page_of_module(module, problems):
    own = ROOT / "python/heed" / MODULES[module]
    text = f"# `{module}`\n\n{documentation(ast.parse(own.read_text()))}\n"
    files = [definitions(path) for path in sources(module)]
    for name in names_of(own):
        node = next((file[name] for file in files if name in file), None)
        if node is None:
            if not name.startswith("__"):
                problems.append(f"{module}.{name}: is offered and defined nowhere that the reference looks")
            continue
        text += f"\n## `{module}.{name}` {{ #{module}.{name} }}\n"
        if not ast.get_docstring(node):
            problems.append(f"{module}.{name}: has no docstring")
        if isinstance(node, ast.FunctionDef):
            text += f"\n```python\n{signature(node)}\n```\n\n{documentation(node)}\n"
            continue
        text += f"\n{documentation(node)}\n"
        for member, decorators in members(node):
            if "property" in decorators:
                returns = ast.unparse(member.returns) if member.returns else "Any"
                text += f"\n`{member.name}: {returns}`\n\n{documentation(member)}\n"
            elif member.name == "__init__":
                text += f"\n```python\n{signature(member).replace('__init__', name, 1)}\n```\n"
            else:
                text += f"\n### `{name}.{member.name}` {{ #{module}.{name}.{member.name.strip('_')} }}\n"
                text += f"\n```python\n{signature(member)}\n```\n\n{documentation(member)}\n"
    return text


# ---- all of it ----


def page_of_python(module):
    return "reference/python.md" if module == "heed" else f"reference/python/{module.partition('.')[2]}.md"


def sections():
    """Title -> {title: page}, as the navigation has them."""
    return {
        "C++ headers": {name: page_of_header(name) for name in headers() if name != "c.h"},
        "C header": {"c.h": "reference/c.md"},
        "Python": {module: page_of_python(module) for module in MODULES},
    }


def pages():
    made, problems = {}, [] if can_fail() else ["the check of the reference misses a planted omission"]
    for name in headers():
        text = (HEADERS / name).read_text()
        intro, found = entries(text)
        problems += lost(name, text, intro, found)
        made[page_of_header(name)] = page_of_entries(name, intro, found) + (table_of_headers() if name == "heed.hpp" else "")
    for module in MODULES:
        made[page_of_python(module)] = page_of_module(module, problems)
    if problems:
        raise ValueError("the reference is not complete:\n" + "\n".join(problems))
    return made


if __name__ == "__main__":
    print(f"{len(pages())} pages")
