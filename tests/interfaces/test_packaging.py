# SPDX-License-Identifier: Apache-2.0
"""The recipes of packaging/ are of this version and name options that exist, and a wheel says what it is made of. What builds and uses
the packages is scripts/first-result."""

import base64
import hashlib
import json
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGING = ROOT / "packaging"


def version():
    return ".".join(re.findall(r"define HEED_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", (ROOT / "include/heed/version.hpp").read_text()))


def options_of_the_build():
    files = [ROOT / "CMakeLists.txt", ROOT / "python/CMakeLists.txt"]
    return {name for file in files for name in re.findall(r"(?:option|set)\((HEED_\w+)", file.read_text())}


# Whatever says the version in a place of its own: file, how it says it, and the parts that count there.
SAID = [
    ("packaging/vcpkg/heed/vcpkg.json", r'"version": "([\d.]+)"', 3),
    ("packaging/conda/recipe.yaml", r'^  version: "([\d.]+)"', 3),
    ("python/heed/_heed.pyi", r"^version: str = '([\d.]+)'", 3),
    ("include/heed/version.hpp", r"inline v(\d+_\d+):", 2),
    ("include/heed/version.hpp", r'version\(\);  // "([\d.]+)"', 3),
    ("CHANGELOG.md", r"^## \[(\d[\d.]+)\]", 3),
    ("tests/interfaces/consumers/find_package/CMakeLists.txt", r"^find_package\(heed ([\d.]+) CONFIG", 2),
    ("tests/interfaces/consumers/c_alone/CMakeLists.txt", r"^find_package\(heed ([\d.]+) CONFIG", 2),
    ("docs/start.md", r"find_package\(heed ([\d.]+) CONFIG", 2),
    ("docs/building.md", r"find_package\(heed ([\d.]+) CONFIG", 2),
    ("docs/building.md", r"heed_([\d.]+)_amd64\.deb", 3),
    ("docs/building.md", r"This makes `libheed\.so\.([\d.]+)`", 2),
    ("docs/building.md", r"inline namespace, `heed::v(\d+_\d+)`", 2),
]


@pytest.mark.parametrize(("path", "pattern", "parts"), SAID)
def test_the_version_is_the_same_everywhere(path, pattern, parts):
    found = re.search(pattern, (ROOT / path).read_text(), re.MULTILINE)
    assert found, f"{path} does not say {pattern}"
    assert found[1].replace("_", ".").split(".") == version().split(".")[:parts]


