// SPDX-License-Identifier: Apache-2.0
// The version, in one place.
#pragma once

#define HEED_VERSION_MAJOR 0
#define HEED_VERSION_MINOR 3
#define HEED_VERSION_PATCH 0

// The namespace of the API, heed::inline v0_3: a program that was compiled against another minor version does
// not link.
#define HEED_NAMESPACE_OF(major, minor) heed::inline v##major##_##minor
#define HEED_NAMESPACE_FOR(major, minor) HEED_NAMESPACE_OF(major, minor)
#define HEED_NAMESPACE HEED_NAMESPACE_FOR(HEED_VERSION_MAJOR, HEED_VERSION_MINOR)

#include "heed/export.hpp"

namespace HEED_NAMESPACE {
HEED_API const char* version();  // "0.3.0", of the library that is linked
}
