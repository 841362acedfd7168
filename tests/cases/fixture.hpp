// SPDX-License-Identifier: Apache-2.0
// The stored fixtures, read by a small reader of the tests' own: a seed's expected values do not pass through
// the library's file code.
#pragma once
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "cases/compare.hpp"

namespace heed::cases {

struct Fixture {
  std::vector<std::int64_t> shape;
  std::vector<double> values;
};

namespace npy {

template <class T>
void append(const std::string& bytes, std::vector<double>& values) {
  for (std::size_t i = 0; i + sizeof(T) <= bytes.size(); i += sizeof(T)) {
    T x;
    std::memcpy(&x, bytes.data() + i, sizeof(T));
    values.push_back(static_cast<double>(x));
  }
}

}  // namespace npy

// .npy version 1, C order, as make_fixtures.py writes them: <f8, <f4, <i8 or |b1.
inline Fixture load_fixture(const std::string& name) {
  const std::filesystem::path path = std::filesystem::path(HEED_FIXTURES) / (name + ".npy");
  std::ifstream file(path, std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(file), {}};
  if (all.size() < 10 || all.compare(0, 6, "\x93NUMPY") != 0)
    throw std::runtime_error("not a .npy file: " + path.string());
  const std::size_t header = static_cast<unsigned char>(all[8]) + 256u * static_cast<unsigned char>(all[9]);
  const std::string text = all.substr(10, header), data = all.substr(10 + header);
  Fixture found;
  const std::size_t open = text.find('('), close = text.find(')');
  std::string number;
  for (char c : text.substr(open, close - open + 1)) {
    if (c >= '0' && c <= '9') {
      number += c;
    } else if (!number.empty()) {
      found.shape.push_back(std::stoll(number));
      number.clear();
    }
  }
  if (text.find("<f8") != std::string::npos) npy::append<double>(data, found.values);
  if (text.find("<f4") != std::string::npos) npy::append<float>(data, found.values);
  if (text.find("<i8") != std::string::npos) npy::append<std::int64_t>(data, found.values);
  if (text.find("|b1") != std::string::npos) npy::append<std::int8_t>(data, found.values);
  std::int64_t elements = 1;
  for (std::int64_t extent : found.shape) elements *= extent;
  if (found.values.size() != static_cast<std::size_t>(elements))
    throw std::runtime_error("truncated: " + path.string());
  return found;
}

// Element n of `computed`, in row-major order, against NAME.npy within NAME.bound.npy. `slack` multiplies the
// bound.
inline testing::AssertionResult matches_fixture(const std::string& name, const Tensor& computed,
                                                double slack = 1) {
  const Fixture expected = load_fixture(name), bound = load_fixture(name + ".bound");
  if (static_cast<std::int64_t>(expected.values.size()) != computed.shape().elements())
    return testing::AssertionFailure() << name << " has another size";
  Tally tally;
  std::size_t n = 0;
  for_each(computed.shape(), [&](auto b, auto h, auto i, auto d) {
    tally.compare(name.c_str(), Place{b, h, i, d}, computed.at(b, h, i, d), expected.values[n],
                  slack * bound.values[n]);
    ++n;
  });
  return tally;
}

}  // namespace heed::cases
