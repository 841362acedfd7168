// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <Python.h>
#include <unistd.h>

namespace heed::python {

// Lets other threads of Python's run for as long as it lives.
class OthersRun {
 public:
  OthersRun() : own_(PyEval_SaveThread()) {}
  ~OthersRun() {
    try {
      PyEval_RestoreThread(own_);
    } catch (...) {  // the interpreter ends: Python before 3.14 unwinds its daemon threads, and nothing may
                     // leave here
      for (;;) pause();
    }
  }
  OthersRun(const OthersRun&) = delete;
  OthersRun& operator=(const OthersRun&) = delete;

 private:
  PyThreadState* own_;
};

}  // namespace heed::python
