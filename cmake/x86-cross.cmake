# Toolchain: builds for x86-64 on another machine and runs what it built under QEMU's user emulation, which knows AVX2
# but not AVX-512. Debian and Ubuntu: g++-x86-64-linux-gnu, qemu-user.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR x86_64)
set(CMAKE_CXX_COMPILER x86_64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-x86_64 -L /usr/x86_64-linux-gnu -cpu max)
