# Toolchain: builds for the architecture HEED_CROSS (x86_64 or aarch64) on a machine of another and runs what it built under
# QEMU's user emulation, which knows AVX2, NEON and BFMMLA but not AVX-512. Debian and Ubuntu: g++-x86-64-linux-gnu or
# g++-aarch64-linux-gnu, and qemu-user.
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES HEED_CROSS)
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR ${HEED_CROSS})
set(CMAKE_CXX_COMPILER ${HEED_CROSS}-linux-gnu-g++)
set(CMAKE_C_COMPILER ${HEED_CROSS}-linux-gnu-gcc)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-${HEED_CROSS} -L /usr/${HEED_CROSS}-linux-gnu -cpu max)
