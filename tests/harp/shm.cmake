taco_test(shm_link_test SOURCES shm_link_test.cc ../support/shm_node.cc)
