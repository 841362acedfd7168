# SPDX-License-Identifier: Apache-2.0
"""Calls whose answer depends on which argument is evaluated first, which C++ leaves to the compiler: g++ goes from right to
left on x86 and from left to right on Arm. Where two arguments of one call may refuse, the one that is named would differ.

Read from the text alone: a function may refuse if its body throws or calls one that may; names stand for all functions of
that name. Braced lists are ordered and count as one argument. Operators are not looked at.
"""

import re

KEYWORDS = {"if", "for", "while", "switch", "catch", "return", "sizeof", "alignof", "decltype", "noexcept", "throw", "new"}
# Refuses only what is no Element at all, which no caller has.
NEVER_REFUSES = {"facts_of"}
CLOSING = {"(": ")", "{": "}", "[": "]"}
NAME = re.compile(r"(~?\w+)\s*(?:<[\w:, *&]*>)?\s*\(")
AFTER_PARAMETERS = re.compile(r"\s*(?:(?:const|noexcept|override|final|&&?)\s*)*(?:->\s*[\w:<>, *&]+)?")
INITIALISER = re.compile(r"\s*[:,]\s*[\w:]+(?:<[^;{}()]*>)?\s*(?=[({])")
IS_INITIALISER = re.compile(r"(?:,|(?<!:):)\s*$")  # what stands before the name
LAMBDA = re.compile(r"\[[^\[\]]*\]\s*(?=[({])")


def end_of(text, begin):
    """The place after the bracket that closes the one at `begin`."""
    depth = 0
    for found in re.compile(r"[(){}\[\]]").finditer(text, begin):
        depth += 1 if found[0] in CLOSING else -1
        if depth == 0:
            return found.end()
    return len(text)


def body_of(text, end):
    """(begin, end) of what a function whose parameters end at `end` does, initialisers included; None for a call."""
    begin = end = AFTER_PARAMETERS.match(text, end).end()
    while item := INITIALISER.match(text, end):
        end = end_of(text, item.end())
    brace = re.compile(r"\s*\{").match(text, end)
    return (begin, end_of(text, brace.end() - 1)) if brace else None


def named_parentheses(text):
    """(name, begin, end, body) of everything that reads name(...), calls and definitions alike."""
    for found in NAME.finditer(text):
        if found[1] not in KEYWORDS:
            end = end_of(text, found.end() - 1)
            is_initialiser = IS_INITIALISER.search(text, max(0, found.start() - 80), found.start())
            yield found[1], found.end(), end - 1, None if is_initialiser else body_of(text, end)


def without_lambdas(text):
    """What a call evaluates: a lambda among its arguments is made and not run."""
    while found := LAMBDA.search(text):
        end = end_of(text, found.end())
        if text[found.end()] == "(":
            body = body_of(text, end)
            end = body[1] if body else end
        text = text[: found.start()] + " " + text[end:]
    return text


def split_arguments(text):
    begin = at = 0
    while at < len(text):
        if text[at] in CLOSING:
            at = end_of(text, at)
            continue
        if text[at] == ",":
            yield text[begin:at]
            begin = at + 1
        at += 1
    yield text[begin:]


def names_called(text):
    return {found[1] for found in NAME.finditer(without_lambdas(text))}


def refusing_functions(texts):
    """The names of the functions that may refuse, directly or through another."""
    called, refusing = {}, set()
    for text in texts:
        for name, _, _, body in named_parentheses(text):
            if body:
                inside = text[slice(*body)]
                called.setdefault(name, set()).update(found[1] for found in NAME.finditer(inside))
                if name not in NEVER_REFUSES and re.search(r"\bthrow\b", inside):
                    refusing.add(name)
    while more := {name for name, calls in called.items() if name not in refusing and calls & refusing}:
        refusing |= more
    return refusing


def races(text, refusing):
    """(line, name of the function called, the arguments that may refuse) of every call that has two of them."""
    for name, begin, end, body in named_parentheses(text):
        if body:
            continue
        found = [sorted(names) for a in split_arguments(text[begin:end]) if (names := names_called(a) & refusing)]
        if len(found) > 1:
            yield text.count("\n", 0, begin) + 1, name, [names[0] for names in found]
