target_sources(taco_harp PRIVATE)
