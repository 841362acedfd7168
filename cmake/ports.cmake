# Toolchain: builds for macOS and Windows on Linux with zig's clang, whose headers and C++ library it brings. HEED_PORT is
# aarch64-macos, x86_64-macos or x86_64-windows-gnu, HEED_ZIG the folder with zig-c++, zig-cc, zig-ar, zig-ranlib and
# cpu_model-*.o: scripts/ports makes it.
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES HEED_PORT HEED_ZIG)
string(REGEX MATCH "^[^-]+" CMAKE_SYSTEM_PROCESSOR ${HEED_PORT})
if(HEED_PORT MATCHES "windows")
  set(CMAKE_SYSTEM_NAME Windows)
else()
  set(CMAKE_SYSTEM_NAME Darwin)
  set(CMAKE_OSX_SYSROOT "")  # there is none: zig has the headers
endif()
set(CMAKE_CXX_COMPILER ${HEED_ZIG}/zig-c++)
set(CMAKE_C_COMPILER ${HEED_ZIG}/zig-cc)
set(CMAKE_AR ${HEED_ZIG}/zig-ar)
set(CMAKE_RANLIB ${HEED_ZIG}/zig-ranlib)
if(HEED_PORT MATCHES "x86_64")
  set(CMAKE_EXE_LINKER_FLAGS_INIT ${HEED_ZIG}/cpu_model-${HEED_PORT}.o)  # of zig_cpu_model.c
endif()
set(CMAKE_CXX_FLAGS_INIT "-target ${HEED_PORT}")
set(CMAKE_C_FLAGS_INIT "-target ${HEED_PORT}")
