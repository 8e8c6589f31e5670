target_sources(taco_harp PRIVATE
  completion_queue.cc congestion_cubic.cc congestion_swift.cc drivers/sim.cc flow.cc loss.cc
  matcher.cc matcher_events.cc matcher_quota.cc message.cc received_packets.cc sent_packets.cc
  session.cc session_host.cc session_receive.cc session_timers.cc session_transmit.cc sink.cc
  small_packets.cc wire.cc)
