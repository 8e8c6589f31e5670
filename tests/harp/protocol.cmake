add_library(taco_sim_support STATIC ${PROJECT_SOURCE_DIR}/tests/support/sim_process.cc
                                    ${PROJECT_SOURCE_DIR}/tests/support/sim_campaign.cc)
target_include_directories(taco_sim_support PUBLIC ${PROJECT_SOURCE_DIR}/tests)
target_link_libraries(taco_sim_support PUBLIC taco_core)

taco_test(session_basic_test SOURCES session_basic_test.cc)
target_link_libraries(session_basic_test PRIVATE taco_sim_support)
taco_test(protocol_campaign_test SOURCES protocol_campaign_test.cc TIMEOUT 600)
target_link_libraries(protocol_campaign_test PRIVATE taco_sim_support)
taco_test(wire_test SOURCES wire_test.cc)
taco_test(sent_packets_test SOURCES sent_packets_test.cc)
taco_test(matcher_test SOURCES matcher_test.cc)
taco_test(flow_test SOURCES flow_test.cc)
