// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "backend/backend.hpp"

namespace heed::cpu {

const Backend& cpu_backend();

// What is wrong with HEED_TARGET; empty where nothing is, or it is not set.
std::string target_variable_fault();

}  // namespace heed::cpu
