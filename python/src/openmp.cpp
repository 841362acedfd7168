// SPDX-License-Identifier: Apache-2.0
// heed's tasks on the threads of an OpenMP runtime that is already in the process, PyTorch's: its workers
// keep looking for work for milliseconds after every operation, and a second pool would have to share the
// cores with them.
#include "openmp.hpp"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>

#include "bindings.hpp"
#include "docs.hpp"
#include "heed/threads.hpp"

namespace heed::python {

namespace {

// What libgomp exports, and libomp and libiomp5 too: runs work(data) on every thread of a team of n; and how
// many its teams have.
struct OpenMp {
  void (*parallel)(void (*work)(void*), void* data, unsigned n, unsigned flags) = nullptr;
  int (*max_threads)() = nullptr;
};

// The path of the first library this process has loaded whose path has this word; empty if there is none.
std::string loaded(const char* word) {
  struct Search {
    const char* word;
    std::string path;
  } search{word, {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        auto& sought = *static_cast<Search*>(data);
        if (!info->dlpi_name || !std::strstr(info->dlpi_name, sought.word)) return 0;
        sought.path = info->dlpi_name;
        return 1;
      },
      &search);
  return search.path;
}

template <class Function>
bool find(void* library, const char* name, Function& function) {
  void* const symbol = dlsym(library, name);
  std::memcpy(&function, &symbol, sizeof symbol);
  return symbol != nullptr;
}

// The runtime that PyTorch is linked to, whatever it is called: other packages bring runtimes of their own,
// whose threads are not PyTorch's. It is never unloaded: it is held open.
OpenMp runtime_of_pytorch() {
  const std::string path = loaded("libtorch_cpu.");
  void* const library = path.empty() ? nullptr : dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  OpenMp runtime;
  if (library && find(library, "GOMP_parallel", runtime.parallel))
    find(library, "omp_get_max_threads", runtime.max_threads);
  return runtime;
}

class OpenMpThreads : public Executor {
 public:
  explicit OpenMpThreads(const OpenMp& runtime) : runtime_(runtime) {}

  int concurrency() const override { return std::min(num_threads(), runtime_.max_threads()); }

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

// A forked child has none of the runtime's threads, and a team of libgomp's would wait for them for ever.
void leave_them_to_the_parent() { set_executor(nullptr); }

}  // namespace

bool share_openmp_threads() {
  static bool is_shared = false;  // the GIL guards it
  if (is_shared) return true;
  const OpenMp runtime = runtime_of_pytorch();
  if (!runtime.max_threads) return false;
  static auto& threads = *new OpenMpThreads(runtime);  // never destroyed: calls may come until the end
  if (pthread_atfork(nullptr, nullptr, leave_them_to_the_parent) != 0) return false;
  set_executor(&threads);
  return is_shared = true;
}

void define_openmp(nanobind::module_& m) {
  m.def("share_openmp_threads", &share_openmp_threads, share_openmp_threads_doc);
}

}  // namespace heed::python
