// Addresses come out of the rendezvous store: decode() must survive any bytes.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "harp/address.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  (void)taco::harp::decode(std::string_view(reinterpret_cast<const char*>(data), bytes));
  return 0;
}
