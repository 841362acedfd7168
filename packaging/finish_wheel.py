#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""finish_wheel.py WHEEL FOLDER NAME COMPILER: writes the wheel into a folder, under the name of a distribution (heed, or heed-cuda13 for
one with the CUDA backend), with a list of what is compiled into it in dist-info/sboms (PEP 770)."""

import importlib.metadata
import json
import pathlib
import re
import subprocess
import sys
import tempfile

# name: (licence, header with the version, how the version is written there)
LIBRARIES = {
    "CLI11": ("BSD-3-Clause", "CLI/Version.hpp", [r'CLI11_VERSION "([\d.]+)"']),
    "nlohmann-json": (
        "MIT",
        "nlohmann/detail/abi_macros.hpp",
        [rf"NLOHMANN_JSON_VERSION_{part} (\d+)" for part in ("MAJOR", "MINOR", "PATCH")],
    ),
    "fmt": ("MIT", "fmt/core.h", [r"FMT_VERSION (\d+)"]),
}


def version_of(header, patterns):
    for folder in ("/usr/include", "/usr/local/include"):
        path = pathlib.Path(folder, header)
        if path.is_file():
            text = path.read_text()
            version = ".".join(re.search(pattern, text)[1] for pattern in patterns)
            # fmt has one number: 90100 is 9.1.0.
            return version if "." in version else f"{int(version) // 10000}.{int(version) // 100 % 100}.{int(version) % 100}"
    return "unknown"


def component(name, version, licence):
    known = {"expression": licence} if " " in licence else {"license": {"id": licence}}
    return {"type": "library", "name": name, "version": version, "licenses": [known]}


def components(name, compiler):
    found = [component(library, version_of(*rest), licence) for library, (licence, *rest) in LIBRARIES.items()]
    found.append(component("nanobind", importlib.metadata.version("nanobind"), "BSD-3-Clause"))
    version = subprocess.run([compiler, "-dumpfullversion"], capture_output=True, text=True, check=True).stdout.strip()
    found.append(component("libstdc++", version, "GPL-3.0-or-later WITH GCC-exception-3.1"))
    if "cuda" in name:
        told = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True).stdout
        runtime = component("CUDA runtime", re.search(r"V([\d.]+)", told)[1], "")
        runtime["licenses"] = [{"license": {"name": "NVIDIA CUDA Toolkit End User License Agreement"}}]
        found.append(runtime)
    return found


def rename(unpacked, name):
    """The name of the distribution, and with it that of the folders that begin with it."""
    (information,) = unpacked.glob("*.dist-info")
    metadata = information / "METADATA"
    metadata.write_text(re.sub(r"^Name: .*$", f"Name: {name}", metadata.read_text(), count=1, flags=re.MULTILINE))
    version = information.name.removesuffix(".dist-info").split("-")[1]
    for kind in ("data", "dist-info"):
        for folder in unpacked.glob(f"*.{kind}"):
            folder.rename(unpacked / f"{name.replace('-', '_')}-{version}.{kind}")
    return version


def main():
    wheel, into, name, compiler = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "wheel", "unpack", "--dest", folder, wheel], check=True, stdout=subprocess.DEVNULL)
        (unpacked,) = pathlib.Path(folder).iterdir()
        version = rename(unpacked, name)
        (information,) = unpacked.glob("*.dist-info")
        bill = {
            "bomFormat": "CycloneDX",
            "specVersion": "1.6",
            "version": 1,
            "metadata": {"component": component(name, version, "Apache-2.0")},
            "components": components(name, compiler),
        }
        (information / "sboms").mkdir(exist_ok=True)
        (information / "sboms/heed.cdx.json").write_text(json.dumps(bill, indent=2) + "\n")
        subprocess.run([sys.executable, "-m", "wheel", "pack", "--dest-dir", into, unpacked], check=True, stdout=subprocess.DEVNULL)


main()
