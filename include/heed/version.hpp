// SPDX-License-Identifier: Apache-2.0
#pragma once

#define HEED_VERSION_MAJOR 0
#define HEED_VERSION_MINOR 1
#define HEED_VERSION_PATCH 0

namespace heed {
const char* version();  // "0.1.0", of the library that is linked
}
