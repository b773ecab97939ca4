# MPI for the mpi backend, and tests that run as the ranks of a job.
#
#   quatrain_mpi_test(<name>
#     RANKS     numbers of processes: one ctest entry <name>_<n> each, labelled mpi
#     SOURCES   *_test.cc files; main() comes with them: it makes the MpiWorld, and the first failed
#               test of any rank ends the job with its message
#     LIBRARIES targets                           (optional, beside comm)
#     ARGS      of the binary                     (optional)
#     LABEL     more than "mpi"                   (optional)
#     TIMEOUT   seconds)                          (optional: 120)
#
# Without MPI (WITH_MPI=OFF) the entries are there and say that they are skipped.
if(WITH_MPI)
  set(MPI_CXX_SKIP_MPICXX ON)
  find_package(MPI REQUIRED COMPONENTS CXX)
endif()

# The command that runs ranks on this host, however few cores it has; "-n <ranks>" follows.
set(QUATRAIN_MPIRUN ${MPIEXEC_EXECUTABLE} --allow-run-as-root --oversubscribe --bind-to none
    --tag-output)

function(quatrain_mpi_test name)
  cmake_parse_arguments(T "" "LABEL;TIMEOUT" "RANKS;SOURCES;LIBRARIES;ARGS" ${ARGN})
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 120)
  endif()
  if(WITH_MPI)
    add_executable(${name} ${T_SOURCES} ${PROJECT_SOURCE_DIR}/quatrain/comm/mpi/mpi_test_main.cc)
    target_link_libraries(${name} PRIVATE quatrain_comm ${T_LIBRARIES} quatrain_warnings
                                          GTest::gmock GTest::gtest)
    target_compile_options(${name} PRIVATE ${QUATRAIN_TEST_FLAGS})
    target_precompile_headers(${name} REUSE_FROM quatrain_pch)
  endif()
  foreach(ranks ${T_RANKS})
    set(test ${name}_${ranks})
    if(WITH_MPI)
      add_test(NAME ${test} COMMAND ${QUATRAIN_MPIRUN} -n ${ranks} $<TARGET_FILE:${name}>
               --gtest_brief=1 ${T_ARGS})
    else()
      add_test(NAME ${test} COMMAND ${CMAKE_COMMAND} -E echo "skipped: built with WITH_MPI=OFF")
    endif()
    # Ranks beyond the cores only slow each other down: one job at a time.
    set_tests_properties(${test} PROPERTIES LABELS "mpi;${T_LABEL}" TIMEOUT ${T_TIMEOUT}
      PROCESSORS ${ranks} RESOURCE_LOCK mpi SKIP_REGULAR_EXPRESSION "skipped: built with")
  endforeach()
endfunction()
