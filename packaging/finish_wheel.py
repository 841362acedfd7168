#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""finish_wheel.py WHEEL FOLDER NAME COMPILER: writes the wheel into a folder, under the name of a distribution (heed, or heed-cuda13 for
one with the CUDA backend), with a list of what is compiled into it in dist-info/sboms (PEP 770)."""

import base64
import hashlib
import importlib.metadata
import json
import pathlib
import re
import subprocess
import sys
import zipfile

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


def under_name(name, path, version):
    """A path of the wheel, whose folders of metadata and data begin with the name of the distribution."""
    return re.sub(r"^[^/]+?-[^/]+\.(dist-info|data)/", rf"{name.replace('-', '_')}-{version}.\1/", path)


def record_of(files):
    """RECORD: a line for each file with its hash and size, and one for itself without."""
    for path, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        yield f"{path},sha256={digest},{len(content)}\n"


def main():
    wheel, into, name, compiler = sys.argv[1:]
    _, version, *tags = pathlib.Path(wheel).name.split("-")
    information = f"{name.replace('-', '_')}-{version}.dist-info"
    with zipfile.ZipFile(wheel) as read:
        entries = {under_name(name, entry.filename, version): entry for entry in read.infolist() if not entry.is_dir()}
        record = entries.pop(f"{information}/RECORD")
        files = {path: read.read(entry) for path, entry in entries.items()}
    metadata = files[f"{information}/METADATA"].decode()
    files[f"{information}/METADATA"] = re.sub(r"^Name: .*$", f"Name: {name}", metadata, count=1, flags=re.MULTILINE).encode()
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": component(name, version, "Apache-2.0")},
        "components": components(name, compiler),
    }
    files[f"{information}/sboms/heed.cdx.json"] = (json.dumps(bill, indent=2) + "\n").encode()
    files[f"{information}/RECORD"] = "".join([*record_of(files), f"{information}/RECORD,,\n"]).encode()
    with zipfile.ZipFile(pathlib.Path(into, "-".join([name.replace("-", "_"), version, *tags])), "w", zipfile.ZIP_DEFLATED) as written:
        for path, content in files.items():
            like = entries.get(path, record)
            entry = zipfile.ZipInfo(path, like.date_time)
            entry.external_attr, entry.compress_type = like.external_attr, zipfile.ZIP_DEFLATED
            written.writestr(entry, content, compresslevel=9)


main()
