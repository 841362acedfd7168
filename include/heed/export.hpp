// SPDX-License-Identifier: Apache-2.0
// HEED_API marks what a shared library of heed exports: all else is hidden in it.
#pragma once

#define HEED_API [[gnu::visibility("default")]]
