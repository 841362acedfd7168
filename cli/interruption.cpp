// SPDX-License-Identifier: Apache-2.0
// See interruption.hpp.
#include "interruption.hpp"

#include <csignal>

namespace heed::tool {
namespace {

volatile std::sig_atomic_t noted = 0;

void handle(int signal, void (*handler)(int), int flags) {
  struct sigaction action{};
  action.sa_handler = handler;
  action.sa_flags = flags;
  sigaction(signal, &action, nullptr);
}

}  // namespace

Interruption::Interruption(const Console& console) : console_(console) {
  noted = 0;
  for (const int signal : {SIGINT, SIGTERM})
    handle(signal, [](int) { noted = 1; }, static_cast<int>(SA_RESETHAND | SA_RESTART));
}

Interruption::~Interruption() {
  for (const int signal : {SIGINT, SIGTERM}) handle(signal, SIG_DFL, 0);
}

bool Interruption::came() const {
  if (noted != 0) console_.progress("");
  return noted != 0;
}

}  // namespace heed::tool
