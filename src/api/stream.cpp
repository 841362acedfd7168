// SPDX-License-Identifier: Apache-2.0
// KeyStream: keys that come in stretches, and what is refused of a stretch.
#include "heed/stream.hpp"

#include "api/plan.hpp"
#include "backend/backend.hpp"
#include "call/make_problem.hpp"
#include "cpu/drivers.hpp"
#include "threads/pool.hpp"

namespace heed::api {
void check_none_needs_repair(const char* name, const Problem& p) {
  const std::vector<cpu::RowToRepair> rows = cpu::rows_to_repair(p);
  if (rows.empty()) return;
  throw refusal(Error::value, name, ": numbers on the way to out(", rows[0].b, ", ", rows[0].h, ", ",
                rows[0].i - p.first_query_here(), ") do not fit f32 or are none, as for ", std::ssize(rows),
                " rows in all; attention() over all keys at once computes them in 64 bits");
}

}  // namespace heed::api

namespace HEED_NAMESPACE {
using namespace api;

struct KeyStream::State {
  State(const StreamInputs& inputs, const Outputs& outputs, const Options& options)
      : problem(make_stream_problem(inputs, outputs, options)) {
    const threads::ForOneCall settings(options.threads, options.executor);
    running = choose(Work::stream, problem).begin_stream(problem);
  }

  Stream& going(const char* name) const {
    if (!running) throw refusal(Error::value, name, ": the stream is finished");
    return *running;
  }

  Problem problem;
  std::unique_ptr<Stream> running{};
  std::int64_t keys = 0;
};

KeyStream::KeyStream(const StreamInputs& inputs, const Outputs& outputs, const Options& options) {
  backend_of("q", inputs.q.device);
  state_ = std::make_unique<State>(inputs, outputs, options);
}
KeyStream::~KeyStream() = default;
KeyStream::KeyStream(KeyStream&&) noexcept = default;
KeyStream& KeyStream::operator=(KeyStream&&) noexcept = default;

void KeyStream::add(const View& k, const View& v) {
  Stream& running = state_->going("add");
  call::check_stretch(state_->problem, k, v, state_->keys);
  const threads::ForOneCall settings(state_->problem.options.threads, state_->problem.options.executor);
  running.add(call::with_dimensions(k), v);
  state_->keys += k.shape.length;
}

std::int64_t KeyStream::keys() const { return state_->keys; }

void KeyStream::finish() {
  Stream& running = state_->going("finish");
  const Problem& p = state_->problem;
  if (p.keys != unknown_keys && state_->keys != p.keys)
    throw refusal(Error::shape, "finish: ", state_->keys, " keys were added, not ", p.keys, ", as was said");
  const threads::ForOneCall settings(p.options.threads, p.options.executor);
  const bool needs_repair = running.finish();
  state_->running.reset();
  if (needs_repair) check_none_needs_repair("finish", p);
}

}  // namespace HEED_NAMESPACE
