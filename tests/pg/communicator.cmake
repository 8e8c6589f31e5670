add_library(taco_group_support STATIC
  ../support/loopback_stack.cc
  ../support/pg_values.cc
  ../support/rank_threads.cc
)
target_include_directories(taco_group_support PUBLIC ${CMAKE_SOURCE_DIR}/tests)
target_link_libraries(taco_group_support PUBLIC taco_core GTest::gtest)

taco_test(collectives_test SOURCES collectives_test.cc TIMEOUT 300)
target_link_libraries(collectives_test PRIVATE taco_group_support)

taco_test(group_test SOURCES group_test.cc TIMEOUT 300 LABELS threads)
target_link_libraries(group_test PRIVATE taco_group_support)

taco_test(group_closing_test SOURCES group_closing_test.cc TIMEOUT 120 LABELS threads)
target_link_libraries(group_closing_test PRIVATE taco_group_support)

taco_test(tuning_test SOURCES tuning_test.cc TIMEOUT 120)
target_link_libraries(tuning_test PRIVATE taco_group_support)

taco_test(group_failure_test SOURCES group_failure_test.cc TIMEOUT 600)
target_link_libraries(group_failure_test PRIVATE taco_group_support)

taco_test(point_to_point_test SOURCES point_to_point_test.cc TIMEOUT 300)
target_link_libraries(point_to_point_test PRIVATE taco_group_support)

taco_test(group_records_test SOURCES group_records_test.cc)
taco_test(cost_block_test SOURCES cost_block_test.cc)
