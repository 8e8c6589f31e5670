// Addresses come out of the rendezvous store: decode() must survive any bytes, and what it accepts
// must be what encode() makes of it again. Each input is tried as it is, and behind a checksum that
// is right, so that the fuzzer gets past it.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "harp/address.h"
#include "kernels/kernels.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  using taco::harp::decode;
  std::string text(reinterpret_cast<const char*>(data), bytes);
  (void)decode(text);
  const std::uint32_t sum = taco::kernels::crc32c(0, text.data(), text.size());
  text.append(reinterpret_cast<const char*>(&sum), sizeof sum);
  const auto address = decode(text);
  if (!address.ok()) return 0;
  const std::string again = encode(address.value());
  const auto second = decode(again);
  if (!second.ok() || encode(second.value()) != again) abort();
  return 0;
}
