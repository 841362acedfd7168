# SPDX-License-Identifier: Apache-2.0
# Compiles SOURCE twice: as it stands, which must fail, and with -DFIXED, which must succeed, so that the
# failure has the reason its first comment gives and no other.
# Run as cmake -DCOMPILER=... -DINCLUDE=FOLDER[;FOLDER...] -DSOURCE=... [-DFIRST=HEADER] [-DSAYS=TEXT] -P this file. HEADER, which
# may be a precompiled one, comes before everything else. TEXT must be among the compiler's messages; so must what a line
# "// Says: ..." of SOURCE has.
list(TRANSFORM INCLUDE PREPEND -I)
set(compile ${COMPILER} -std=c++20 -fsyntax-only -pedantic-errors ${INCLUDE})
if(DEFINED FIRST)
  list(APPEND compile -include ${FIRST})
endif()

execute_process(COMMAND ${compile} -DFIXED ${SOURCE} RESULT_VARIABLE fixed ERROR_VARIABLE messages)
if(NOT fixed EQUAL 0)
  message(FATAL_ERROR "the corrected form of ${SOURCE} does not compile:\n${messages}")
endif()

execute_process(COMMAND ${compile} ${SOURCE} RESULT_VARIABLE misused ERROR_VARIABLE messages)
if(misused EQUAL 0)
  message(FATAL_ERROR "${SOURCE} compiles, and must not")
endif()
file(STRINGS ${SOURCE} sentence REGEX "^// Says: ")
if(sentence)
  string(REPLACE "// Says: " "" SAYS "${sentence}")
endif()
if(DEFINED SAYS)
  string(FIND "${messages}" "${SAYS}" said)
  if(said EQUAL -1)
    message(FATAL_ERROR "${SOURCE}: the compiler does not say \"${SAYS}\":\n${messages}")
  endif()
endif()
