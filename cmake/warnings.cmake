# heed_compile_options(target): the warnings and sanitizers every target of ours is built with, and no others: nothing
# here leaks into a project that adds heed as a subdirectory.
function(heed_compile_options target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF)
  foreach(warning -Wall -Wextra -Wpedantic -Wconversion -Wshadow)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${warning}>)
  endforeach()
  if(CMAKE_SIZEOF_VOID_P EQUAL 4)
    # Extents are counted in 64 bits everywhere; those of an array that exists fit a pointer.
    target_compile_options(${target} PRIVATE -Wno-shorten-64-to-32)
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # At -O3 g++ 12 sees copies that overlap in every "text" + std::string (its bug 105651).
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
  endif()
  if(HEED_WERROR)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Werror> $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
  endif()
  if(HEED_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${HEED_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=${HEED_SANITIZE})
  endif()
endfunction()

# For AVX-512's files: g++ 12 takes its own headers' undefined vectors for uninitialised ones. clang knows no such option.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(heed_undefined_vectors -Wno-maybe-uninitialized -Wno-uninitialized)
endif()
