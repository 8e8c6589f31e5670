taco_test(random_death_test SOURCES random_death_test.cc ../support/processes.cc TIMEOUT 300)
