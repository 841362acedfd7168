# SPDX-License-Identifier: Apache-2.0
# Compiles and links the program twice: against the present headers, which must do, and against older ones, which must compile
# and then end in a linker's sentence that names what is missing.
# Run as cmake -DCOMPILER=... -DINCLUDE=... -DLIBRARY=... -DPROGRAM=... -P this file.
set(source ${CMAKE_CURRENT_LIST_DIR}/program.cpp)
get_filename_component(folder ${LIBRARY} DIRECTORY)
set(link ${LIBRARY} -Wl,-rpath,${folder} -pthread)

function(run_or_fail)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status ERROR_VARIABLE messages)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${ARGN}: ${status}\n${messages}")
  endif()
endfunction()

run_or_fail(${COMPILER} -std=c++20 -DFIXED -I${INCLUDE} ${source} -o ${PROGRAM} ${link})
run_or_fail(${PROGRAM})

run_or_fail(${COMPILER} -std=c++20 -c ${source} -o ${PROGRAM}.o)
execute_process(COMMAND ${COMPILER} ${PROGRAM}.o -o ${PROGRAM} ${link} RESULT_VARIABLE status ERROR_VARIABLE messages)
if(status EQUAL 0)
  message(FATAL_ERROR "a program compiled against older headers is linked with ${LIBRARY}")
elseif(NOT messages MATCHES "undefined (reference to|symbol:) .?heed::attention\\(heed::Inputs")
  message(FATAL_ERROR "the linker does not name what is missing:\n${messages}")
endif()
