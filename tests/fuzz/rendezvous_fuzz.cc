// Records that ranks exchange through the store, where other jobs and other versions write too:
// decode() must survive any bytes, and what it accepts must be what encode() makes of it again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "edge/rendezvous_record.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  using namespace taco::edge;
  const std::string_view text(reinterpret_cast<const char*>(data), bytes);
  const std::string ours = Hello().format;  // of another one only the head is read
  if (const auto hello = Hello::decode(text); hello.ok() && hello.value().format == ours) {
    if (hello.value().encode() != text) abort();
  }
  if (const auto table = Table::decode(text); table.ok()) {
    if (table.value().encode() != text) abort();
    (void)table.value().host_of_rank();
    (void)table.value().host_gbits();
  }
  (void)Refusal::decode(text);
  return 0;
}
