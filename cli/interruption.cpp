// SPDX-License-Identifier: Apache-2.0
// See interruption.hpp.
#include "interruption.hpp"

#include <csignal>

namespace heed::tool {
namespace {

volatile std::sig_atomic_t noted = 0;

// The second signal ends the process.
void note(int signal) {
  noted = 1;
  std::signal(signal, SIG_DFL);
}

}  // namespace

Interruption::Interruption(const Console& console) : console_(console) {
  noted = 0;
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, note);
}

Interruption::~Interruption() {
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, SIG_DFL);
}

bool Interruption::came() const {
  if (noted != 0) console_.progress("");
  return noted != 0;
}

}  // namespace heed::tool
