# `cpack` in a build folder makes heed_VERSION_ARCHITECTURE.deb: the libraries, their headers, the tool, its manual pages and completion.
set(HEED_MAINTAINER "The authors of heed <heed@heed.invalid>" CACHE STRING "Who answers for the Debian package")
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME heed)
set(CPACK_PACKAGE_CONTACT ${HEED_MAINTAINER})
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "attention for C++, exact to a written specification")
set(CPACK_PACKAGE_DESCRIPTION "Scaled dot-product attention, caches and attention layers for the CPU: the
kernels for every instruction set are inside and chosen at run time, and
results have the same bits on every machine. With the heed command, which
runs, checks, measures and shows attention.")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_CURRENT_LIST_DIR}/files.cmake)
include(CPack)
