// SPDX-License-Identifier: Apache-2.0
// Every float: the error of exp2 over [-127, 0] and of tanh over [0, 16], as docs/numerics.md states it. Some
// two billion values, a minute or so on two cores, so not a test; `exp2_sweep [threads]`.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "simd/accuracy.hpp"
#include "simd/available.hpp"

namespace heed::simd {
namespace {

using Measure = Accuracy (*)(const Operations&, const std::vector<float>&, std::vector<float>&);

// All floats whose bits lie in [first, last], shared out in blocks.
Accuracy sweep(const Operations& s, Measure measure, std::uint32_t first, std::uint32_t last,
               unsigned threads) {
  constexpr std::uint32_t block = 96 * 512;
  std::vector<Accuracy> found(threads);
  std::vector<std::thread> workers;
  for (unsigned t = 0; t < threads; ++t)
    workers.emplace_back([&, t] {
      std::vector<float> x(block), out;
      for (std::uint64_t start = first + std::uint64_t{t} * block; start <= last;
           start += std::uint64_t{threads} * block) {
        for (std::uint32_t i = 0; i < block; ++i)
          x[i] = from_bits(static_cast<std::uint32_t>(std::min<std::uint64_t>(start + i, last)));
        found[t].add(measure(s, x, out));
      }
    });
  for (std::thread& worker : workers) worker.join();
  Accuracy worst;
  for (const Accuracy& one : found) worst.add(one);
  return worst;
}

}  // namespace
}  // namespace heed::simd

int main(int argc, char** argv) {
  using namespace heed::simd;
  const unsigned threads =
      argc > 1 ? static_cast<unsigned>(std::max(1, std::atoi(argv[1]))) : std::thread::hardware_concurrency();
  for (const Operations* s : compiled()) {
    if (!target_of(*s)->available()) continue;
    const Accuracy e = sweep(*s, exp2_accuracy, minus_zero, minus_127, threads);
    std::printf("%s exp2: %.4f u at %a (%.9g), tail %.4f * 2^-126 at %a\n", s->target, e.relative,
                static_cast<double>(e.worst_at), static_cast<double>(e.worst_at), e.tail,
                static_cast<double>(e.worst_tail_at));
    const Accuracy t = sweep(*s, tanh_accuracy, 1, plus_16, threads);
    std::printf("%s tanh: %.4f u at %a (%.9g)\n", s->target, t.relative, static_cast<double>(t.worst_at),
                static_cast<double>(t.worst_at));
    std::fflush(stdout);
    break;  // the suite shows that the others give the same bits
  }
}
