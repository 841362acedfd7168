// SPDX-License-Identifier: Apache-2.0
// The playground's page.
#include "files/atomic_file.hpp"
#include "heed/view.hpp"
#include "view/page_text.hpp"

namespace HEED_NAMESPACE::view {

void save_playground(const std::filesystem::path& path) {
  files::AtomicFile file(path);
  file.write(playground_whole.data(), playground_whole.size());
  file.commit();
}

}  // namespace HEED_NAMESPACE::view
