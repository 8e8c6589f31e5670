// Messages of other jobs to an endpoint, and the handles and addresses that programs carry from
// them: the readers must survive any bytes, and bytes that they accept must be those that are
// written again from what was read. A handle is tried as it is, and behind a checksum that is
// right.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "kernels/kernels.h"
#include "remote/message.h"
#include "remote/torch/endpoint_address.h"

using namespace taco::remote;

namespace {

void read_handle(std::string_view text) {
  const auto handle = decode_handle(text);
  if (handle.ok() && encode(handle.value()) != text) abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto message = read_message(bytes); message.ok() && size <= sizeof(MessageBytes)) {
    MessageBytes out;
    const std::size_t written = write_message(message.value(), out);
    const bool is_request = std::holds_alternative<Request>(message.value());
    if (is_request && (written != size || std::memcmp(out.data(), data, size) != 0)) abort();
  }
  (void)read_answer(bytes);
  read_handle(text);
  if (size >= kHandleBytes) {
    std::string handle(text.substr(0, kHandleBytes));
    const std::uint32_t sum = taco::kernels::crc32c(0, handle.data(), handle.size() - sizeof sum);
    std::memcpy(handle.data() + handle.size() - sizeof sum, &sum, sizeof sum);
    read_handle(handle);
  }
  (void)EndpointAddress::decode(text);
  return 0;
}
