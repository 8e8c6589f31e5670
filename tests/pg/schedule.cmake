add_library(taco_schedule_support STATIC
  ../support/collective_reference.cc
  ../support/schedule_interpreter.cc
  ../support/schedule_world.cc
)
target_include_directories(taco_schedule_support PUBLIC ${CMAKE_SOURCE_DIR}/tests)
target_link_libraries(taco_schedule_support PUBLIC taco_core)

taco_test(algorithms_test SOURCES algorithms_test.cc TIMEOUT 600)
target_link_libraries(algorithms_test PRIVATE taco_schedule_support)

taco_test(schedule_interpreter_test SOURCES schedule_interpreter_test.cc)
target_link_libraries(schedule_interpreter_test PRIVATE taco_schedule_support)
taco_test(planner_test SOURCES planner_test.cc)
target_link_libraries(planner_test PRIVATE taco_schedule_support)
taco_test(cost_model_test SOURCES cost_model_test.cc)
target_link_libraries(cost_model_test PRIVATE taco_schedule_support)

taco_test(schedule_builder_test SOURCES schedule_builder_test.cc)
taco_test(topology_test SOURCES topology_test.cc)
