# Imported targets for a torch wheel or libtorch folder, CPU or CUDA, 2.11 to 2.14, without
# find_package(Torch): that one wants nvcc at configure time and rewrites CUDA architectures.
#
#   quatrain_import_torch(<folder>)   # folder holds include/ and lib/
#
# Makes torch::c10 and torch::cpu. Headers are SYSTEM (imported targets are, by themselves).
function(quatrain_import_torch folder)
  foreach(lib c10 torch_cpu)
    if(NOT EXISTS "${folder}/lib/lib${lib}.so")
      message(FATAL_ERROR "no lib${lib}.so in ${folder}/lib: set QUATRAIN_TORCH to a torch folder "
                          "(site-packages/torch or an unpacked libtorch)")
    endif()
  endforeach()
  add_library(torch::c10 SHARED IMPORTED GLOBAL)
  set_target_properties(torch::c10 PROPERTIES
    IMPORTED_LOCATION "${folder}/lib/libc10.so"
    INTERFACE_INCLUDE_DIRECTORIES "${folder}/include")
  add_library(torch::cpu SHARED IMPORTED GLOBAL)
  set_target_properties(torch::cpu PROPERTIES
    IMPORTED_LOCATION "${folder}/lib/libtorch_cpu.so"
    INTERFACE_INCLUDE_DIRECTORIES "${folder}/include"
    INTERFACE_LINK_LIBRARIES torch::c10)
endfunction()
