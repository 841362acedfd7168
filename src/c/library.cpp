// SPDX-License-Identifier: Apache-2.0
// What concerns the library as a whole: its version, its threads, memory it has handed out.
#include <cstdlib>

#include "c/status.hpp"
#include "heed/threads.hpp"
#include "heed/version.hpp"

const char* heed_version() { return heed::version(); }

void heed_free(void* text) { std::free(text); }

heed_status heed_set_num_threads(int threads) {
  return heed::c::status_of([&] { heed::set_num_threads(threads); });
}

int heed_num_threads() {
  int threads = 1;
  heed::c::status_of([&] { threads = heed::num_threads(); });
  return threads;
}
