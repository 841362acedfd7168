// SPDX-License-Identifier: Apache-2.0
// A case made ready to run: its inputs, its output, and the proof that the output is right.
#pragma once
#include <memory>
#include <string>

#include "bench/case.hpp"
#include "bench/verify.hpp"

namespace heed::tool {

class Workload {
 public:
  virtual ~Workload() = default;
  virtual void run() = 0;
  virtual std::int64_t repeats() const { return 1; }  // of the case in one run
  // How long what a run does besides the case takes by itself, now. It counts neither for the case nor
  // against it.
  virtual double seconds_besides() { return 0; }
  virtual std::string kernel() = 0;     // as the plan says; empty: not a kernel of the plan
  virtual Buffer& result() = 0;         // what run() writes
  virtual Findings verify() const = 0;  // of the result as it is now
};

std::unique_ptr<Workload> make_workload(const Case&);

// Appends random tokens to a sequence until it has this many.
void fill_sequence(KvCache&, std::int64_t sequence, std::int64_t length);

}  // namespace heed::tool
