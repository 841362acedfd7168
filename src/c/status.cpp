// SPDX-License-Identifier: Apache-2.0
// What concerns the library as a whole: its version, its threads, memory it has handed out.
#include "c/status.hpp"

#include <cstdlib>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "c/call.hpp"
#include "c/structs.hpp"
#include "heed/error.hpp"
#include "heed/threads.hpp"
#include "heed/version.hpp"

namespace heed::c {
namespace {

// This thread's last error: in its sentence, or a text that needs no memory.
constinit thread_local const char* shown = "";

// Calls may come after a thread has destroyed its objects: from the destructors of others, from its keys,
// from atexit. What does not fit here is then lost.
constinit thread_local bool has_ended = false;
constinit thread_local char last_words[256] = {};

struct Sentence {
  std::string text{};
  ~Sentence() {
    shown = "";
    has_ended = true;
  }
};
thread_local Sentence sentence;

heed_status status_of_code(Error::Code code) {
  switch (code) {
    case Error::shape:
      return HEED_ERROR_SHAPE;
    case Error::dtype:
      return HEED_ERROR_DTYPE;
    case Error::device:
      return HEED_ERROR_DEVICE;
    case Error::value:
      return HEED_ERROR_VALUE;
    case Error::ambiguous:
      return HEED_ERROR_AMBIGUOUS;
    case Error::overlap:
      return HEED_ERROR_OVERLAP;
    case Error::unsupported:
      return HEED_ERROR_UNSUPPORTED;
    case Error::capacity:
      return HEED_ERROR_CAPACITY;
    case Error::file:
      return HEED_ERROR_FILE;
    case Error::busy:
      return HEED_ERROR_BUSY;
    case Error::rank:  // C has no groups
      return HEED_ERROR_OTHER;
  }
  return HEED_ERROR_OTHER;
}

// The few names of C++ that sentences tell their reader to write.
std::string in_c_words(std::string text) {
  constexpr std::pair<std::string_view, std::string_view> words[] = {
      {"Align::starts", "HEED_ALIGN_STARTS"},  {"Align::ends", "HEED_ALIGN_ENDS"},
      {"Mode::train", "HEED_MODE_TRAIN"},      {"explain()", "heed_explain()"},
      {"backward()", "heed_layer_backward()"}, {"update()", "heed_layer_update()"},
  };
  for (const auto& [word, in_c] : words)
    if (const std::size_t at = text.find(word); at != std::string::npos) text.replace(at, word.size(), in_c);
  return text;
}

heed_status fail(heed_status status, std::string why) noexcept {
  if (has_ended) {
    last_words[why.copy(last_words, sizeof last_words - 1)] = '\0';
    shown = last_words;
  } else {
    sentence.text = std::move(why);
    shown = sentence.text.c_str();
  }
  return status;
}

heed_status fail_without_memory() noexcept {
  shown = "out of memory";
  return HEED_ERROR_MEMORY;
}

}  // namespace

heed_status succeeded() noexcept {
  shown = "";
  return HEED_OK;
}

heed_status failed() noexcept {
  try {
    try {
      throw;
    } catch (const Error& error) {
      // A sentence about a file quotes its name, which may hold any word.
      return fail(status_of_code(error.code),
                  error.code == Error::file ? error.what() : in_c_words(error.what()));
    } catch (const std::bad_alloc&) {
      return fail_without_memory();
    } catch (const std::exception& other) {
      return fail(HEED_ERROR_OTHER, other.what());
    } catch (...) {
      return fail(HEED_ERROR_OTHER, "an exception of an unknown type");
    }
  } catch (...) {  // no memory for the sentence
    return fail_without_memory();
  }
}

}  // namespace heed::c

const char* heed_last_error() { return heed::c::shown; }

// What concerns the library as a whole: its version, its threads, memory it has handed out.

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

heed_status heed_executor_create(const heed_executor_config* given, heed_executor** executor) {
  using namespace heed::c;
  return status_of([&] {
    check_pointer("executor", executor);
    const heed_executor_config config = read_known("config", given);
    if (!config.run) throw heed::refusal(heed::Error::value, "config.run: NULL");
    if (config.concurrency < 0)
      throw heed::refusal(heed::Error::value, "config.concurrency: ", std::int64_t{config.concurrency},
                          " is negative");
    check_reserved("config", config.reserved);
    *executor = new heed_executor(config);
  });
}

void heed_executor_destroy(heed_executor* executor) { delete executor; }

heed_status heed_set_executor(heed_executor* executor) {
  return heed::c::status_of([&] { heed::set_executor(executor); });
}
