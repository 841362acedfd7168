// SPDX-License-Identifier: Apache-2.0
// Two tasks: associative recall, which cannot be answered without attention, and the next character of a
// text. Which batch belongs to which step is a function of the seed and the step, so that training can stop
// and go on.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "model.hpp"

namespace train {

class Task {
 public:
  virtual ~Task() = default;
  virtual std::int64_t vocabulary() const = 0;
  virtual Batch batch(std::uint64_t seed, std::int64_t step) const = 0;
  virtual Batch test_batch(std::int64_t n) const = 0;  // that no step trains on
};

// Pairs of a key and its value, then the keys alone, in another order: what belongs to each of them?
class Recall final : public Task {
 public:
  std::int64_t vocabulary() const override { return keys + values; }
  Batch batch(std::uint64_t seed, std::int64_t step) const override;
  Batch test_batch(std::int64_t n) const override;

 private:
  static constexpr std::int64_t keys = 32, values = 32, pairs = 16, rows = 16;
};

// Characters of a text; the last tenth of it is for testing.
class Text final : public Task {
 public:
  explicit Text(const std::string& text);
  std::int64_t vocabulary() const override { return static_cast<std::int64_t>(letters_.size()); }
  Batch batch(std::uint64_t seed, std::int64_t step) const override;
  Batch test_batch(std::int64_t n) const override;

 private:
  static constexpr std::int64_t length = 48, rows = 16;
  void put(std::int64_t first, Batch&) const;

  std::string letters_;  // every character there is
  std::vector<std::int32_t> tokens_;
  std::int64_t trained_;  // the first so many
};

}  // namespace train
