// SPDX-License-Identifier: Apache-2.0
// What a thread does that looks for something again and again.
#pragma once

namespace heed::threads {

// Some 20 ns.
inline void relax() {
#if defined(__aarch64__)
  asm volatile("isb");  // "yield" takes no time on most cores
#elif defined(__x86_64__)
  asm volatile("pause");
#endif
}

}  // namespace heed::threads
