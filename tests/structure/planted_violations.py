#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every check of structure.py and readme.py passes a tiny good tree and fails one with a planted violation."""

import pathlib
import tempfile
import unittest

import readme
import structure

SPDX = "// SPDX-License-Identifier: Apache-2.0\n"
GOOD = {
    "include/heed/heed.hpp": SPDX + "#pragma once\n#include <vector>\n",
    "include/heed/version.hpp": SPDX + "#define HEED_VERSION_MAJOR 0\n#define HEED_VERSION_MINOR 2\n",
    "src/layer/layer.cpp": SPDX + '#include "heed/heed.hpp"\n#include "plan/plan.hpp"\n// S15\n',
    "src/problem/problem.hpp": SPDX + '#include "heed/heed.hpp"\n',
    "src/backend/backend.hpp": SPDX + '#include "problem/problem.hpp"\n',
    "src/plan/plan.hpp": SPDX + '#include "problem/problem.hpp"\n',
    "src/plan/list.cpp": SPDX + '#include "cpu/backend.hpp"\n',
    "src/cpu/backend.hpp": SPDX + '#include "backend/backend.hpp"\n',
    "src/reference/loops.cpp": SPDX + '#include "problem/problem.hpp"\n// S1: the score\n',
    "src/cpu/fused.cpp": SPDX
    + '#include "softmax/state.hpp"\n#include <sys/mman.h>\n#include <arm_neon.h>\n',
    "src/softmax/state.hpp": SPDX,
    "src/files/npy.hpp": SPDX,
    "cli/main.cpp": SPDX + "#include <CLI/CLI.hpp>\n#include <heed/heed.hpp>\n",
    "docs/spec.md": "### S1 Score\n### S15 Rotary (src/layer)\n### O1 One answer\n",
}


