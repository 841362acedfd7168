// SPDX-License-Identifier: Apache-2.0
// The numbers of c.h and what they stand for, in tables.
#pragma once
#include <array>
#include <cstdint>
#include <string>

#include "heed/c.h"
#include "refusal/refusal.hpp"

namespace heed::c {

template <class Meaning>
struct Choice {
  std::int32_t number;
  const char* name;
  Meaning meaning;
};

template <class Meaning, std::size_t count>
const Meaning& choose(const char* argument, const char* field, std::int32_t number,
                      const std::array<Choice<Meaning>, count>& choices) {
  for (const Choice<Meaning>& choice : choices)
    if (choice.number == number) return choice.meaning;
  std::string names;
  for (const Choice<Meaning>& choice : choices) (names += names.empty() ? "" : ", ") += choice.name;
  throw refusal(Error::value, argument, ".", field, ": ", std::int64_t{number}, " is none of ", names);
}

inline bool to_flag(const char* name, std::int32_t number) {
  if (number != 0 && number != 1)
    throw refusal(Error::value, name, ": ", std::int64_t{number}, " is neither 0 nor 1");
  return number == 1;
}

// The number that means this; of meanings that are in the table.
template <class Meaning, std::size_t count>
std::int32_t number_of(const Meaning& meaning, const std::array<Choice<Meaning>, count>& choices) {
  for (const Choice<Meaning>& choice : choices)
    if (choice.meaning == meaning) return choice.number;
  return -1;
}

}  // namespace heed::c
