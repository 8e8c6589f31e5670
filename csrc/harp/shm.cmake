target_sources(taco_harp PRIVATE
  shm_blocks.cc
  shm_endpoint.cc
  shm_pair_life.cc
  shm_pair_link.cc
  shm_pair_receive.cc
  shm_pair_send.cc
  shm_pull.cc
  shm_socket.cc)
