// SPDX-License-Identifier: Apache-2.0
// Queries, keys and values in double precision, each read once: plain rows for the loops of the reference and
// of its bound.
#pragma once
#include <cstdint>
#include <vector>

#include "problem/problem.hpp"

namespace heed::reference {

class Rows {
 public:
  explicit Rows(const View&);

  // The `dim` numbers at (b, h, i). A batch of one is every entry's: packed sequences share their rows (S19).
  const double* operator()(std::int64_t b, std::int64_t h, std::int64_t i) const {
    return numbers_.data() + b * stride_.batch + h * stride_.heads + i * stride_.length;
  }

 private:
  Strides stride_;
  std::vector<double> numbers_;
};

struct Numbers {
  explicit Numbers(const Problem& p) : q(p.inputs.q), k(p.inputs.k), v(p.inputs.v) {}

  Rows q, k, v;
};

// The specification that runs: one query of one head, in double precision.

struct Row {
  std::vector<double> raw, softcapped,
      biased;                       // the score of every key at each stage; biased is -inf where unseen
  std::vector<double> probability;  // softmax over the visible keys
  std::vector<double> weight;       // after dropout
  std::vector<double> out;
  double log_sum_exp = 0;
};

Row row(const Problem&, const Numbers&, std::int64_t b, std::int64_t h, std::int64_t i);

// The score of one key, whose row these are with that of the query, at each stage.
struct KeyScore {
  double raw, softcapped, biased;
};
KeyScore score(const Problem&, const double* q_row, const double* k_row, std::int64_t b, std::int64_t h,
               std::int64_t i, std::int64_t j);

// Whether the dropout that the options ask for drops that weight.
bool dropped(const Problem&, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j);

// What ALiBi adds to the score of query i and key j; 0 where there is none.
double alibi(const Problem&, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j);

// The element at (b, h, i, d) of a view of any dtype, and its opposite, which rounds once.
double read(const View&, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t d);
void write(const MutableView&, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t d, double value);

// Every row, written to the problem's outputs: the kernel named "reference".
void run(const Problem&);

}  // namespace heed::reference
