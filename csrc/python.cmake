# The Python extension taco_torch._C: the torch-facing files, linked against exactly the torch that
# the running Python imports. Torch is found by asking Python where it lies, without importing it.
# find_package(Torch) is not used: it drags in the CUDA toolkit and misses torch_python.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)

execute_process(
  COMMAND ${Python_EXECUTABLE} -c "import importlib.util as u, os, sys
spec = u.find_spec('torch')
if spec is None or not spec.origin: sys.exit(3)
root = os.path.dirname(spec.origin)
values = {}
exec(open(os.path.join(root, 'version.py')).read(), values)
print(';'.join((root, values['__version__'])), end='')"
  OUTPUT_VARIABLE torch_facts RESULT_VARIABLE torch_missing)
if(torch_missing)
  message(FATAL_ERROR
    "torch was not found by ${Python_EXECUTABLE}. Install it first:\n"
    "  ${Python_EXECUTABLE} -m pip install torch==2.13.0\n"
    "and build with --no-build-isolation, so that this very torch is compiled against:\n"
    "  ${Python_EXECUTABLE} -m pip install --no-build-isolation .")
endif()
list(GET torch_facts 0 TACO_TORCH_ROOT)
list(GET torch_facts 1 TACO_TORCH_VERSION)
string(REGEX MATCH "^([0-9]+)\\.([0-9]+)" unused "${TACO_TORCH_VERSION}")
set(torch_major ${CMAKE_MATCH_1})
set(torch_minor ${CMAKE_MATCH_2})
if("${torch_major}.${torch_minor}" VERSION_LESS 2.11
   OR "${torch_major}.${torch_minor}" VERSION_GREATER 2.14)
  message(FATAL_ERROR
    "torch ${TACO_TORCH_VERSION} was found; taco_torch is written for 2.11 to 2.14. Install one:\n"
    "  ${Python_EXECUTABLE} -m pip install torch==2.13.0")
endif()
message(STATUS "torch ${TACO_TORCH_VERSION} at ${TACO_TORCH_ROOT}")

foreach(name c10 torch_cpu torch_python)
  add_library(torch_${name} SHARED IMPORTED)
  set_target_properties(torch_${name} PROPERTIES
    IMPORTED_LOCATION "${TACO_TORCH_ROOT}/lib/lib${name}.so")
endforeach()

Python_add_library(_C MODULE WITH_SOABI
  bindings.cc
  edge/errors_bind.cc
  edge/rendezvous.cc
  edge/rendezvous_record.cc
  edge/store_door.cc
  pg/c10d/agreed_choice.cc
  pg/c10d/backend.cc
  pg/c10d/backend_coalesced.cc
  pg/c10d/backend_collectives.cc
  pg/c10d/backend_gradients.cc
  pg/c10d/backend_p2p.cc
  pg/c10d/backend_registry.cc
  pg/c10d/backend_sparse.cc
  pg/c10d/backend_tensors.cc
  pg/c10d/backend_bind.cc
  pg/c10d/callback_scope.cc
  pg/c10d/ddp_hook.cc
  pg/c10d/fsdp_hook.cc
  pg/c10d/future_bind.cc
  pg/c10d/gradient_watch.cc
  pg/c10d/group_meeting.cc
  pg/c10d/hang_dump.cc
  pg/c10d/info_bind.cc
  pg/c10d/lightcc_bind.cc
  pg/c10d/plan_bind.cc
  pg/c10d/stats_bind.cc
  pg/c10d/relay.cc
  pg/c10d/unused_gradients.cc
  pg/c10d/work.cc
  zerocache/torch/lent_memory.cc
  zerocache/torch/parameter_range.cc
  zerocache/torch/plan_bind.cc
  zerocache/torch/process_group.cc
  zerocache/torch/storage.cc
  zerocache/torch/storage_bind.cc
  zerocache/torch/store.cc
  zerocache/torch/store_bind.cc
  zerocache/torch/store_backward.cc
  zerocache/torch/store_gradients.cc
  zerocache/torch/store_made.cc
  zerocache/torch/store_made_spread.cc
  zerocache/torch/store_ranks.cc
  zerocache/torch/store_spread.cc
  zerocache/torch/store_state.cc
  zerocache/torch/uses.cc)
# torch's own pybind11: with another one, c10d::Backend would be an unknown base class.
target_include_directories(_C SYSTEM PRIVATE
  ${TACO_TORCH_ROOT}/include ${TACO_TORCH_ROOT}/include/torch/csrc/api/include)
target_compile_definitions(_C PRIVATE
  USE_DISTRIBUTED USE_C10D_GLOO
  TORCH_API_INCLUDE_EXTENSION_H
  TACO_VERSION="${PROJECT_VERSION}"
  TACO_TORCH_VERSION="${TACO_TORCH_VERSION}")
target_link_libraries(_C PRIVATE
  taco_zerocache taco_core torch_torch_python torch_torch_cpu torch_c10)
# Python imports torch before this file, so its libraries are already there: no run path.
set_target_properties(_C PROPERTIES INSTALL_RPATH "" BUILD_WITH_INSTALL_RPATH ON)
# Read before _C is loaded: an extension built for another torch may not even load.
file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/_build.json
  "{\"version\": \"${PROJECT_VERSION}\", \"torch\": \"${TACO_TORCH_VERSION}\"}\n")
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/_build.json DESTINATION taco_torch COMPONENT python)
# The module that torch's entry points name lies beside the package, so that nothing that hides the
# package breaks `import torch`.
install(FILES ${PROJECT_SOURCE_DIR}/src/_taco_torch_autoload.py DESTINATION . COMPONENT python)
install(TARGETS _C LIBRARY DESTINATION taco_torch COMPONENT python)
