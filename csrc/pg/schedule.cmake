target_sources(taco_pg PRIVATE)
