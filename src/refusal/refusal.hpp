// SPDX-License-Identifier: Apache-2.0
// Builds the sentence of a refusal from its parts. Nothing is built unless a call is refused.
#pragma once
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>

#include "heed/error.hpp"
#include "heed/tensor.hpp"

namespace heed::refusing {

std::string in_words(float);         // the shortest text that reads back as the same float; "nan" has no sign
std::string in_words(const Shape&);  // "(2, 8, 128, 64)"
std::string in_words(const Strides&);
inline std::string in_words(std::integral auto number) { return std::to_string(number); }
inline const char* in_words(Device device) { return device == Device::cpu ? "cpu" : "cuda"; }
inline const char* in_words(const char* text) { return text; }
inline const std::string& in_words(const std::string& text) { return text; }

// Why something is not done, in words for who asks; empty when nothing speaks against it. Made of a lambda
// that captures two words at the most, it costs next to nothing until then.
class Reason {
 public:
  Reason() {}  // captured_ is left unwritten
  template <class Say>
    requires std::is_invocable_r_v<std::string, const Say&>
  Reason(const Say& say)
      : say_([](const std::byte* captured) -> std::string {
          return (*reinterpret_cast<const Say*>(captured))();
        }) {
    static_assert(sizeof say <= sizeof captured_ && std::is_trivially_copyable_v<Say>);
    std::construct_at(reinterpret_cast<Say*>(captured_), say);
  }
  explicit operator bool() const { return say_ != nullptr; }
  std::string operator()() const { return say_(captured_); }

 private:
  std::string (*say_)(const std::byte*) = nullptr;
  alignas(std::int64_t) std::byte captured_[2 * sizeof(std::int64_t)];
};

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
