// SPDX-License-Identifier: Apache-2.0
// What this build and this machine offer: version, compiler, kernels, threads.
#include <string>

#include "bindings.hpp"
#include "docs.hpp"
#include "heed/attention.hpp"
#include "heed/threads.hpp"
#include "heed/version.hpp"
#include "views.hpp"

namespace heed::python {

namespace {

void set_threads(nb::handle n) {
  const std::int64_t threads = read_integer("n", n);
  if (threads < 1 || threads > 4096)
    throw Error(Error::value, "n: " + std::to_string(threads) + " is outside [1, 4096]");
  set_num_threads(static_cast<int>(threads));
}

nb::list names_of_kernels() {
  nb::list names;
  for (const std::string& name : kernel_names()) names.append(nb::str(name.c_str()));
  return names;
}

// No attribute: the stubs would show its value, which is another for every compiler.
const char* version_of_compiler() {
#ifdef __clang__
  return __VERSION__;  // "Clang 19.1.7"
#else
  return "g++ " __VERSION__;
#endif
}

}  // namespace

void define_machine(nb::module_& m) {
  m.attr("version") = version();
  m.def("compiler", &version_of_compiler, compiler_doc);
  m.def("set_num_threads", &set_threads, nb::arg("n").none(), nb::sig("def set_num_threads(n: int) -> None"),
        set_num_threads_doc);
  m.def("get_num_threads", &num_threads, get_num_threads_doc);
  m.def("kernel_names", &names_of_kernels, nb::sig("def kernel_names() -> list[str]"), kernel_names_doc);
}

}  // namespace heed::python
