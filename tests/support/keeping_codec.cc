#include "support/keeping_codec.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace taco::pg::testing {

namespace {

// Before the elements of each group stands which of them there are.
using Mask = std::uint16_t;
constexpr std::size_t kGroup = 8 * sizeof(Mask);
constexpr std::size_t kElement = sizeof(std::uint32_t);

std::uint32_t load(const std::byte* from) {
  std::uint32_t value = 0;
  std::memcpy(&value, from, kElement);
  return value;
}

}  // namespace

std::uint32_t add_elements(std::uint32_t left, std::uint32_t right, kernels::Dtype dtype) {
  if (dtype != kernels::Dtype::kF32) return left + right;
  return std::bit_cast<std::uint32_t>(std::bit_cast<float>(left) + std::bit_cast<float>(right));
}

std::uint64_t KeepingCodec::most(std::uint64_t bytes) const {
  constexpr std::uint64_t kGroupBytes = kGroup * kElement;
  return bytes + (bytes + kGroupBytes - 1) / kGroupBytes * sizeof(Mask);
}

std::uint64_t KeepingCodec::expected(std::uint64_t bytes) const {
  return most(bytes) - bytes + bytes / sends_one_in_;
}

Result<std::size_t> KeepingCodec::encode(Coding& coding, std::size_t budget) const {
  const std::size_t first = coding.read;
  while (coding.read < coding.source_bytes && coding.read - first < budget) {
    const std::size_t group = std::min(kGroup, (coding.source_bytes - coding.read) / kElement);
    std::byte* const mask_at = coding.destination + coding.written;
    coding.written += sizeof(Mask);
    Mask mask = 0;
    for (std::size_t i = 0; i < group; ++i, coding.read += kElement) {
      float& kept = coding.feedback->residual[coding.feedback_from + coding.read / kElement];
      const std::uint32_t value = add_elements(load(coding.source + coding.read),
                                               std::bit_cast<std::uint32_t>(kept), coding.dtype);
      const auto place = static_cast<std::uint32_t>(coding.feedback_from + coding.read / kElement);
      const bool sends = ((value ^ (value >> 16) ^ place) * 0x9e3779b9 >> 8) % sends_one_in_ == 0;
      kept = sends ? 0 : std::bit_cast<float>(value);
      if (!sends) continue;
      mask = static_cast<Mask>(mask | 1u << i);
      std::memcpy(coding.destination + coding.written, &value, kElement);
      coding.written += kElement;
    }
    std::memcpy(mask_at, &mask, sizeof mask);
  }
  coding.done = coding.read == coding.source_bytes;
  return coding.read - first;
}

Result<std::size_t> KeepingCodec::decode(Coding& coding, std::size_t budget) const {
  const Status damaged(Code::kMismatch, "a coded block is of another length than it says");
  const std::size_t first = coding.written;
  while (coding.written < coding.destination_bytes && coding.written - first < budget) {
    const std::size_t group =
        std::min(kGroup, (coding.destination_bytes - coding.written) / kElement);
    if (coding.source_bytes - coding.read < sizeof(Mask)) return damaged;
    Mask mask = 0;
    std::memcpy(&mask, coding.source + coding.read, sizeof mask);
    coding.read += sizeof mask;
    if (coding.source_bytes - coding.read < std::popcount(mask) * kElement) return damaged;
    std::uint32_t values[kGroup]{};
    for (std::size_t i = 0; i < group; ++i) {
      if ((mask >> i & 1) == 0) continue;
      values[i] = load(coding.source + coding.read);
      coding.read += kElement;
    }
    if (coding.divisor != 1) {
      kernels::divide(coding.dtype, values, values, group, static_cast<int>(coding.divisor));
    }
    std::byte* to = coding.destination + coding.written;
    if (coding.operand != nullptr) {
      coding.reduce(to, coding.operand + coding.written, values, group);
    } else {
      std::memcpy(to, values, group * kElement);
    }
    coding.written += group * kElement;
  }
  coding.done = coding.written == coding.destination_bytes;
  if (coding.done && coding.read != coding.source_bytes) return damaged;
  return coding.written - first;
}

}  // namespace taco::pg::testing
