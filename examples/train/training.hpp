// SPDX-License-Identifier: Apache-2.0
// AdamW, and a run of training that can be saved, and goes on from there to the same bits.
#pragma once
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "model.hpp"
#include "tasks.hpp"

namespace train {

class AdamW {
 public:
  float rate = 4e-3f, decay = 0.01f, keep_mean = 0.9f, keep_square = 0.98f;

  void step(Model&, float share_of_rate);  // the model's weights by their gradients
  heed::Arrays state() const;              // of a checkpoint
  void load(const heed::Arrays&);

 private:
  struct Moments {
    Floats mean, square;
  };
  std::map<std::string, Moments> moments_{};
  std::int64_t steps_ = 0;
};

struct Run {
  const Task& task;
  Model model;
  std::uint64_t seed = 0;
  std::int64_t steps = 0;  // in all, of which the rate depends
  AdamW optimiser{};
  std::int64_t done = 0;
  std::vector<double> losses{};

  void advance(std::int64_t to, const std::string& label);  // with a bar on a terminal
  Score test();
  void save(const std::filesystem::path&);
  void load(const std::filesystem::path&);
};

}  // namespace train
