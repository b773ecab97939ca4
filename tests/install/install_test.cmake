# Installs the build folder BUILD into a prefix below WORK, builds examples/standalone of SOURCE
# against it with COMPILER, runs that program and the installed command. Fails on the first step
# that does not end with 0.
cmake_minimum_required(VERSION 3.25)
file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK}/run)
set(prefix ${WORK}/prefix)

function(step what)
  string(TIMESTAMP begin %s)
  execute_process(COMMAND ${ARGN} WORKING_DIRECTORY ${WORK}/run RESULT_VARIABLE code
                  OUTPUT_VARIABLE out ERROR_VARIABLE err)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "${what}: exit code ${code}\n${out}\n${err}")
  endif()
  string(TIMESTAMP end %s)
  math(EXPR seconds "${end} - ${begin}")
  message(STATUS "${what}: ${seconds} s")
  set(out "${out}" PARENT_SCOPE)
endfunction()

step("install" ${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix})
step("configure" ${CMAKE_COMMAND} -S ${SOURCE}/examples/standalone -B ${WORK}/build -G Ninja
     -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_PREFIX_PATH=${prefix})

# Nothing that was installed may point back into the build folder or the sources.
file(GLOB_RECURSE package ${prefix}/lib/cmake/*.cmake)
foreach(file IN LISTS package)
  file(READ ${file} text)
  foreach(folder ${BUILD}/modules ${BUILD}/include ${SOURCE}/quatrain)
    string(FIND "${text}" "${folder}" at)
    if(NOT at EQUAL -1)
      message(FATAL_ERROR "${file} names ${folder}")
    endif()
  endforeach()
endforeach()

step("build" ${CMAKE_COMMAND} --build ${WORK}/build)
step("run the program" ${WORK}/build/train_tiny ${WORK}/run)
if(NOT out MATCHES "step 60  loss 0\\.")
  message(FATAL_ERROR "the loss did not fall:\n${out}")
endif()

# The installed command finds its catalogue beside it, without a variable or the sources.
file(WRITE ${WORK}/run/text.txt "Sing, O goddess, the anger of Achilles.\n")
file(WRITE ${WORK}/run/tiny.toml
     "[model]\nname = \"tiny-llama\"\nvocab_size = 257\n[training]\nseq_len = 8\nsteps = 2\n"
     "[data]\ntrain = [\"text.txt\"]\ntokenizer = \"bytes\"\n")
file(GLOB models ${prefix}/share/quatrain/catalog/models/*.toml)
if(NOT models)
  message(FATAL_ERROR "no catalogue in ${prefix}/share/quatrain")
endif()
step("run the command" ${prefix}/bin/quatrain train tiny.toml)
file(RENAME ${prefix}/share/quatrain/catalog/models/tiny-llama.toml ${WORK}/run/moved.toml)
execute_process(COMMAND ${prefix}/bin/quatrain train tiny.toml --dry-run RESULT_VARIABLE code
                WORKING_DIRECTORY ${WORK}/run OUTPUT_QUIET ERROR_QUIET)
if(NOT code EQUAL 2)
  message(FATAL_ERROR "the installed command read another catalogue than the installed one")
endif()
file(REMOVE_RECURSE ${WORK})
