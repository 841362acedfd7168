# SPDX-License-Identifier: Apache-2.0
"""The recipes of packaging/ are of this version and name options that exist. What builds and uses them is scripts/first-result."""

import json
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGING = ROOT / "packaging"


def version():
    return ".".join(re.findall(r"define HEED_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", (ROOT / "include/heed/version.hpp").read_text()))


def options_of_the_build():
    files = [ROOT / "CMakeLists.txt", ROOT / "python/CMakeLists.txt"]
    return {name for file in files for name in re.findall(r"(?:option|set)\((HEED_\w+)", file.read_text())}


def test_the_vcpkg_port_is_of_this_version():
    assert json.loads((PACKAGING / "vcpkg/heed/vcpkg.json").read_text())["version"] == version()


def test_the_conda_recipe_is_of_this_version():
    assert f'version: "{version()}"' in (PACKAGING / "conda/recipe.yaml").read_text()


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
