// The head of a put or a signal, as one rank tells the owner of a window. A short put carries its
// bytes; those of a longer one follow in a message of their own. It comes from outside the process:
// read_window_message() checks its form, refusal_of() what it asks for. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"
#include "pg/operation.h"

namespace taco::pg {

struct WindowMessage {
  enum class Type : std::uint8_t { kPut = 1, kSignal };

  Type type = Type::kSignal;
  kernels::Dtype dtype = kernels::Dtype::kU8;
  bool signals = false;                // counts as a signal, once all before it is done
  std::uint64_t offset = 0;            // put: into the window, in bytes
  std::uint64_t bytes = 0;             // put: how many
  std::span<const std::byte> carried;  // put: they themselves, or empty if they follow

  bool follows() const { return type == Type::kPut && bytes > 0 && carried.empty(); }
};

// A message goes eagerly over every link (harp/link.h).
inline constexpr std::size_t kMaxWindowMessageBytes = 1024;
inline constexpr std::size_t kWindowHeadBytes = 20;
inline constexpr std::size_t kMaxCarriedBytes = kMaxWindowMessageBytes - kWindowHeadBytes;

// `out` has room for kMaxWindowMessageBytes; how many of them are the message.
std::size_t write_window_message(const WindowMessage& message, std::byte* out);
// kMismatch for anything that write_window_message() does not make. `carried` lies in `bytes`.
Result<WindowMessage> read_window_message(std::span<const std::byte> bytes);

// Why this window does not take that put, in words, or "" if it does.
std::string refusal_of(const WindowMessage& put, const WindowMemory& window);

// The signature (execution/signature.h) of a message of such bytes, where heads have another.
std::uint64_t signature_of_bytes(kernels::Dtype dtype, std::uint64_t bytes);
std::uint64_t signature_of_heads();

}  // namespace taco::pg
