# The Python extension taco_torch._C: the torch-facing files, linked against one torch. A torch of
# another minor version has other classes, so TACO_TORCHES has the extension compiled for each that
# it names, over one core, and Python loads the one that fits (taco_torch/_extension.py).
# find_package(Torch) is not used: it drags in the CUDA toolkit and misses torch_python.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)

set(TACO_TORCHES "" CACHE STRING
  "Folders of torch packages, with headers, version.py and libraries; default: what Python imports")
option(TACO_DEBUG_FILES "Write the extension's debug information beside it, for install" OFF)
set(torches ${TACO_TORCHES})
if(NOT torches)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c "import importlib.util as u, os, sys
spec = u.find_spec('torch')  # without importing it
if spec is None or not spec.origin: sys.exit(3)
print(os.path.dirname(spec.origin), end='')"
    OUTPUT_VARIABLE torches RESULT_VARIABLE torch_missing)
  if(torch_missing)
    message(FATAL_ERROR
      "torch was not found by ${Python_EXECUTABLE}. Install it first:\n"
      "  ${Python_EXECUTABLE} -m pip install torch==2.13.0\n"
      "and build with --no-build-isolation, so that this very torch is compiled against:\n"
      "  ${Python_EXECUTABLE} -m pip install --no-build-isolation .")
  endif()
endif()

# Operations go through these sources; those below bind them to Python, or set up what they need.
set(torch_facing
  pg/c10d/backend.cc
  pg/c10d/backend_coalesced.cc
  pg/c10d/backend_collectives.cc
  pg/c10d/backend_gradients.cc
  pg/c10d/backend_hooks.cc
  pg/c10d/backend_p2p.cc
  pg/c10d/backend_sparse.cc
  pg/c10d/backend_tensors.cc
  pg/c10d/bucket_arrangement.cc
  pg/c10d/callback_scope.cc
  pg/c10d/controller_tensors.cc
  pg/c10d/ddp_hook.cc
  pg/c10d/ephemeral_timeouts.cc
  pg/c10d/fsdp_hook.cc
  pg/c10d/gradient_watch.cc
  pg/c10d/relay.cc
  pg/c10d/unused_gradients.cc
  pg/c10d/work.cc
  pg/c10d/window/backend_window.cc
  zerocache/torch/lending.cc
  zerocache/torch/gradient_buffers.cc
  zerocache/torch/operand_parts.cc
  zerocache/torch/parameter_range.cc
  zerocache/torch/storage.cc
  zerocache/torch/store.cc
  zerocache/torch/store_backward.cc
  zerocache/torch/store_gradients.cc
  zerocache/torch/store_lending.cc
  zerocache/torch/store_made.cc
  zerocache/torch/store_made_spread.cc
  zerocache/torch/store_ranks.cc
  zerocache/torch/store_spread.cc
  zerocache/torch/store_state.cc
  zerocache/torch/uses.cc
  edge/exposed_memory.cc
  remote/torch/exposed.cc)
set(torch_set_up
  bindings.cc
  edge/errors_bind.cc
  edge/rendezvous.cc
  edge/rendezvous_record.cc
  edge/roster.cc
  edge/signals.cc
  edge/stack_use.cc
  edge/store_door.cc
  pg/c10d/agreed_choice.cc
  pg/c10d/backend_bind.cc
  pg/c10d/backend_reconfigure.cc
  pg/c10d/backend_registry.cc
  pg/c10d/controller_bind.cc
  pg/c10d/future_bind.cc
  pg/c10d/generation.cc
  pg/c10d/group_rendezvous.cc
  pg/c10d/hang_dump.cc
  pg/c10d/info_bind.cc
  pg/c10d/lightcc_bind.cc
  pg/c10d/plan_bind.cc
  pg/c10d/stats_bind.cc
  pg/c10d/succession.cc
  zerocache/torch/plan_bind.cc
  zerocache/torch/process_group.cc
  zerocache/torch/storage_bind.cc
  zerocache/torch/store_bind.cc
  remote/torch/endpoint_address.cc
  remote/torch/transport_bind.cc)

