# Toolchain: WebAssembly by emscripten (Debian's 3.1.6 or later), run by node. Exceptions and SIMD128 are the machine's own, which
# every browser has had since 2022; there is one thread.
execute_process(COMMAND em-config EMSCRIPTEN_ROOT OUTPUT_VARIABLE emscripten OUTPUT_STRIP_TRAILING_WHITESPACE
  COMMAND_ERROR_IS_FATAL ANY)
set(EMSCRIPTEN_SYSTEM_PROCESSOR wasm32)
include(${emscripten}/cmake/Modules/Platform/Emscripten.cmake)
# A missing piece of the standard library is supplied here and not written around in the sources.
set(CMAKE_CXX_FLAGS_INIT "-fwasm-exceptions -msimd128 -include ${CMAKE_CURRENT_LIST_DIR}/wasm_library.hpp")
set(CMAKE_EXE_LINKER_FLAGS_INIT "-fwasm-exceptions -sALLOW_MEMORY_GROWTH=1")
# emscripten's loader prefers a network call, where node has one, to the file beside it.
set(CMAKE_CROSSCOMPILING_EMULATOR node --no-experimental-fetch)
