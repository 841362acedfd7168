# SPDX-License-Identifier: Apache-2.0
"""One fault: where, which exact text, what instead, and what that breaks."""

import dataclasses

ALGORITHM = "src/cpu/algorithm/"
ARM = ("aarch64", "arm64")
X86 = ("x86_64", "AMD64")


@dataclasses.dataclass(frozen=True)
class Fault:
    name: str
    file: str
    old: str
    new: str
    breaks: str
    machine: tuple = ()  # where it can be noticed; everywhere if empty
    emulated: bool = False  # in Arm's bf16 kernels, which are tested under QEMU
