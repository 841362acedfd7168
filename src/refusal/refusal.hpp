// SPDX-License-Identifier: Apache-2.0
// Builds the sentence of a refusal from its parts. Nothing is built unless a call is refused.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "heed/error.hpp"
#include "heed/tensor.hpp"

namespace heed::refusing {

std::string in_words(float);         // the shortest text that reads back as the same float; "nan" has no sign
std::string in_words(const Shape&);  // "(2, 8, 128, 64)"
std::string in_words(const Strides&);
inline std::string in_words(std::int64_t number) { return std::to_string(number); }
inline const char* in_words(Device device) { return device == Device::cpu ? "cpu" : "cuda"; }
inline const char* in_words(const char* text) { return text; }
inline const std::string& in_words(const std::string& text) { return text; }

// Why something is not done, in words for who asks; empty when nothing speaks against it. Captures two words
// at the most, so that it never allocates.
using Reason = std::function<std::string()>;

template <class... Parts>
[[nodiscard, gnu::cold, gnu::noinline]] Error refusal(Error::Code code, const Parts&... parts) {
  std::string sentence;
  ((sentence += in_words(parts)), ...);
  return {code, sentence};
}

// A device that is none: a number beyond those of the enumeration.
inline Error unknown_device(const char* name, Device device) {
  return refusal(Error::device, name, ".device: ", static_cast<std::int64_t>(device),
                 " is none of cpu, cuda");
}

}  // namespace heed::refusing

namespace heed {
using namespace refusing;
}
