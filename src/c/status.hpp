// SPDX-License-Identifier: Apache-2.0
// No exception leaves a function of c.h: it becomes a status, and its sentence this thread's last error.
#pragma once
#include <cstdint>

#include "heed/c.h"
#include "heed/cache.hpp"
#include "heed/layer.hpp"
#include "heed/threads.hpp"

namespace heed::c {

heed_status succeeded() noexcept;
heed_status failed() noexcept;  // with the exception that is being handled

// The body of every function that can fail.
template <class Body>
heed_status status_of(const Body& body) noexcept {
  try {
    body();
    return succeeded();
  } catch (...) {
    return failed();
  }
}

}  // namespace heed::c

// What the opaque pointers of c.h point to.

struct heed_cache {
  heed::KvCache cache;
};

struct heed_activations {
  heed::AttentionLayer::Activations activations{};
};

struct heed_executor final : heed::Executor {
  heed_executor_config config;

  explicit heed_executor(const heed_executor_config& c) : config(c) {}
  int concurrency() const override { return config.concurrency ? config.concurrency : heed::num_threads(); }
  void run(std::size_t tasks, void (*task)(void* state, std::size_t i), void* state) override {
    config.run(config.context, tasks, task, state);
  }
};

struct heed_layer {
  heed::AttentionLayer layer;
  std::int64_t sliding_window;  // 0: none
  heed_rotary rotary;           // the layer's own, where it has one
};
