// SPDX-License-Identifier: Apache-2.0
// What a command is to the tool: a function that adds its options to `app` and returns what to do once they
// are parsed.
#pragma once
#include <functional>

#include "console.hpp"

namespace heed::tool {

// The tool's exit statuses. Bad input is thrown, not returned.
enum Status : int { done = 0, failed_check = 1, bad_input = 2, interrupted = 130 };

using Action = std::function<Status(Console&)>;

}  // namespace heed::tool
