#include "support/zeros_codec.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace taco::pg::testing {

namespace {

// Before the bytes of each group stands which of them there are.
using Mask = std::uint16_t;
constexpr std::size_t kGroup = 8 * sizeof(Mask);

Status damaged(const char* how) {
  return Status(Code::kMismatch, std::string("a coded block ") + how);
}

}  // namespace

std::uint64_t ZerosCodec::most(std::uint64_t bytes) const {
  return bytes + (bytes + kGroup - 1) / kGroup * sizeof(Mask);
}

std::uint64_t ZerosCodec::expected(std::uint64_t bytes) const {
  return static_cast<std::uint64_t>(expected_share_ * static_cast<double>(most(bytes)));
}

Result<std::size_t> ZerosCodec::encode(Coding& coding, std::size_t budget) const {
  const std::size_t first = coding.read;
  while (coding.read < coding.source_bytes && coding.read - first < budget) {
    const std::size_t group = std::min(kGroup, coding.source_bytes - coding.read);
    const std::size_t mask_at = coding.written;
    coding.written += sizeof(Mask);
    Mask mask = 0;
    for (std::size_t i = 0; i < group; ++i) {
      const std::byte value = coding.source[coding.read + i];
      if (value == std::byte{0}) continue;
      mask = static_cast<Mask>(mask | 1u << i);
      coding.destination[coding.written++] = value;
    }
    std::memcpy(coding.destination + mask_at, &mask, sizeof mask);
    coding.read += group;
  }
  coding.done = coding.read == coding.source_bytes;
  return coding.read - first;
}

Result<std::size_t> ZerosCodec::decode(Coding& coding, std::size_t budget) const {
  const std::size_t first = coding.written;
  while (coding.written < coding.destination_bytes && coding.written - first < budget) {
    const std::size_t group = std::min(kGroup, coding.destination_bytes - coding.written);
    Mask mask = 0;
    if (coding.source_bytes - coding.read < sizeof mask) return damaged("ends too early");
    std::memcpy(&mask, coding.source + coding.read, sizeof mask);
    coding.read += sizeof mask;
    if (coding.source_bytes - coding.read < static_cast<std::size_t>(std::popcount(mask)))
      return damaged("ends too early");
    if (group < kGroup && mask >> group != 0) return damaged("has bytes beyond its end");
    std::byte values[kGroup]{};
    for (std::size_t i = 0; i < group; ++i)
      if (mask >> i & 1) values[i] = coding.source[coding.read++];
    std::byte* to = coding.destination + coding.written;
    if (coding.operand != nullptr) {
      coding.reduce(to, coding.operand + coding.written, values,
                    group / kernels::size_of(coding.dtype));
    } else {
      std::memcpy(to, values, group);
    }
    coding.written += group;
  }
  coding.done = coding.written == coding.destination_bytes;
  if (coding.done && coding.read != coding.source_bytes) return damaged("ends too late");
  return coding.written - first;
}

}  // namespace taco::pg::testing
