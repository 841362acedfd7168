// SPDX-License-Identifier: Apache-2.0
// rotate(): what is refused, and who rotates.
#include "backend/backend.hpp"
#include "heed/rotary.hpp"
#include "refusal/refusal.hpp"
#include "rotary/rotary.hpp"

namespace HEED_NAMESPACE {
namespace {

void check_counts(const Shape& shape, std::int64_t positions, std::int64_t lengths) {
  if (positions != shape.length && positions != shape.batch * shape.length)
    throw refusal(Error::shape, "positions: ", positions, " entries are neither x.length: ", shape.length,
                  " nor x.batch * x.length: ", shape.batch * shape.length);
  if (lengths > 1 && lengths != shape.batch)
    throw refusal(Error::shape, "lengths: ", lengths, " entries are neither 1 nor x.batch: ", shape.batch);
}

}  // namespace

void rotate(const MutableView& x, std::span<const std::int64_t> positions, const Rotary& rotary,
            std::span<const std::int64_t> lengths) {
  const Backend& backend = backend_of("x", x.device);
  check_argument({"x", x});
  check_own_places({"x", x});
  rotary::check_rotary(rotary, x.shape.dim, "rotary");
  check_counts(x.shape, std::ssize(positions), std::ssize(lengths));
  backend.rotate({{x}}, positions, rotary, lengths);
}

}  // namespace HEED_NAMESPACE
