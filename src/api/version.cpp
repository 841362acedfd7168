// SPDX-License-Identifier: Apache-2.0
// The version of the library that is linked, which need not be the one of the headers a program was compiled
// with.
#include "heed/version.hpp"

#define HEED_TEXT_OF(number) #number
#define HEED_DOTTED(major, minor, patch) HEED_TEXT_OF(major) "." HEED_TEXT_OF(minor) "." HEED_TEXT_OF(patch)

namespace HEED_NAMESPACE {

const char* version() { return HEED_DOTTED(HEED_VERSION_MAJOR, HEED_VERSION_MINOR, HEED_VERSION_PATCH); }

}  // namespace HEED_NAMESPACE
