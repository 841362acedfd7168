// SPDX-License-Identifier: Apache-2.0
#include "training.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <stdexcept>

namespace train {
namespace {

heed::Array array_of(std::span<const float> values) {
  return heed::Array::from_floats({static_cast<std::int64_t>(values.size())}, {values.begin(), values.end()});
}

void read(const heed::Arrays& arrays, const std::string& name, std::span<float> into) {
  const auto found = arrays.find(name);
  if (found == arrays.end()) throw std::runtime_error("the checkpoint has no " + name);
  const Floats values = found->second.to_floats();
  if (values.size() != into.size()) throw std::runtime_error(name + " of the checkpoint has another size");
  std::copy(values.begin(), values.end(), into.begin());
}

void draw_bar(const std::string& label, std::int64_t done, std::int64_t steps, double loss) {
  if (!isatty(2)) return;
  constexpr int places = 28;
  const int full = static_cast<int>(done * places / steps);
  std::string bar;
  for (int n = 0; n < places; ++n) bar += n < full ? "█" : "░";
  std::fprintf(stderr, "\r%-26s %s %5lld/%lld  loss %.3f ", label.c_str(), bar.c_str(),
               static_cast<long long>(done), static_cast<long long>(steps), loss);
  if (done == steps) std::fprintf(stderr, "\r\033[K");
}

}  // namespace

void AdamW::step(Model& model, float share_of_rate) {
  ++steps_;
  const float mean_bias = 1 - std::pow(keep_mean, static_cast<float>(steps_)),
              square_bias = 1 - std::pow(keep_square, static_cast<float>(steps_)),
              rate_now = rate * share_of_rate;
  for (const Weight& weight : model.weights()) {
    Moments& m = moments_[weight.name];
    m.mean.resize(weight.values.size());
    m.square.resize(weight.values.size());
    for (std::size_t n = 0; n < weight.values.size(); ++n) {
      const float g = weight.gradient[n];
      m.mean[n] = keep_mean * m.mean[n] + (1 - keep_mean) * g;
      m.square[n] = keep_square * m.square[n] + (1 - keep_square) * g * g;
      const float towards = m.mean[n] / mean_bias / (std::sqrt(m.square[n] / square_bias) + 1e-8f);
      weight.values[n] -= rate_now * (towards + decay * weight.values[n]);
    }
  }
  model.use_changed_weights();
}

heed::Arrays AdamW::state() const {
  heed::Arrays arrays;
  for (const auto& [name, m] : moments_) {
    arrays["adam.mean." + name] = array_of(m.mean);
    arrays["adam.square." + name] = array_of(m.square);
  }
  arrays["adam.steps"] = array_of(std::vector<float>{static_cast<float>(steps_)});
  return arrays;
}

void AdamW::load(const heed::Arrays& arrays) {
  moments_.clear();
  const std::string prefix = "adam.mean.";
  for (const auto& [name, array] : arrays)
    if (name.starts_with(prefix)) {
      const std::string weight = name.substr(prefix.size());
      Moments& m = moments_[weight];
      m.mean.resize(static_cast<std::size_t>(array.elements()));
      m.square.resize(m.mean.size());
      read(arrays, name, m.mean);
      read(arrays, "adam.square." + weight, m.square);
    }
  float steps = 0;
  read(arrays, "adam.steps", {&steps, 1});
  steps_ = static_cast<std::int64_t>(steps);
}

void Run::advance(std::int64_t to, const std::string& label) {
  const std::int64_t warm = std::max<std::int64_t>(1, steps / 20);
  for (; done < to; ++done) {
    const float ramp = std::min(1.0f, static_cast<float>(done + 1) / static_cast<float>(warm)),
                fall = 1 - 0.9f * static_cast<float>(done) / static_cast<float>(steps);
    losses.push_back(model.differentiate(task.batch(seed, done)).loss);
    optimiser.step(model, ramp * fall);
    if ((done + 1) % 10 == 0 || done + 1 == to) draw_bar(label, done + 1, to, losses.back());
  }
}

Score Run::test() {
  Score all;
  constexpr std::int64_t batches = 8;
  for (std::int64_t n = 0; n < batches; ++n) {
    const Score one = model.score(task.test_batch(n));
    all.loss += one.loss / batches;
    all.hits += one.hits;
    all.targets += one.targets;
  }
  return all;
}

void Run::save(const std::filesystem::path& path) {
  heed::Arrays arrays = optimiser.state();
  for (const Weight& weight : model.weights()) arrays[weight.name] = array_of(weight.values);
  heed::write_safetensors(path, arrays, {{"steps", std::to_string(done)}});
}

void Run::load(const std::filesystem::path& path) {
  heed::Metadata metadata;
  const heed::Arrays arrays = heed::read_safetensors(path, &metadata);
  for (const Weight& weight : model.weights()) read(arrays, weight.name, weight.values);
  model.use_changed_weights();
  optimiser.load(arrays);
  done = std::stoll(metadata.at("steps"));
}

}  // namespace train
