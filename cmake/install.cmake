# What `cmake --install` puts where: the library, its headers, a CMake package and a pkg-config file, all relocatable.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(heed_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/heed)

set(heed_libraries heed)
foreach(beside heed_ranks heed_view)
  if(TARGET ${beside})
    list(APPEND heed_libraries ${beside})
  endif()
endforeach()
install(TARGETS ${heed_libraries} EXPORT heedTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/heed DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.hpp" PATTERN "c.h")
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

# A static library leaves the libraries that it needs to the program. Those of C++ no linker of C knows: stdc++ and m of g++.
set(heed_runtime "")
if(NOT BUILD_SHARED_LIBS)
  set(heed_runtime ${CMAKE_CXX_IMPLICIT_LINK_LIBRARIES})
  list(FILTER heed_runtime INCLUDE REGEX "^((std)?c\\+\\+(abi)?|m)$")
  list(REMOVE_DUPLICATES heed_runtime)
endif()

install(EXPORT heedTargets NAMESPACE heed:: DESTINATION ${heed_package_dir})
configure_package_config_file(cmake/heedConfig.cmake.in ${PROJECT_BINARY_DIR}/heedConfig.cmake
  INSTALL_DESTINATION ${heed_package_dir} NO_SET_AND_CHECK_MACRO)
# What was written for 0.2 compiles with this version, what was written for 0.1 does not. A range of versions, such as 0.1...0.3, is its
# writer's own word.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/heedConfigVersion.cmake COMPATIBILITY SameMajorVersion)
file(APPEND ${PROJECT_BINARY_DIR}/heedConfigVersion.cmake [[
if(PACKAGE_FIND_VERSION AND NOT PACKAGE_FIND_VERSION_RANGE AND PACKAGE_FIND_VERSION VERSION_LESS 0.2)
  set(PACKAGE_VERSION_COMPATIBLE FALSE)
endif()
]])
install(FILES ${PROJECT_BINARY_DIR}/heedConfig.cmake ${PROJECT_BINARY_DIR}/heedConfigVersion.cmake cmake/heedMpi.cmake
  DESTINATION ${heed_package_dir})

# The prefix is found from where heed.pc itself lies, so an installed tree can be moved and `cmake --install --prefix` is
# honoured; a folder that was configured as an absolute path stays absolute.
file(RELATIVE_PATH heed_pc_to_prefix "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
cmake_path(APPEND heed_pc_libdir "\${prefix}" "${CMAKE_INSTALL_LIBDIR}")
cmake_path(APPEND heed_pc_includedir "\${prefix}" "${CMAKE_INSTALL_INCLUDEDIR}")
if(NOT BUILD_SHARED_LIBS)
  if(HEED_RANKS)
    string(APPEND heed_pc_static " -lheed_ranks -lheed")
  endif()
  foreach(library IN LISTS heed_runtime)
    string(APPEND heed_pc_static " -l${library}")
  endforeach()
  if(HEED_CUDA)
    string(APPEND heed_pc_static " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lrt -ldl")
  endif()
endif()
configure_file(cmake/heed.pc.in ${PROJECT_BINARY_DIR}/heed.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/heed.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
