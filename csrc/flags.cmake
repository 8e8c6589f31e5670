# How all of this is compiled: the library target taco_flags, which every other one links.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo)
endif()

find_package(Threads REQUIRED)
get_filename_component(TACO_CHECKOUT ${CMAKE_CURRENT_LIST_DIR}/.. ABSOLUTE)

add_library(taco_flags INTERFACE)
target_compile_options(taco_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wno-missing-field-initializers>)
# Line tables are what stack traces need; all of a debugger's information takes half as long again.
target_compile_options(taco_flags INTERFACE
  $<$<AND:$<CONFIG:RelWithDebInfo>,$<COMPILE_LANGUAGE:CXX>>:-g1>)
# GCC looks for garbage at every 128 MB that it takes more: a tenth of a large file's time, where a
# gigabyte more of memory in each compiler would do.
cmake_host_system_information(RESULT memory_mb QUERY TOTAL_PHYSICAL_MEMORY)
cmake_host_system_information(RESULT cores QUERY NUMBER_OF_LOGICAL_CORES)
math(EXPR memory_each "${memory_mb} / ${cores}")
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND memory_each GREATER_EQUAL 4096)
  target_compile_options(taco_flags INTERFACE
    "$<$<COMPILE_LANGUAGE:CXX>:SHELL:--param ggc-min-heapsize=1048576>")
endif()
# __FILE__, which messages show, names a place in the checkout, wherever that lies.
target_compile_options(taco_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-ffile-prefix-map=${TACO_CHECKOUT}/=>)
target_include_directories(taco_flags INTERFACE ${TACO_CHECKOUT}/csrc)
target_link_libraries(taco_flags INTERFACE Threads::Threads)
if(TACO_ASSERTIONS)
  target_compile_definitions(taco_flags INTERFACE TACO_ASSERTIONS=1)
endif()
if(TACO_SANITIZE)
  target_compile_options(taco_flags INTERFACE -fsanitize=${TACO_SANITIZE} -fno-omit-frame-pointer)
  target_link_options(taco_flags INTERFACE -fsanitize=${TACO_SANITIZE})
endif()
if(TACO_FUZZ)
  target_compile_options(taco_flags INTERFACE -fsanitize=fuzzer-no-link,address,undefined)
  target_link_options(taco_flags INTERFACE -fsanitize=address,undefined)
endif()
