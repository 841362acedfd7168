// SPDX-License-Identifier: Apache-2.0
// heed explain: which kernel a problem runs on, and why not on the others.
#include <fmt/core.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "arguments.hpp"
#include "command.hpp"
#include "kernel_choice.hpp"

namespace heed::tool {

Action add_explain(CLI::App& app) {
  describe(app, "Which kernel attention would run on, and why not on the others",
           "Examples:\n"
           "  heed explain\n"
           "  heed explain --heads 32 --kv-heads 8 --head-dim 128 --length 1 --context-length 4096\n"
           "  heed explain --length 256 --causal --window 63,0 --json");
  auto options = std::make_shared<ShapeOptions>();
  options->add_to(app);
  return [options](Console& console) {
    options->use_threads();
    const Extents extents = resolve(*options);
    nlohmann::ordered_json kernels = nlohmann::ordered_json::array();
    const CallOptions chosen = make_options(*options, extents);
    for (const Verdict& verdict : plan_extents(*options, extents, chosen.options)) {
      const char* choice = name_of(verdict.choice);
      kernels.push_back({{"kernel", verdict.kernel}, {"verdict", choice}, {"reason", verdict.reason}});
      console.print(fmt::format("{}: {}{}{}", verdict.kernel, choice, verdict.reason.empty() ? "" : ": ",
                                verdict.reason));
    }
    console.result({{"problem", command_line(*options, extents)}, {"kernels", kernels}});
    return done;
  };
}

}  // namespace heed::tool
