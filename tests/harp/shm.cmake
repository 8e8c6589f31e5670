taco_test(shm_link_test SOURCES shm_link_test.cc ../support/shm_node.cc LABELS threads)
taco_test(shm_process_test SOURCES shm_process_test.cc ../support/shm_node.cc
  ../support/shm_processes.cc)
taco_test(shm_hostile_peer_test SOURCES shm_hostile_peer_test.cc ../support/shm_node.cc)
