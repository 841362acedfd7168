# SPDX-License-Identifier: Apache-2.0
"""The extension module shows the process its init function and nothing else: neither the library in it nor, where that is
linked in too, the C++ standard library can be mixed up with another copy."""

import os
import pathlib
import shlex
import shutil
import subprocess
import sys


import heed
from heed import _heed

ROOT = pathlib.Path(__file__).parents[2]
BUILD = ROOT / "build/package"  # where scripts/test builds the package

CALL = """
import numpy as np, heed
x = np.ones((2, 8), np.float32)
print(heed.__version__, heed.attention(x, x, x).sum(), heed.get_num_threads() > 0, heed.__file__)
try:
    heed.attention(x, x, x, scale=float("inf"))
except heed.Error as error:
    print(error)
"""


def exported(module):
    listed = subprocess.run(["nm", "-D", "--defined-only", module], check=True, capture_output=True, text=True)
    return {line.split()[-1] for line in listed.stdout.splitlines()}


def run(program, **environment):
    environment = os.environ | environment
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd="/", env=environment)


def test_the_extension_exports_its_init_function_only():
    assert exported(_heed.__file__) == {"PyInit__heed"}


def test_another_copy_of_the_library_in_the_process_does_not_answer(tmp_path):
    """As in a program that links the library itself and runs Python."""
    source, stranger = tmp_path / "stranger.cpp", tmp_path / "libstranger.so"
    source.write_text('namespace heed { const char* version() { return "a stranger"; } int num_threads() { return -1; } }')
    subprocess.run(["c++", "-shared", "-fPIC", "-o", stranger, source], check=True)
    ran = run(CALL, LD_PRELOAD=str(stranger))
    assert ran.stdout.startswith(f"{heed.__version__} 16.0 True"), ran.stderr


def test_a_module_with_the_standard_library_in_it_exports_no_more_and_works(tmp_path):
    """As compilers link it that must not rely on the system's."""
    assert (BUILD / "build.ninja").is_file(), f"{BUILD} holds no build of the package; scripts/test makes one"
    commands = subprocess.run(["ninja", "-t", "commands", "heed_python"], cwd=BUILD, check=True, capture_output=True, text=True)
    link = shlex.split(commands.stdout.splitlines()[-1])
    link = [word for word in link if word not in (":", "&&")]
    package = shutil.copytree(pathlib.Path(heed.__file__).parent, tmp_path / "heed")
    module = package / pathlib.Path(_heed.__file__).name
    link[link.index("-o") + 1] = str(module)
    subprocess.run([*link, "-static-libstdc++", "-static-libgcc"], cwd=BUILD, check=True)
    assert exported(module) == {"PyInit__heed"}
    undefined = subprocess.run(["nm", "-D", "--undefined-only", "-C", module], check=True, capture_output=True, text=True)
    assert "std::" not in undefined.stdout
    for neighbour in ("", "import torch\n"):
        ran = run(neighbour + CALL, PYTHONPATH=str(tmp_path))
        assert ran.stdout.splitlines() == [
            f"{heed.__version__} 16.0 True {package}/__init__.py", "scale: inf is not a finite number"
        ], ran.stderr  # fmt: skip
