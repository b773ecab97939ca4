# One call a folder; the DEPS of these calls are the layer table that tools/check_layers enforces.
#
#   quatrain_module(<name>
#     DEPS      modules it may include            (and links)
#     SOURCES   its .cc files, by name
#     TESTS     its *_test.cc files, by name      (one binary <name>_test)
#     LIBRARIES third-party targets               (optional)
#     TORCH)                                      (optional: it belongs to the running half)
#
# NATIVE (optional) compiles for this machine with vectorisation: kernels/ alone.
function(quatrain_module name)
  cmake_parse_arguments(M "TORCH;NATIVE" "" "DEPS;SOURCES;TESTS;LIBRARIES" ${ARGN})
  set(target quatrain_${name})
  list(TRANSFORM M_DEPS PREPEND quatrain_ OUTPUT_VARIABLE dep_targets)
  add_library(${target} STATIC ${M_SOURCES})
  add_library(Quatrain::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  target_link_libraries(${target} PUBLIC quatrain_settings ${dep_targets} ${M_LIBRARIES})
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:quatrain_warnings>)
  if(M_TORCH)
    target_link_libraries(${target} PUBLIC torch::cpu)
  endif()
  if(M_NATIVE)  # other flags, so a precompiled header of its own; hot code inlines file by file
    set_target_properties(${target} PROPERTIES UNITY_BUILD OFF)
    target_compile_options(${target} PRIVATE ${QUATRAIN_NATIVE_FLAGS})
    target_precompile_headers(${target} PRIVATE <ATen/core/Tensor.h> <fmt/format.h> <algorithm>)
  elseif(M_TORCH)
    target_precompile_headers(${target} REUSE_FROM quatrain_pch)
  else()
    target_precompile_headers(${target} REUSE_FROM quatrain_pch_pure)
  endif()
  install(TARGETS ${target} EXPORT QuatrainTargets)
  if(M_TESTS AND QUATRAIN_TESTS)
    quatrain_test(${name}_test SOURCES ${M_TESTS} LIBRARIES ${target}
                  TORCH ${M_TORCH} LABEL unit)
  endif()
endfunction()

# A GoogleTest binary and its one ctest entry: many cases a process, since starting one costs more
# than most of them. A test's own code runs once: optimised less, it compiles in two thirds of the
# time.
function(quatrain_test name)
  cmake_parse_arguments(T "" "TORCH;LABEL" "SOURCES;LIBRARIES" ${ARGN})
  add_executable(${name} ${T_SOURCES})
  target_link_libraries(${name} PRIVATE ${T_LIBRARIES} quatrain_warnings GTest::gmock GTest::gtest
                                        GTest::gtest_main)
  target_compile_options(${name} PRIVATE ${QUATRAIN_TEST_FLAGS})
  target_compile_definitions(${name} PRIVATE
    QUATRAIN_SOURCE_DIR="${PROJECT_SOURCE_DIR}" QUATRAIN_PYTHON="${QUATRAIN_PYTHON}")
  if(T_TORCH)
    target_precompile_headers(${name} REUSE_FROM quatrain_pch)
  else()
    target_precompile_headers(${name} REUSE_FROM quatrain_pch_pure)
  endif()
  add_test(NAME ${name} COMMAND ${name} --gtest_brief=1)
  set_tests_properties(${name} PROPERTIES LABELS "${T_LABEL}" TIMEOUT 900)
endfunction()
