// SPDX-License-Identifier: Apache-2.0
// heed's tasks on the threads of an OpenMP runtime that is already in the process, PyTorch's: its workers
// keep looking for work for milliseconds after every operation, and a second pool would have to share the
// cores with them.
#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>

#include "bindings.hpp"
#include "docs.hpp"
#include "heed/threads.hpp"
#include "refusal.hpp"

namespace heed::python {

namespace {

// What libgomp exports: runs work(data) on every thread of a team of n; and how many its teams have.
struct OpenMp {
  void (*parallel)(void (*work)(void*), void* data, unsigned n, unsigned flags) = nullptr;
  int (*most_threads)() = nullptr;
};

// The path of the libgomp this process has loaded, whatever it is called; empty if there is none.
std::string loaded_runtime() {
  std::string path;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* found) {
        if (!info->dlpi_name || !std::strstr(info->dlpi_name, "libgomp")) return 0;
        *static_cast<std::string*>(found) = info->dlpi_name;
        return 1;
      },
      &path);
  return path;
}

template <class Function>
bool find(void* library, const char* name, Function& function) {
  void* const symbol = dlsym(library, name);
  std::memcpy(&function, &symbol, sizeof symbol);
  return symbol != nullptr;
}

class OpenMpThreads : public Executor {
 public:
  explicit OpenMpThreads(const OpenMp& runtime) : runtime_(runtime) {}

  int concurrency() const override { return std::min(num_threads(), runtime_.most_threads()); }

  void run(std::size_t tasks, void (*task)(void*, std::size_t), void* context) override {
    Job job{task, context, tasks};
    const int threads = concurrency();
    if (threads == 1) return job.work();
    runtime_.parallel([](void* data) { static_cast<Job*>(data)->work(); }, &job,
                      static_cast<unsigned>(threads), 0);
  }

 private:
  struct Job {
    void (*task)(void*, std::size_t);
    void* context;
    std::size_t tasks;
    std::atomic<std::size_t> next{0};

    void work() {
      for (std::size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) task(context, i);
    }
  };

  OpenMp runtime_;
};

// True from the first success on. The runtime is never unloaded: it is held open.
bool share_openmp_threads() {
  static const bool is_shared = [] {
    const std::string path = loaded_runtime();
    void* const library = path.empty() ? nullptr : dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
    OpenMp runtime;
    if (!library || !find(library, "GOMP_parallel", runtime.parallel) ||
        !find(library, "omp_get_max_threads", runtime.most_threads))
      return false;
    static OpenMpThreads threads(runtime);
    set_executor(&threads);
    return true;
  }();
  return is_shared;
}

}  // namespace

void define_openmp(nb::module_& m) {
  m.def("share_openmp_threads", &share_openmp_threads, share_openmp_threads_doc);
}

}  // namespace heed::python