def test_recipes_that_read_the_version_find_it():
    header = (ROOT / "include/heed/version.hpp").read_text()
    (pattern,) = re.findall(r"^regex = '(.+)'", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert ".".join(re.search(pattern, header).groups()) == version()
    (pattern,) = re.findall(r'findall\(r"(.+)", text\)', (PACKAGING / "conan/conanfile.py").read_text())
    assert ".".join(re.findall(pattern, header)) == version()


def test_recipes_name_options_that_exist():
    recipes = ["conan/conanfile.py", "vcpkg/heed/portfile.cmake", "../scripts/wheels", "../scripts/ports"]
    named = {name for recipe in recipes for name in re.findall(r"(?:D|define}|\"|tool )(HEED_[A-Z_]+)", (PACKAGING / recipe).read_text())}
    # These two are the toolchains' own.
    assert {"HEED_BUILD_TOOL", "HEED_PORTABLE"} <= named
    assert named - options_of_the_build() - {"HEED_CROSS", "HEED_PORT", "HEED_ZIG"} == set()


def test_the_conan_recipe_exports_what_the_build_reads():
    recipe = (PACKAGING / "conan/conanfile.py").read_text()
    read = set(re.findall(r"(?:add_subdirectory\(|include\()(\w+)", (ROOT / "CMakeLists.txt").read_text()))
    read -= {"CheckLanguage", "tests", "examples", "playground", "python"}
    assert {name for name in read if f'"{name}' not in recipe} == set()


# What vcpkg gives a port; each function says how it was called.
VCPKG = r"""
cmake_minimum_required(VERSION 3.22)
set(CURRENT_PACKAGES_DIR ${CMAKE_CURRENT_LIST_DIR}/packages)
foreach(name cmake_configure cmake_install cmake_config_fixup fixup_pkgconfig copy_tools install_copyright)
  cmake_language(EVAL CODE "function(vcpkg_${name})\n  message(STATUS \"${name} \${ARGV}\")\nendfunction()")
endforeach()
function(vcpkg_check_features)
  cmake_parse_arguments(asked "" OUT_FEATURE_OPTIONS FEATURES ${ARGV})
  list(GET asked_FEATURES 0 feature)
  list(GET asked_FEATURES 1 option)
  set(value OFF)
  if(feature IN_LIST FEATURES)
    set(value ON)
  endif()
  set(${asked_OUT_FEATURE_OPTIONS} -D${option}=${value} PARENT_SCOPE)
endfunction()
"""


@pytest.mark.parametrize("features", ["", "tool"])
def test_the_vcpkg_port_configures_this_checkout(tmp_path, features):
    if not shutil.which("cmake"):
        pytest.skip("there is no cmake to read the port")
    script = tmp_path / "port.cmake"
    script.write_text(f"{VCPKG}set(FEATURES {features})\ninclude({PACKAGING / 'vcpkg/heed/portfile.cmake'})\n")
    ran = subprocess.run(["cmake", "-P", script], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    called = ran.stdout.replace("-- ", "").splitlines()
    assert f"cmake_configure SOURCE_PATH;{ROOT};OPTIONS;-DHEED_BUILD_TOOL={'ON' if features else 'OFF'}" in called
    assert f"install_copyright FILE_LIST;{ROOT / 'LICENSE'}" in called
    assert ("copy_tools TOOL_NAMES;heed;AUTO_CLEAN" in called) == bool(features)


@pytest.fixture
def finished_wheel(tmp_path):
    """A wheel as scikit-build-core makes it, but for its contents, that packaging/finish_wheel.py has made one of heed-cuda13."""
    made = tmp_path / f"heed-{version()}-cp312-abi3-linux_x86_64.whl"
    with zipfile.ZipFile(made, "w") as wheel:
        wheel.writestr("heed/__init__.py", "")
        tool = zipfile.ZipInfo(f"heed-{version()}.data/scripts/heed")
        tool.external_attr = 0o755 << 16
        wheel.writestr(tool, "the tool")
        wheel.writestr(f"heed-{version()}.dist-info/METADATA", f"Metadata-Version: 2.2\nName: heed\nVersion: {version()}\n\nName: of a thing\n")
        wheel.writestr(f"heed-{version()}.dist-info/RECORD", "of other files\n")
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n")
    nvcc.chmod(0o755)
    into = tmp_path / "dist"
    into.mkdir()
    script = [sys.executable, PACKAGING / "finish_wheel.py", made, into, "heed-cuda13", "c++"]
    subprocess.run(script, check=True, env={"PATH": f"{tmp_path}:/usr/local/bin:/usr/bin:/bin"})
    with zipfile.ZipFile(into / f"heed_cuda13-{version()}-cp312-abi3-linux_x86_64.whl") as wheel:
        yield wheel


def test_a_finished_wheel_has_the_name_of_its_distribution(finished_wheel):
    names = finished_wheel.namelist()
    assert not [name for name in names if name.startswith("heed-")]
    metadata = finished_wheel.read(f"heed_cuda13-{version()}.dist-info/METADATA").decode()
    assert "\nName: heed-cuda13\n" in metadata and "\nName: of a thing\n" in metadata
    tool = finished_wheel.getinfo(f"heed_cuda13-{version()}.data/scripts/heed")
    assert tool.external_attr >> 16 == 0o755


def test_a_finished_wheel_records_every_file_with_its_hash(finished_wheel):
    record = f"heed_cuda13-{version()}.dist-info/RECORD"
    lines = [line.split(",") for line in finished_wheel.read(record).decode().splitlines()]
    assert sorted(path for path, _, _ in lines) == sorted(finished_wheel.namelist())
    for path, digest, size in lines:
        content = finished_wheel.read(path)
        expected = "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        assert (digest, size) == (("", "") if path == record else (expected, str(len(content)))), path


def test_a_finished_wheel_lists_what_is_compiled_in(finished_wheel):
    bill = json.loads(finished_wheel.read(f"heed_cuda13-{version()}.dist-info/sboms/heed.cdx.json"))
    assert bill["bomFormat"] == "CycloneDX" and bill["metadata"]["component"]["name"] == "heed-cuda13"
    parts = {part["name"]: part for part in bill["components"]}
    assert set(parts) == {"CLI11", "nlohmann-json", "fmt", "nanobind", "libstdc++", "CUDA runtime"}
    assert parts["CUDA runtime"]["version"] == "13.0.88"
    assert all(part["licenses"] for part in bill["components"])


@pytest.mark.parametrize("script", ["wheels", "first-result"])
def test_scripts_explain_themselves_to_unknown_words(script):
    ran = subprocess.run([ROOT / "scripts" / script, "nonsense"], capture_output=True, text=True)
    assert ran.returncode != 0
    assert f"scripts/{script} " in ran.stderr
