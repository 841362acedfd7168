// SPDX-License-Identifier: Apache-2.0
#include "c/status.hpp"

#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "heed/error.hpp"

namespace heed::c {
namespace {

// Where the last error is: in `sentence`, or a text that needs no memory.
struct LastError {
  std::string sentence{};
  const char* shown = "";
};
thread_local LastError last_error;

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
std::string in_c_words(std::string sentence) {
  constexpr std::pair<std::string_view, std::string_view> words[] = {
      {"Align::starts", "HEED_ALIGN_STARTS"},
      {"Align::ends", "HEED_ALIGN_ENDS"},
      {"Mode::train", "HEED_MODE_TRAIN"},
  };
  for (const auto& [word, in_c] : words)
    if (const std::size_t at = sentence.find(word); at != std::string::npos)
      sentence.replace(at, word.size(), in_c);
  return sentence;
}

heed_status fail(heed_status status, std::string sentence) noexcept {
  last_error.sentence = std::move(sentence);
  last_error.shown = last_error.sentence.c_str();
  return status;
}

heed_status fail_without_memory() noexcept {
  last_error.shown = "out of memory";
  return HEED_ERROR_MEMORY;
}

}  // namespace

heed_status succeeded() noexcept {
  last_error.shown = "";
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

const char* heed_last_error() { return heed::c::last_error.shown; }
