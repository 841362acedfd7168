# SPDX-License-Identifier: Apache-2.0
# Compiles and links the program: against the present headers, which must do; then against older ones, and with flags that give the
# standard library's types another size, which must compile and end in a linker's sentence that names what is missing.
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

# must_not_link(WHAT SYMBOL FLAGS...): compiles with these flags, and the linker says that there is no SYMBOL.
function(must_not_link what symbol)
  run_or_fail(${COMPILER} -std=c++20 ${ARGN} -c ${source} -o ${PROGRAM}.o)
  execute_process(COMMAND ${COMPILER} ${PROGRAM}.o -o ${PROGRAM} ${link} RESULT_VARIABLE status ERROR_VARIABLE messages)
  if(status EQUAL 0)
    message(FATAL_ERROR "a program compiled ${what} is linked with ${LIBRARY}")
  elseif(NOT messages MATCHES "undefined (reference to|symbol:) .?${symbol}\\(")
    message(FATAL_ERROR "${what}: the linker does not name what is missing, ${symbol}:\n${messages}")
  endif()
endfunction()

run_or_fail(${COMPILER} -std=c++20 -DFIXED -I${INCLUDE} ${source} -o ${PROGRAM} ${link})
run_or_fail(${PROGRAM})

must_not_link("against older headers" "heed::attention")
set(present -DFIXED -I${INCLUDE})
must_not_link("with strings of another kind" "heed::v[0-9]+_[0-9]+_with_GLIBCXX_USE_CXX11_ABI_0::attention" ${present} -D_GLIBCXX_USE_CXX11_ABI=0)
must_not_link("with vectors of another kind" "heed::v[0-9]+_[0-9]+_with_GLIBCXX_DEBUG::attention" ${present} -D_GLIBCXX_DEBUG)
