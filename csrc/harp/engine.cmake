target_sources(taco_harp PRIVATE
  address.cc
  drivers/udp.cc
  drivers/udp_socket.cc
  duty.cc
  engine_core.cc
  engine_liveness.cc
  engine_loop.cc
  engine_wait_set.cc
  fork.cc
  host_identity.cc
  interfaces.cc
  peer.cc
  stack.cc
  stack_core.cc
  timer_heap.cc)

add_executable(harp-perf tools/harp_perf.cc)
target_link_libraries(harp-perf PRIVATE taco_harp)
