// SPDX-License-Identifier: Apache-2.0
// For programs that run under ThreadSanitizer with a heed that was not compiled for it: there it sees what
// memset and memcpy write, but no atomic of heed's, and would take heed's threads for a race.
#pragma once

// A heed that was compiled for it is seen as it is.
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define HEED_THREAD_SANITIZER
#endif
#elif defined(__SANITIZE_THREAD__)
#define HEED_THREAD_SANITIZER
#endif

#if defined(__ELF__) && !defined(HEED_THREAD_SANITIZER)
extern "C" [[gnu::weak]] void __tsan_release(void* at);
extern "C" [[gnu::weak]] void __tsan_acquire(void* at);
#endif

namespace heed::threads {

// Everything before tell_tsan_before(at) happens before everything after tell_tsan_after(at).
#if defined(__ELF__) && !defined(HEED_THREAD_SANITIZER)
inline void tell_tsan_before(void* at) {
  if (__tsan_release) __tsan_release(at);
}
inline void tell_tsan_after(void* at) {
  if (__tsan_acquire) __tsan_acquire(at);
}
#else
inline void tell_tsan_before(void*) {}
inline void tell_tsan_after(void*) {}
#endif

}  // namespace heed::threads
