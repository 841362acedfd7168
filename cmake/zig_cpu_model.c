// SPDX-License-Identifier: Apache-2.0
// What __builtin_cpu_supports() reads, for programs that zig links: its runtime library lacks it, where those of gcc and clang
// have it. Only scripts/ports uses this. The numbers are those of LLVM's compiler-rt.
#include <cpuid.h>

enum { AVX2 = 10, FMA = 14, AVX512F = 15, AVX512VL = 20, AVX512BW = 21 };

struct {
  unsigned vendor, type, subtype, features[1];
} __cpu_model;

static unsigned saved_registers(void) {
  unsigned low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

__attribute__((constructor)) static void find_features(void) {
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return;
  const unsigned has_fma = c & bit_FMA, saved = saved_registers(), vectors = 0x06, wide_vectors = 0xe6;
  if ((saved & vectors) != vectors || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return;
  unsigned features = (has_fma ? 1u << FMA : 0) | (b & bit_AVX2 ? 1u << AVX2 : 0);
#ifndef __APPLE__  // macOS saves them from their first use on
  if ((saved & wide_vectors) == wide_vectors)
#endif
    features |= (b & bit_AVX512F ? 1u << AVX512F : 0) | (b & bit_AVX512VL ? 1u << AVX512VL : 0) |
                (b & bit_AVX512BW ? 1u << AVX512BW : 0);
  __cpu_model.features[0] = features;
}
