// SPDX-License-Identifier: Apache-2.0
// A stream of keys on one CPU target.
#pragma once
#include <memory>

#include "backend/backend.hpp"
#include "cpu/isa/target.hpp"

namespace heed::cpu {

std::unique_ptr<Stream> begin_stream(const Target&, const Problem&);

}  // namespace heed::cpu
