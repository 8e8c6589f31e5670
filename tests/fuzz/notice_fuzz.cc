// Notices come from other processes: decode() must survive any bytes.
#include <cstddef>
#include <cstdint>
#include <span>

#include "pg/group/notice.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  (void)taco::pg::decode(std::as_bytes(std::span(data, bytes)));
  return 0;
}
