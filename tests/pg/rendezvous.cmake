# The torch-free part of the rendezvous; the rest is tested from Python.
taco_test(rendezvous_record_test SOURCES rendezvous_record_test.cc
  ${CMAKE_SOURCE_DIR}/csrc/pg/rendezvous_record.cc)