class Tree(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for name, text in GOOD.items():
            self.write(name, text)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def assert_found(self, check, expected):
        self.assertEqual(check(self.root), [expected])


class Structure(Tree):
    def test_a_good_tree_has_no_violation(self):
        for check in structure.CHECKS:
            self.assertEqual(check(self.root), [], check.__name__)

    def test_every_check_is_listed(self):
        self.assertEqual(len(structure.CHECKS), 9)

    def test_an_include_that_points_upward_is_found(self):
        self.write("src/softmax/merge.cpp", SPDX + '#include "cpu/fused.cpp"\n')
        self.assert_found(
            structure.check_includes_point_downward,
            "src/softmax/merge.cpp:2: softmax may not include src/cpu/fused.cpp",
        )

    def test_only_the_plan_knows_a_backend_and_only_as_one(self):
        for folder, header in (("layer", "backend.hpp"), ("check", "backend.hpp"), ("plan", "fused.hpp")):
            with self.subTest(folder=folder):
                self.write("src/cpu/fused.hpp", SPDX)
                self.write(f"src/{folder}/floats.cpp", f'{SPDX}#include "cpu/{header}"\n')
                self.assert_found(
                    structure.check_includes_point_downward,
                    f"src/{folder}/floats.cpp:2: {folder} may not include src/cpu/{header}",
                )
                (self.root / f"src/{folder}/floats.cpp").unlink()

    def test_backends_do_not_include_each_other(self):
        self.write("src/cpu/cheat.cpp", SPDX + '#include "reference/loops.cpp"\n')
        self.assert_found(
            structure.check_includes_point_downward,
            "src/cpu/cheat.cpp:2: cpu may not include src/reference/loops.cpp",
        )

    def test_a_relative_path_does_not_hide_an_upward_include(self):
        self.write("src/softmax/merge.cpp", SPDX + '#include "../plan/plan.hpp"\n')
        self.assert_found(
            structure.check_includes_point_downward,
            "src/softmax/merge.cpp:2: softmax may not include src/plan/plan.hpp",
        )

    def test_only_the_layer_includes_files(self):
        self.write("src/layer/load.cpp", SPDX + '#include "files/npy.hpp"\n')
        self.assertEqual(structure.check_includes_point_downward(self.root), [])
        self.write("src/plan/load.cpp", SPDX + '#include "files/npy.hpp"\n')
        self.assert_found(
            structure.check_includes_point_downward,
            "src/plan/load.cpp:2: plan may not include src/files/npy.hpp",
        )

    def test_an_unknown_folder_may_include_nothing(self):
        self.write("src/extra/more.cpp", SPDX + '#include "softmax/state.hpp"\n')
        self.assert_found(
            structure.check_includes_point_downward,
            "src/extra/more.cpp:2: extra may not include src/softmax/state.hpp",
        )

    def test_a_public_header_that_includes_src_is_found(self):
        self.write("include/heed/bad.hpp", SPDX + '#include "softmax/state.hpp"\n')
        self.assert_found(
            structure.check_includes_point_downward,
            "include/heed/bad.hpp:2: a public header includes src/softmax/state.hpp",
        )

    def test_a_third_party_header_in_the_library_is_found(self):
        self.write("src/plan/json.cpp", SPDX + "#include <nlohmann/json.hpp>\n")
        self.assert_found(
            structure.check_includes_point_downward,
            "src/plan/json.cpp:2: includes <nlohmann/json.hpp>, which belongs to a third party",
        )

    def test_an_include_of_nothing_is_found(self):
        self.write("src/plan/lost.cpp", SPDX + '#include "plan/gone.hpp"\n')
        self.assert_found(
            structure.check_includes_point_downward,
            'src/plan/lost.cpp:2: includes "plan/gone.hpp", which is nowhere in the tree',
        )

    def test_a_file_outside_the_folders_is_found(self):
        self.write("src/stray.cpp", SPDX)
        self.assert_found(structure.check_includes_point_downward, "src/stray.cpp: lies in no folder of src/")

    def test_a_tool_that_reaches_into_the_library_is_found(self):
        self.write("cli/cheat.cpp", SPDX + '#include "plan/plan.hpp"\n')
        self.assert_found(
            structure.check_the_tool_uses_only_the_public_api,
            "cli/cheat.cpp:2: cli may include only include/heed, not src/plan/plan.hpp",
        )

    def test_a_junk_drawer_is_found(self):
        for name in (
            "src/plan/utils.hpp",
            "src/common/x.cpp",
            "tests/Helper.py",
            "scripts/base",
            "docs/misc.md",
        ):
            with self.subTest(name):
                self.write(name, SPDX)
                self.assert_found(
                    structure.check_names_say_something, f"{name}: a name that could hold anything"
                )
                (self.root / name).unlink()

    def test_hidden_folders_and_build_products_are_left_alone(self):
        for name in (".cache/utils.cpp", "build/dev/utils.cpp", "build-mine/utils.cpp"):
            self.write(name, "int x;\n")
        for check in structure.CHECKS:
            self.assertEqual(check(self.root), [], check.__name__)

    def test_a_word_inside_a_name_is_no_junk_drawer(self):
        self.write("src/plan/database_score.cpp", SPDX)
        self.assertEqual(structure.check_names_say_something(self.root), [])

    def test_a_long_file_is_found_unless_it_is_data(self):
        self.write("src/plan/long.cpp", "x\n" * 500)
        self.write("src/plan/table.hpp", "// Generated by scripts/table\n" + "x\n" * 900)
        self.write("tests/fixtures/table.txt", "x\n" * 900)
        self.assertEqual(structure.check_files_are_short(self.root), [])
        self.write("src/plan/long.cpp", "x\n" * 501)
        self.assert_found(structure.check_files_are_short, "src/plan/long.cpp: 501 lines, the limit is 500")

    def test_code_without_the_licence_line_is_found(self):
        self.write("src/plan/bare.cpp", "int x;\n")
        self.assert_found(
            structure.check_code_names_its_licence, "src/plan/bare.cpp: the first line is not the SPDX line"
        )

    def test_a_name_defined_in_the_namespace_of_another_folder_is_found(self):
        for folder, namespace in (
            ("src/softmax", "heed"),
            ("src/softmax", "heed::problem"),
            ("src/softmax", "heed::softmaxes"),
            ("src/refusal", "heed::refusal"),
            ("include/heed", "heed"),
            ("include/heed", "heed::inline v0_1"),
            ("src/softmax", "heed::inline v0_1"),
            ("cli", "heed::inline v0_2"),
            ("cli", "heed::cli"),
            ("python", "heed"),
        ):
            with self.subTest(folder=folder, namespace=namespace):
                self.write(f"{folder}/state.hpp", f"{SPDX}// why\nnamespace {namespace}\n{{ struct State {{}}; }}\n")
                self.assert_found(
                    structure.check_each_folder_has_its_namespace,
                    f"{folder}/state.hpp:3: {folder} may not define anything in {namespace}",
                )
                (self.root / folder / "state.hpp").unlink()

    def test_namespaces_that_a_folder_may_open_are_left_alone(self):
        for folder, text in (
            ("src/softmax", "namespace heed::softmax { namespace { struct State {}; } }"),
            ("src/softmax", "namespace heed::softmax::wide { struct State {}; }"),
            ("src/softmax", "namespace heed { using softmax::State, softmax::Merge;\nusing namespace softmax; }"),
            ("src/softmax", "namespace heed::inline v0_2 { using namespace softmax; void merge() {} }"),
            ("src/refusal", "namespace heed::refusing { struct Argument {}; }"),
            ("include/heed", "namespace heed::inline v0_2 { struct Shape {}; }"),
            ("include/heed", "namespace heed::cache { struct State; }"),
            ("cli", "namespace heed::tool { struct Command {}; }"),
            ("python", "namespace heed::python::dlpack { struct Tensor {}; }"),
            ("src/softmax", "// namespace heed { struct State {}; }"),
            ("src/softmax", "namespace fs = std::filesystem;"),
        ):
            with self.subTest(folder=folder, text=text):
                self.write(f"{folder}/state.hpp", SPDX + text)
                self.assertEqual(structure.check_each_folder_has_its_namespace(self.root), [])

    def test_a_call_with_two_arguments_that_may_refuse_is_found(self):
        refuse = "int read(int x) {\n  if (x) throw 1;\n  return x;\n}\nint deep(int x) { return read(x); }\n"
        for call in (
            "int f() { return add(read(1), deep(2)); }",
            "int f() {\n  return add(7, {read(1), 2},\n             deep(2)); }",
            "S::S() : a(read(1), deep(2)), b{1} {}",
            "int f() { return add<int>([&] { return 1; }(), read(1), s.deep(2)); }",
        ):
            with self.subTest(call):
                self.write("python/src/order.cpp", SPDX + refuse + call)
                (found,) = structure.check_at_most_one_argument_of_a_call_may_refuse(self.root)
                self.assertRegex(
                    found,
                    r"python/src/order.cpp:\d: read and deep may refuse in one call of \w+; which is first depends on the compiler",
                )

    def test_a_call_whose_order_cannot_show_is_left_alone(self):
        refuse = "int read(int x) {\n  if (x) throw 1;\n  return x;\n}\n"
        for call in (
            "int f() { return add(read(1), 2); }",
            "int f() { return add(outer(inner(read(1))), 2); }",
            "int f() { return add({read(1), read(2)}, 3); }",
            "int f() { return Pair{read(1), read(2)}; }",
            "int f() { const int a = read(1), b = read(2); return add(a, b); }",
            "int f() { return add([](int x) -> int { return read(x); }, [&] { return read(2); }, read(3)); }",
            "int f(int read(int), int g = read(2)) { return 1; }",
            "int f() { return 1; }  // add(read(1), read(2))",
        ):
            with self.subTest(call):
                self.write("python/src/order.cpp", SPDX + refuse + call)
                self.assertEqual(structure.check_at_most_one_argument_of_a_call_may_refuse(self.root), [])

    def test_a_rule_the_reference_forgets_is_found(self):
        self.write("src/reference/loops.cpp", SPDX + "int S1;\n")
        self.assert_found(
            structure.check_spec_and_code_name_the_same_rules,
            "docs/spec.md: S1 is never named in src/reference",
        )

    def test_a_rule_its_own_folder_forgets_is_found(self):
        self.write("src/layer/layer.cpp", SPDX)
        self.assert_found(
            structure.check_spec_and_code_name_the_same_rules, "docs/spec.md: S15 is never named in src/layer"
        )

    def test_a_rule_the_specification_lacks_is_found(self):
        self.write("src/cpu/fused.cpp", SPDX + "// S99\n")
        self.assert_found(
            structure.check_spec_and_code_name_the_same_rules,
            "src/cpu/fused.cpp:2: names S99, which docs/spec.md does not have",
        )

    def test_a_rule_in_the_reference_that_belongs_elsewhere_is_found(self):
        self.write("src/reference/more.cpp", SPDX + "// S15\n")
        self.assert_found(
            structure.check_spec_and_code_name_the_same_rules,
            "src/reference/more.cpp:2: names S15, which docs/spec.md gives to src/layer",
        )

    def test_a_rule_out_of_order_is_found(self):
        self.write("docs/spec.md", "### S1 Score\n### S15 Rotary (src/layer)\n### S2 Cap\n### O1 One answer\n")
        self.assert_found(structure.check_rules_are_in_order, "docs/spec.md: S2 comes after S15")

    def test_an_empty_specification_is_found(self):
        self.write("docs/spec.md", "nothing\n")
        self.assertIn(
            "docs/spec.md: no rules found", structure.check_spec_and_code_name_the_same_rules(self.root)
        )


class Readme(unittest.TestCase):
    def blocks(self, text):
        return readme.blocks_of(text)

    def test_blocks_are_found_with_their_line(self):
        blocks = self.blocks("a\n```cpp\nint x;\n```\nb\n```text\nout\n```\n")
        self.assertEqual(
            [(b.line, b.language, b.text) for b in blocks], [(2, "cpp", "int x;\n"), (6, "text", "out\n")]
        )

    def test_a_block_without_a_language_is_refused(self):
        blocks = self.blocks("```\nint x;\n```\n")
        self.assertEqual(
            readme.unknown_languages(blocks),
            ["README.md:1: a block of language '' is not checked by anything"],
        )

    def test_a_block_left_open_is_refused(self):
        with self.assertRaises(ValueError):
            self.blocks("```cpp\nint x;\n")

    def test_the_output_of_a_program_is_the_text_block_after_it(self):
        blocks = self.blocks("```cpp\nint x;\n```\n```text\n7\n```\n```cpp\nint y;\n```\n")
        self.assertEqual([expected for _, expected in readme.programs(blocks)], ["7\n", ""])

    def test_a_text_block_after_no_program_is_refused(self):
        blocks = self.blocks("```sh\nls\n```\n```text\n7\n```\n")
        self.assertEqual(
            readme.stray_outputs(blocks), ["README.md:4: a text block that no program is held to"]
        )

    def test_a_fragment_is_wrapped_and_a_program_is_not(self):
        fragment, program = self.blocks("```cpp\nint x = 1;\n```\n```cpp\nint main() {}\n```\n")
        self.assertIn("readme_prelude.hpp", readme.as_program(fragment))
        self.assertNotIn("readme_prelude.hpp", readme.as_program(program))

    def test_a_command_that_does_not_exist_is_found(self):
        blocks = self.blocks("```sh\nno-such-command --at-all   # a remark\n```\n")
        self.assertEqual(
            readme.check_commands(blocks, pathlib.Path("."), None),
            ["README.md:2: there is no command no-such-command"],
        )

    def test_a_command_of_the_tool_that_fails_is_found(self):
        blocks = self.blocks("```sh\nheed run --nonsense\n```\n")
        problems = readme.check_commands(blocks, pathlib.Path("."), "false")
        self.assertEqual(problems, ["README.md:2: `heed run --nonsense` ended with status 1: "])

    def test_a_first_program_that_is_no_example_is_found(self):
        blocks = self.blocks("```cpp\nint main() {}\n```\n")
        self.assertEqual(readme.check_first_program(blocks, "// why\nint main() {}\n"), [])
        self.assertEqual(
            readme.check_first_program(blocks, "int main() { return 1; }\n"),
            ["README.md: the first program is not examples/quickstart.cpp"],
        )

    def test_cmake_that_no_consumer_uses_is_found(self):
        blocks = self.blocks("```cmake\nfind_package(heed REQUIRED)\nproject(p)\n```\n")
        self.assertEqual(
            readme.check_cmake(blocks, "  find_package(heed REQUIRED)\n"),
            ["README.md:3: no consumer project in the tests has the line `project(p)`"],
        )

    def test_a_different_output_is_found(self):
        self.assertEqual(readme.difference(4, "1\n", "1 \n"), [])
        self.assertEqual(
            readme.difference(4, "1\n", "2\n"),
            ["README.md:4: the program prints '2\\n', the README shows '1\\n'"],
        )


if __name__ == "__main__":
    unittest.main()
