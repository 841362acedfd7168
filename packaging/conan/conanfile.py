# SPDX-License-Identifier: Apache-2.0
"""conan create packaging/conan: heed of this checkout."""

import pathlib
import re

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy


class Heed(ConanFile):
    name = "heed"
    description = "Attention for C++: exact to a written specification, the same bits on every machine"
    license = "Apache-2.0"
    topics = ("attention", "transformer", "simd", "deterministic")
    package_type = "library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"shared": [True, False], "fPIC": [True, False], "tool": [True, False]}
    default_options = {"shared": False, "fPIC": True, "tool": False}

    def set_version(self):
        text = pathlib.Path(self.recipe_folder, "../../include/heed/version.hpp").read_text(encoding="utf-8")
        self.version = ".".join(re.findall(r"define HEED_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", text))

    def export_sources(self):
        root = pathlib.Path(self.recipe_folder, "../..").resolve()
        copy(self, "CMakeLists.txt", root, self.export_sources_folder)
        copy(self, "LICENSE", root, self.export_sources_folder)
        # The pages of heed::view have the playground in them.
        for folder in ("cmake", "include", "src", "ranks", "view", "cli", "playground", "packaging/debian"):
            copy(self, f"{folder}/*", root, self.export_sources_folder)
        copy(self, "docs/playground.html", root, self.export_sources_folder)

    def config_options(self):
        if self.settings.os == "Windows":
            del self.options.fPIC

    def requirements(self):
        if self.options.tool:
            self.requires("cli11/[>=2.3 <3]", libs=False)
            self.requires("fmt/[>=9 <13]", libs=False)
            self.requires("nlohmann_json/[>=3.11 <4]", libs=False)

    def validate(self):
        check_min_cppstd(self, 20)

    def layout(self):
        cmake_layout(self)

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables["HEED_BUILD_TOOL"] = bool(self.options.tool)
        toolchain.generate()
        CMakeDeps(self).generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()

    def package_info(self):
        # heed's own CMake package: its targets are named there, once.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs.append("lib/cmake/heed")
        self.cpp_info.libs = ["heed"] if self.options.shared else ["heed_view", "heed_ranks", "heed"]
        if self.settings.os in ("Linux", "FreeBSD"):
            self.cpp_info.system_libs = ["pthread"]
