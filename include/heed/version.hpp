// SPDX-License-Identifier: Apache-2.0
#pragma once

#define HEED_VERSION_MAJOR 0
#define HEED_VERSION_MINOR 2
#define HEED_VERSION_PATCH 0

#include "heed/export.hpp"

namespace heed::inline v0_2 {
HEED_API const char* version();  // "0.2.0", of the library that is linked
}
