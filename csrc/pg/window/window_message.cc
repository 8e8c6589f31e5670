#include "pg/window/window_message.h"

#include <cstring>

namespace taco::pg {
namespace {

constexpr std::uint8_t kWindowFormat = 1;
constexpr std::uint8_t kSignals = 1, kFollows = 2;  // flags

struct WindowHead {
  std::uint8_t format, type, dtype, flags;
  std::uint32_t offset_low, offset_high, bytes_low, bytes_high;
};
static_assert(sizeof(WindowHead) == kWindowHeadBytes);

std::uint64_t joined(std::uint32_t low, std::uint32_t high) {
  return std::uint64_t{high} << 32 | low;
}

Status no_message(const std::string& why) {
  return Status(Code::kMismatch, "a message to a window that is none: " + why);
}

}  // namespace

std::size_t write_window_message(const WindowMessage& message, std::byte* out) {
  WindowHead head{};
  head.format = kWindowFormat;
  head.type = static_cast<std::uint8_t>(message.type);
  head.dtype = static_cast<std::uint8_t>(message.dtype);
  head.flags = (message.signals ? kSignals : 0) | (message.follows() ? kFollows : 0);
  head.offset_low = static_cast<std::uint32_t>(message.offset);
  head.offset_high = static_cast<std::uint32_t>(message.offset >> 32);
  head.bytes_low = static_cast<std::uint32_t>(message.bytes);
  head.bytes_high = static_cast<std::uint32_t>(message.bytes >> 32);
  std::memcpy(out, &head, sizeof head);
  if (message.carried.empty()) return sizeof head;
  std::memcpy(out + sizeof head, message.carried.data(), message.carried.size());
  return sizeof head + message.carried.size();
}

Result<WindowMessage> read_window_message(std::span<const std::byte> bytes) {
  WindowHead head;
  if (bytes.size() < sizeof head)
    return no_message("it has " + std::to_string(bytes.size()) + " bytes");
  std::memcpy(&head, bytes.data(), sizeof head);
  if (head.format != kWindowFormat)
    return no_message("its format is " + std::to_string(head.format));
  if (head.flags > (kSignals | kFollows)) return no_message("unknown flags");
  if (head.dtype >= kernels::kDtypes) return no_message("unknown dtype");
  WindowMessage message;
  message.type = static_cast<WindowMessage::Type>(head.type);
  message.dtype = static_cast<kernels::Dtype>(head.dtype);
  message.signals = (head.flags & kSignals) != 0;
  message.offset = joined(head.offset_low, head.offset_high);
  message.bytes = joined(head.bytes_low, head.bytes_high);
  message.carried = bytes.subspan(sizeof head);
  const bool follows = (head.flags & kFollows) != 0;
  switch (message.type) {
    case WindowMessage::Type::kPut:
      if (follows ? message.bytes == 0 || !message.carried.empty()
                  : message.bytes != message.carried.size()) {
        return no_message("a put of " + std::to_string(message.bytes) + " bytes that brings " +
                          std::to_string(message.carried.size()));
      }
      return message;
    case WindowMessage::Type::kSignal:
      if (!message.carried.empty() || message.bytes != 0 || follows || !message.signals)
        return no_message("a signal with bytes");
      return message;
  }
  return no_message("its type is " + std::to_string(head.type));
}

std::string refusal_of(const WindowMessage& put, const WindowMemory& window) {
  const std::size_t element = kernels::size_of(window.dtype);
  if (put.dtype != window.dtype) {
    return std::string("its dtype ") + kernels::name_of(put.dtype) +
           " does not match the window's, " + kernels::name_of(window.dtype);
  }
  if (put.offset % element != 0 || put.bytes % element != 0)
    return std::string("it begins or ends inside a ") + kernels::name_of(window.dtype);
  if (put.offset <= window.memory.bytes && put.bytes <= window.memory.bytes - put.offset) return "";
  return "its " + std::to_string(put.bytes / element) + " elements at offset " +
         std::to_string(put.offset / element) + " exceed the window, whose size is " +
         std::to_string(window.memory.bytes / element) + " elements";
}

std::uint64_t signature_of_bytes(kernels::Dtype dtype, std::uint64_t bytes) {
  // At most harp::kMaxMessageBytes, so the count fits beside the dtype.
  return std::uint64_t(Kind::kPut) << 60 | std::uint64_t(dtype) << 56 |
         bytes / kernels::size_of(dtype);
}

std::uint64_t signature_of_heads() { return std::uint64_t(Kind::kSignal) << 60 | kWindowFormat; }

}  // namespace taco::pg
