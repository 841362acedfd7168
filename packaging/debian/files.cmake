# CPack calls this on what is to be packed: what Debian wants to be otherwise than `cmake --install` leaves it.
set(share ${CPACK_TEMPORARY_DIRECTORY}/usr/share)
file(GLOB pages ${share}/man/man1/*.1)
if(pages)
  execute_process(COMMAND gzip -9n ${pages} COMMAND_ERROR_IS_FATAL ANY)
endif()
if(EXISTS ${share}/zsh/site-functions)
  file(RENAME ${share}/zsh/site-functions ${share}/zsh/vendor-completions)
endif()
file(GLOB libraries ${CPACK_TEMPORARY_DIRECTORY}/usr/lib/*.a ${CPACK_TEMPORARY_DIRECTORY}/usr/lib/*/*.a)
if(libraries)
  execute_process(COMMAND strip --strip-debug ${libraries} COMMAND_ERROR_IS_FATAL ANY)
endif()

set(documents ${share}/doc/heed)
file(REMOVE ${documents}/LICENSE)
file(WRITE ${documents}/copyright "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: heed

Files: *
Copyright: 2026 The authors of heed
License: Apache-2.0
 The full text is in /usr/share/common-licenses/Apache-2.0.
")
string(TIMESTAMP now "%a, %d %b %Y %H:%M:%S +0000" UTC)
file(WRITE ${documents}/changelog "heed (${CPACK_PACKAGE_VERSION}) unstable; urgency=medium

  * Version ${CPACK_PACKAGE_VERSION}.

 -- ${CPACK_PACKAGE_CONTACT}  ${now}
")
execute_process(COMMAND gzip -9n ${documents}/changelog COMMAND_ERROR_IS_FATAL ANY)
