// SPDX-License-Identifier: Apache-2.0
// The playground's page, if this heed was built with it.
#include "files/atomic_file.hpp"
#include "heed/view.hpp"
#include "view/page_text.hpp"

namespace heed::inline v0_2::view {

void save_playground(const std::filesystem::path& path) {
  if (playground_whole.empty())
    throw Error(Error::unsupported,
                "playground: this heed was built without one; build the preset wasm first, then heed again");
  files::AtomicFile file(path);
  file.write(playground_whole.data(), playground_whole.size());
  file.commit();
}

}  // namespace heed::inline v0_2::view
