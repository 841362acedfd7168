# SPDX-License-Identifier: Apache-2.0
# Compiles SOURCE twice: as it stands, which must fail, and with -DFIXED, which must succeed, so that the
# failure has the reason its first comment gives and no other.
# Run as cmake -DCOMPILER=... -DINCLUDE=... -DSOURCE=... -P this file.
set(compile ${COMPILER} -std=c++20 -fsyntax-only -pedantic-errors -I${INCLUDE})

execute_process(COMMAND ${compile} -DFIXED ${SOURCE} RESULT_VARIABLE fixed ERROR_VARIABLE messages)
if(NOT fixed EQUAL 0)
  message(FATAL_ERROR "the corrected form of ${SOURCE} does not compile:\n${messages}")
endif()

execute_process(COMMAND ${compile} ${SOURCE} RESULT_VARIABLE misused ERROR_VARIABLE messages)
if(misused EQUAL 0)
  message(FATAL_ERROR "${SOURCE} compiles, and must not")
endif()
