#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/commands.md as the tool's own help says it: `commands.py HEED --write` makes the page again, `commands.py HEED` says
whether it is as it should be."""

import pathlib
import re
import subprocess
import sys

PAGE = pathlib.Path(__file__).parents[1] / "commands.md"
INTRO = """# Commands

The `heed` command comes with the [library and the Python package](building.md). This is what `heed --help` and `heed COMMAND --help` print. Exit status 0 is done, 1 a
failed check, 2 bad usage or input, 130 interrupted. Every command takes `--json`, and then prints
one object; [tool.schema.json](tool.schema.json) says what is in it. Ctrl-C leaves no half of a file: `heed bench` and `heed check` end with what
they have, the others with nothing; a second Ctrl-C ends at once.

```sh
heed demo                                                              # MHA, GQA and MQA on this machine
heed run --heads 12 --length 64 --save-layer mha.safetensors           # a layer on random or given input
heed convert mha.safetensors gqa.safetensors --heads 12 --kv-heads 6   # fewer KV heads, by averaging
heed run --heads 12 --kv-heads 6 --length 64 --weights gqa.safetensors --out y.npy
heed check --heads 8 --kv-heads 2 --length 64 --causal                 # every kernel against the reference
heed check --backward --length 64 --causal                             # and its gradients
heed explain --heads 8 --length 64                                     # which kernel, and why not the others
heed view --out attention.html                                         # a page that shows attention, for any browser
heed doctor                                                            # what this machine offers
heed completion bash                                                   # a script to source: commands, flags and choices; also zsh and fish
```

"""


def help_of(tool, *command):
    return subprocess.run([tool, *command, "--help"], check=True, capture_output=True, text=True).stdout


def page_of(tool):
    general = help_of(tool)
    names = re.findall(r"^  (\w+) {2,}", general.split("Subcommands:")[1].split("\n\n")[0], re.MULTILINE)
    text = INTRO + f"```text\n{general.strip()}\n```\n"
    for name in names:
        lines = help_of(tool, name).strip().splitlines()
        text += f"\n## `heed {name}`\n\n{lines[0]}.\n\n```text\n" + "\n".join(lines[1:]) + "\n```\n"
    return text


def main():
    text = page_of(sys.argv[1])
    if "--write" in sys.argv:
        PAGE.write_text(text)
    elif PAGE.read_text() != text:
        print("docs/commands.md is not what the tool says: docs/site/commands.py HEED --write makes it again")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
