// SPDX-License-Identifier: Apache-2.0
// A processor that has everything.
#pragma once
#include <unistd.h>  // before syscall() is a macro

#define bit_F16C (1u << 29)
static inline int __get_cpuid(unsigned, unsigned* a, unsigned* b, unsigned* c, unsigned* d) {
  return *a = *b = *c = *d = ~0u, 1;
}
static inline int __get_cpuid_count(unsigned, unsigned, unsigned* a, unsigned* b, unsigned* c, unsigned* d) {
  return *a = *b = *c = *d = ~0u, 1;
}
#define SYS_arch_prctl 0
#define syscall(...) 0
