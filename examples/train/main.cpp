// SPDX-License-Identifier: Apache-2.0
// A small transformer learns, with nothing but heed: as MHA, GQA and MQA with the same budget, and as a GQA
// model that was made of the MHA one by averaging KV heads. docs/training.md tells what comes out.
//
//   example_train [--seed N] [--out FOLDER]   everything, in under two minutes on two cores
//   example_train --quick                     recall with grouped heads, and whether it can be resumed
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

#include "curves.hpp"
#include "training.hpp"

namespace train {
namespace {

struct Options {
  bool is_quick = false;
  std::uint64_t seed = 1;
  std::filesystem::path out = ".";
};

// What must be reached, of test batches that no step has seen.
constexpr double wanted_accuracy = 0.98, wanted_after_pooling = 0.85, wanted_loss = 2.1;

struct Variant {
  const char *name, *colour;
  std::int64_t kv_heads;
};
constexpr Variant variants[] = {
    {"MHA, 4 KV heads", "#1b6ca8", 4}, {"GQA, 2 KV heads", "#d1495b", 2}, {"MQA, 1 KV head", "#3a7d44", 1}};

struct Learned {
  std::string name;
  std::int64_t cache_bytes;
  Score test;
};

struct Goal {
  const char *name, *file;
  const Task& task;
  std::int64_t steps;
  double highest;  // of the plot
};

Run make_run(const Goal& goal, const Options& options, std::int64_t kv_heads) {
  return {goal.task, Model({.vocabulary = goal.task.vocabulary(), .kv_heads = kv_heads}, options.seed),
          options.seed, goal.steps};
}

// The MHA model with its KV heads averaged in pairs: as it is, and after 5 % of the steps.
void pool(const Goal& goal, Run& from, std::vector<Learned>& learned, Plot& plot) {
  const std::int64_t fewer = 2, steps = goal.steps / 20;
  Run run{goal.task, from.model.pooled(fewer), from.seed + 1, steps};

  learned.push_back({"MHA averaged to 2 KV heads", run.model.config().cache_bytes(), run.test()});
  run.advance(steps, std::string(goal.name) + ", averaged");
  learned.push_back({"  and 5 % of the steps", run.model.config().cache_bytes(), run.test()});
  plot.curves.push_back({"MHA averaged", "#edae49", run.losses, goal.steps});
}

std::vector<Learned> learn(const Goal& goal, const Options& options) {
  std::vector<Learned> learned;
  Plot plot{std::string(goal.name) + ": loss of the batches", goal.highest, {}};
  for (const Variant& variant : variants) {
    Run run = make_run(goal, options, variant.kv_heads);
    run.advance(goal.steps, std::string(goal.name) + ", " + variant.name);
    learned.push_back({variant.name, run.model.config().cache_bytes(), run.test()});
    plot.curves.push_back({variant.name, variant.colour, run.losses});
    if (variant.kv_heads == run.model.config().heads) {
      run.save(options.out / (std::string(goal.file) + ".safetensors"));
      std::vector<Learned> pooled;
      pool(goal, run, pooled, plot);
      learned.insert(learned.end(), pooled.begin(), pooled.end());
    }
  }
  draw(options.out / (std::string(goal.file) + ".svg"), plot);
  return learned;
}

void print(const Goal& goal, const std::vector<Learned>& learned) {
  std::printf("%s, %lld steps\n  %-28s %14s %10s %8s\n", goal.name, static_cast<long long>(goal.steps), "",
              "cache bytes/token", "accuracy", "loss");
  for (const Learned& one : learned)
    std::printf("  %-28s %17lld %9.1f%% %8.3f\n", one.name.c_str(), static_cast<long long>(one.cache_bytes),
                100 * one.test.accuracy(), one.test.loss);
  std::printf("\n");
}

// Training that stops, is saved, and goes on has the bits of training that does not.
bool can_be_resumed(const Goal& goal, const Options& options) {
  constexpr std::int64_t half = 15;
  const std::filesystem::path path = options.out / "stopped.safetensors";
  Run straight = make_run(goal, options, 2), stopped = make_run(goal, options, 2),
      resumed = make_run(goal, options, 2);
  straight.advance(2 * half, "without a stop");
  stopped.advance(half, "with a stop");
  stopped.save(path);
  resumed.load(path);
  resumed.advance(2 * half, "after the stop");
  std::filesystem::remove(path);
  const std::vector<Weight> one = straight.model.weights(), other = resumed.model.weights();
  for (std::size_t n = 0; n < one.size(); ++n)
    if (std::memcmp(one[n].values.data(), other[n].values.data(), one[n].values.size_bytes()) != 0)
      return false;
  return true;
}

bool is_enough(bool is_reached, const std::string& what, double found, double wanted) {
  if (!is_reached) std::printf("%s: %.3f, but %.3f was wanted\n", what.c_str(), found, wanted);
  return is_reached;
}

bool knows(const std::string& what, const Score& found, double accuracy) {
  return is_enough(found.accuracy() >= accuracy, what, found.accuracy(), accuracy);
}

bool predicts(const std::string& what, const Score& found, double loss) {
  return is_enough(found.loss <= loss, what, found.loss, loss);
}

std::string own_text() {
  std::ifstream file(HEED_TRAINING_TEXT);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Sanitizers make it slow, and have seen enough when the loss has begun to fall.
bool run_quick(const Options& options) {
  const char* selection = std::getenv("HEED_TEST_SELECTION");
  const bool is_small = selection && std::string(selection) == "small";
  const Recall recall;
  const Goal goal{"recall", "recall", recall, is_small ? 40 : 300, 5};
  Run run = make_run(goal, options, 2);
  run.advance(goal.steps, "recall, GQA");
  const Score test = run.test();
  std::printf("recall with 2 KV heads of 4, %lld steps: %.1f%%\n", static_cast<long long>(goal.steps),
              100 * test.accuracy());
  const bool is_same = can_be_resumed(goal, options);
  std::printf("stopped, saved and resumed: %s\n", is_same ? "the same bits" : "OTHER BITS");
  return (is_small ? predicts("loss", test, 3.8) : knows("accuracy", test, 0.9)) && is_same;
}

bool run_all(const Options& options) {
  const Recall recall;
  const Text text(own_text());
  const Goal goals[] = {{"recall", "recall", recall, 1000, 5}, {"text", "text", text, 600, 4}};
  bool is_well = true;
  for (const Goal& goal : goals) {
    const std::vector<Learned> learned = learn(goal, options);
    print(goal, learned);
    std::fflush(stdout);
    for (const Learned& one : learned) {
      const bool is_pooled = one.name.starts_with("  "), is_raw = one.name.starts_with("MHA averaged");
      if (is_raw) continue;
      const std::string what = std::string(goal.name) + ", " + one.name;
      is_well &= &goal.task == &text
                     ? predicts(what, one.test, wanted_loss)
                     : knows(what, one.test, is_pooled ? wanted_after_pooling : wanted_accuracy);
    }
  }
  const bool is_same = can_be_resumed(goals[0], options);
  std::printf("stopped, saved and resumed: %s\n", is_same ? "the same bits" : "OTHER BITS");
  return is_well && is_same;
}

}  // namespace
}  // namespace train

int main(int count, char** words) {
  train::Options options;
  for (int n = 1; n < count; ++n) {
    const std::string word = words[n];
    if (word == "--quick")
      options.is_quick = true;
    else if (word == "--seed" && n + 1 < count)
      options.seed = std::stoull(words[++n]);
    else if (word == "--out" && n + 1 < count)
      options.out = words[++n];
    else
      return std::fprintf(stderr, "usage: %s [--quick] [--seed N] [--out FOLDER]\n", words[0]), 2;
  }
  try {
    return (options.is_quick ? train::run_quick(options) : train::run_all(options)) ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
