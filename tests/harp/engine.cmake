taco_test(harp_udp_test SOURCES drivers/udp_test.cc)
taco_test(harp_duty_test SOURCES duty_test.cc LABELS threads)
taco_test(harp_timer_heap_test SOURCES timer_heap_test.cc)
taco_test(harp_submit_queue_test SOURCES submit_queue_test.cc LABELS threads)
taco_test(harp_address_test SOURCES address_test.cc)
taco_test(harp_interfaces_test SOURCES interfaces_test.cc)
taco_test(harp_stack_test TIMEOUT 240 SOURCES stack_test.cc ../support/processes.cc
  ../support/stack_world.cc LABELS threads)
taco_test(harp_hosts_test TIMEOUT 240 SOURCES hosts_test.cc ../support/processes.cc
  ../support/stack_world.cc ../support/network.cc)
