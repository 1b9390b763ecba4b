# Writes OUT: the members of vcuda_build_info's JSON that only the build knows. The revision is that of native/ alone, so that a
# commit elsewhere leaves the library's bytes as they are.
find_program(GIT git)
set(REVISION unknown)
set(DIRTY true)
if(GIT)
  execute_process(COMMAND ${GIT} -C ${SOURCE} log -1 --format=%H -- . OUTPUT_VARIABLE revision RESULT_VARIABLE failed
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT failed AND revision)
    set(REVISION ${revision})
    execute_process(COMMAND ${GIT} -C ${SOURCE} status --porcelain -- . OUTPUT_VARIABLE changes ERROR_QUIET)
    if("${changes}" STREQUAL "")
      set(DIRTY false)
    endif()
  endif()
endif()
string(CONCAT text "#pragma once\n#define VCUDA_BUILD_INFO \\\n"
  "  \"\\\"compiler\\\": \\\"${COMPILER}\\\", \\\"flags\\\": \\\"${FLAGS}\\\", \" \\\n"
  "  \"\\\"revision\\\": \\\"${REVISION}\\\", \\\"dirty\\\": ${DIRTY}\"\n")
set(old "")
if(EXISTS ${OUT})
  file(READ ${OUT} old)
endif()
if(NOT old STREQUAL text)
  file(WRITE ${OUT} "${text}")
endif()