# add_extension(FOLDER): a module for the torch that lies there. Its name says which, since that is
# looked up before anything of it is loaded; what Python looks for in it is _C in each.
function(add_extension torch)
  if(NOT EXISTS ${torch}/version.py)
    message(FATAL_ERROR "${torch} holds no torch: it has no version.py")
  endif()
  file(STRINGS ${torch}/version.py version REGEX "^__version__ = ")
  string(REGEX REPLACE ".*'(.*)'.*" "\\1" version "${version}")
  string(REGEX MATCH "^([0-9]+)\\.([0-9]+)" minor "${version}")
  if(minor VERSION_LESS 2.11)
    message(FATAL_ERROR
      "torch ${version} was found; taco_torch is written for 2.11 and newer. Install one:\n"
      "  ${Python_EXECUTABLE} -m pip install torch==2.13.0")
  endif()
  if(minor VERSION_GREATER 2.15)  # as taco_torch/_check.py says again where it is used
    message(WARNING
      "torch ${version} is newer than 2.15, the newest that taco_torch was tested with")
  endif()
  message(STATUS "torch ${version} at ${torch}")

  set(name _C_torch_${CMAKE_MATCH_1}_${CMAKE_MATCH_2})
  # Compiled for size: a quarter smaller, in four fifths of the time. The rest is not: an operation
  # of 8 B took a twentieth longer.
  add_library(${name}_set_up OBJECT ${torch_set_up})
  target_compile_options(${name}_set_up PRIVATE $<$<CONFIG:RelWithDebInfo>:-Os>)
  target_link_libraries(${name}_set_up PRIVATE Python::Module)
  Python_add_library(${name} MODULE WITH_SOABI ${torch_facing} $<TARGET_OBJECTS:${name}_set_up>)
  foreach(part ${name} ${name}_set_up)
    # torch's own pybind11: with another one, c10d::Backend would be an unknown base class.
    target_include_directories(${part} SYSTEM PRIVATE
      ${torch}/include ${torch}/include/torch/csrc/api/include)
    target_compile_definitions(${part} PRIVATE
      USE_DISTRIBUTED USE_C10D_GLOO
      TORCH_API_INCLUDE_EXTENSION_H
      TACO_VERSION="${PROJECT_VERSION}"
      TACO_TORCH_VERSION="${version}")
    target_link_libraries(${part} PRIVATE taco_zerocache taco_core)
  endforeach()
  # One file of what sets up, two of the rest: of one with twelve, torch's headers take 13 of 33 s.
  # Ninja begins with them, as they stand first, so that no core idles beside the last.
  list(LENGTH torch_facing sources)
  math(EXPR half "(${sources} + 1) / 2")
  if(TACO_UNITY_BATCH AND TACO_UNITY_BATCH LESS sources)
    set_target_properties(${name} PROPERTIES UNITY_BUILD_BATCH_SIZE ${half})
  endif()
  if(TACO_UNITY_BATCH)
    set_target_properties(${name}_set_up PROPERTIES UNITY_BUILD_BATCH_SIZE 0)
  endif()
  target_link_libraries(${name} PRIVATE
    ${torch}/lib/libtorch_python.so ${torch}/lib/libtorch_cpu.so ${torch}/lib/libc10.so)
  # Python imports torch before this file, so its libraries are already there: no run path.
  set_target_properties(${name} PROPERTIES INSTALL_RPATH "" BUILD_WITH_INSTALL_RPATH ON)
  install(TARGETS ${name} LIBRARY DESTINATION taco_torch COMPONENT python)
  add_dependencies(_C ${name})
  if(TACO_DEBUG_FILES)
    set(file $<TARGET_FILE:${name}>)
    add_custom_command(TARGET ${name} POST_BUILD VERBATIM
      COMMAND ${CMAKE_OBJCOPY} --only-keep-debug --compress-debug-sections ${file} ${file}.debug
      COMMAND ${CMAKE_OBJCOPY} --add-gnu-debuglink=${file}.debug ${file})
    install(FILES ${file}.debug DESTINATION taco_torch COMPONENT debug)
  endif()
  set(versions "${versions}, \"${version}\"" PARENT_SCOPE)
endfunction()

# _C is what `make demo` needs, the extension; taco_package is all that a package holds.
add_custom_target(_C)
add_custom_target(taco_package)
add_dependencies(taco_package _C)
if(TARGET harp_dpdk)
  add_dependencies(taco_package harp_dpdk)
  install(TARGETS harp_dpdk LIBRARY DESTINATION taco_torch COMPONENT plugins)
endif()
# NCCL's plugin knows no torch: it lies in the package for those who look for it there.
add_dependencies(taco_package nccl-net-harp)
install(TARGETS nccl-net-harp LIBRARY DESTINATION taco_torch COMPONENT plugins)
set(versions "")
foreach(torch ${torches})
  add_extension(${torch})
endforeach()
string(SUBSTRING "${versions}" 2 -1 versions)
# Read before an extension is loaded: one that was built for another torch may not even load.
file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/_build.json
  "{\"version\": \"${PROJECT_VERSION}\", \"torch\": [${versions}]}\n")
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/_build.json DESTINATION taco_torch COMPONENT python)
# The module that torch's entry points name lies beside the package, so that nothing that hides the
# package breaks `import torch`.
install(FILES ${PROJECT_SOURCE_DIR}/src/_taco_torch_autoload.py DESTINATION . COMPONENT python)
# So does what serves `import horovod.torch`, which may be loaded whenever Python starts.
install(FILES ${PROJECT_SOURCE_DIR}/src/_taco_torch_horovod.py DESTINATION . COMPONENT python)

# Programs of the package, and the module by which installers make commands of them. Installers
# make the commands in any case, so the module is always there to say that a program is not.
add_dependencies(taco_package harp-nccl-check harp-perf harp-setup harp-stat)
install(TARGETS harp-nccl-check harp-perf harp-setup harp-stat
  RUNTIME DESTINATION taco_torch/bin COMPONENT commands)
install(FILES ${PROJECT_SOURCE_DIR}/src/_taco_torch_commands.py
  DESTINATION . COMPONENT python)
