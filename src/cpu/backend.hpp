// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "backend/backend.hpp"

namespace heed::cpu {

const Backend& cpu_backend();

}  // namespace heed::cpu
