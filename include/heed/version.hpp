// SPDX-License-Identifier: Apache-2.0
// The version, in one place.
#pragma once
#include <version>

#define HEED_VERSION_MAJOR 0
#define HEED_VERSION_MINOR 3
#define HEED_VERSION_PATCH 0

// What gives the strings and vectors of the standard library another size, by name.
#if defined(_LIBCPP_VERSION)
#define HEED_STANDARD_LIBRARY _with_libcxx
#elif defined(_GLIBCXX_DEBUG)
#define HEED_STANDARD_LIBRARY _with_GLIBCXX_DEBUG
#elif defined(_GLIBCXX_USE_CXX11_ABI) && !_GLIBCXX_USE_CXX11_ABI
#define HEED_STANDARD_LIBRARY _with_GLIBCXX_USE_CXX11_ABI_0
#else
#define HEED_STANDARD_LIBRARY
#endif

// The namespace of the API, heed::inline v0_3: a program that was compiled against another minor version, or
// with another standard library than heed itself, does not link, and the linker names the one it looks for.
#define HEED_NAMESPACE_OF(major, minor, standard_library) heed::inline v##major##_##minor##standard_library
#define HEED_NAMESPACE_FOR(major, minor, standard_library) HEED_NAMESPACE_OF(major, minor, standard_library)
#define HEED_NAMESPACE HEED_NAMESPACE_FOR(HEED_VERSION_MAJOR, HEED_VERSION_MINOR, HEED_STANDARD_LIBRARY)

#include "heed/export.hpp"

namespace HEED_NAMESPACE {
HEED_API const char* version();  // "0.3.0", of the library that is linked
}
