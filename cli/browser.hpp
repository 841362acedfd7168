// SPDX-License-Identifier: Apache-2.0
// Starts the machine's browser on a file.
#pragma once
#include <string>

namespace heed::tool {

// False where there is none to start. Does not wait for it.
bool open_in_browser(const std::string& path);

}  // namespace heed::tool
