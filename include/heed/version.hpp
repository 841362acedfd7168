// SPDX-License-Identifier: Apache-2.0
#pragma once

#define HEED_VERSION_MAJOR 0
#define HEED_VERSION_MINOR 1
#define HEED_VERSION_PATCH 0

namespace heed::inline v0_2 {
const char* version();  // "0.1.0", of the library that is linked
}
