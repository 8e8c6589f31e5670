target_sources(taco_harp PRIVATE completion_queue.cc)
