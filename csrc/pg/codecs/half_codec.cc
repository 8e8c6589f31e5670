#include "pg/codecs/half_codec.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/scaled_half.h"
#include "pg/codecs/float_codec.h"

namespace taco::pg {
namespace {

using Exponent = std::int32_t;
using Half = std::uint16_t;

constexpr std::size_t kGroupBytes = kHalfGroup * sizeof(float);  // of elements
constexpr std::size_t kCodedGroup = sizeof(Exponent) + kHalfGroup * sizeof(Half);
// A tile that is decoded before it is reduced stays in the first-level cache.
constexpr std::size_t kTile = 2048;

class HalfCodec final : public FloatCodec {
 public:
  explicit HalfCodec(HalfFormat format)
      : FloatCodec(format == HalfFormat::kF16 ? "float16" : "bfloat16"),
        scaled_(format == HalfFormat::kF16) {}

  // Every block of so many bytes becomes as long.
  std::uint64_t most(std::uint64_t bytes) const override {
    const std::uint64_t groups = (bytes + kGroupBytes - 1) / kGroupBytes;
    return bytes / sizeof(float) * sizeof(Half) + (scaled_ ? groups * sizeof(Exponent) : 0);
  }
  double bytes_per_second() const override { return scaled_ ? 7e9 : 8.5e9; }
  double decoded_bytes_per_second() const override { return 8.5e9; }
  Arrival arrival() const override {
    if (scaled_) return {};  // the exponent comes first, in a packet of its own maybe
    return {sizeof(Half), [](void* sum, const void*, const void* coded, std::size_t count) {
              kernels::accumulate_bf16_into_f32(static_cast<float*>(sum),
                                                static_cast<const Half*>(coded), count);
            }};
  }
  std::uint32_t code() const override { return half_code(!scaled_); }

 private:
  Result<std::size_t> encode_floats(Coding& coding, std::size_t budget) const override;
  Result<std::size_t> decode_floats(Coding& coding, std::size_t budget) const override;

  Status check_block(const Coding& coding) const;
  float encode_group(const float* in, std::byte* out, std::size_t count, float largest,
                     std::size_t next) const;
  void decode_group(const Coding& coding, std::size_t count) const;
  void expand(float* out, const Half* in, std::size_t count, Exponent exponent) const {
    if (scaled_) return kernels::f16_to_f32_scaled(out, in, count, exponent);
    kernels::bf16_to_f32(out, in, count);
  }
  std::size_t coded_bytes(std::size_t count) const {
    return (scaled_ ? sizeof(Exponent) : 0) + count * sizeof(Half);
  }

  const bool scaled_;
};

const float* floats(const std::byte* bytes) { return reinterpret_cast<const float*>(bytes); }
float* floats(std::byte* bytes) { return reinterpret_cast<float*>(bytes); }

Exponent exponent_at(const std::byte* group) {
  Exponent exponent;
  std::memcpy(&exponent, group, sizeof exponent);
  return exponent;
}

// All of a group or none: its exponent is known once all of it has been looked at. Each group is
// looked at while the one before it is converted, so that the memory is read once.
Result<std::size_t> HalfCodec::encode_floats(Coding& coding, std::size_t budget) const {
  const std::size_t first = coding.read;
  const auto group_at = [&](std::size_t read) {
    const bool within = read < coding.source_bytes && read - first < budget;
    return within ? std::min(kGroupBytes, coding.source_bytes - read) / sizeof(float) : 0;
  };
  std::size_t count = group_at(first);
  float largest = scaled_ ? kernels::largest_finite(floats(coding.source + first), count) : 0;
  while (count > 0) {
    const std::size_t next = group_at(coding.read + count * sizeof(float));
    largest = encode_group(floats(coding.source + coding.read), coding.destination + coding.written,
                           count, largest, next);
    coding.read += count * sizeof(float);
    coding.written += coded_bytes(count);
    count = next;
  }
  coding.done = coding.read == coding.source_bytes;
  return coding.read - first;
}

// `largest` is that of the group; returns that of the `next` elements after it.
float HalfCodec::encode_group(const float* in, std::byte* out, std::size_t count, float largest,
                              std::size_t next) const {
  if (!scaled_) {
    kernels::f32_to_bf16(reinterpret_cast<Half*>(out), in, count);
    return 0;
  }
  const Exponent exponent = kernels::f16_exponent(largest);
  std::memcpy(out, &exponent, sizeof exponent);
  return kernels::f32_to_f16_scaled_then_largest(reinterpret_cast<Half*>(out + sizeof exponent), in,
                                                 count, exponent, next);
}

Result<std::size_t> HalfCodec::decode_floats(Coding& coding, std::size_t budget) const {
  if (coding.read == 0) TACO_RETURN_IF_ERROR(check_block(coding));
  const std::size_t first = coding.written;
  while (coding.written < coding.destination_bytes && coding.written - first < budget) {
    const std::size_t bytes = std::min(kGroupBytes, coding.destination_bytes - coding.written);
    const std::size_t count = bytes / sizeof(float);
    decode_group(coding, count);
    coding.read += coded_bytes(count);
    coding.written += bytes;
  }
  coding.done = coding.written == coding.destination_bytes;
  return coding.written - first;
}

// Before anything is written: there are few exponents.
Status HalfCodec::check_block(const Coding& coding) const {
  const std::uint64_t expected = most(coding.destination_bytes);
  if (coding.source_bytes != expected) {
    return Status(Code::kMismatch, std::string("a ") + name() + " block of " +
                                       std::to_string(coding.destination_bytes / sizeof(float)) +
                                       " elements has " + std::to_string(coding.source_bytes) +
                                       " bytes, not " + std::to_string(expected));
  }
  for (std::size_t at = 0; scaled_ && at < coding.source_bytes; at += kCodedGroup) {
    const Exponent exponent = exponent_at(coding.source + at);
    if (exponent >= kernels::kMinF16Exponent && exponent <= kernels::kMaxF16Exponent) continue;
    return Status(Code::kMismatch, std::string("a ") + name() + " block has the exponent " +
                                       std::to_string(exponent) + ", outside " +
                                       std::to_string(kernels::kMinF16Exponent) + " to " +
                                       std::to_string(kernels::kMaxF16Exponent));
  }
  return Status();
}

void HalfCodec::decode_group(const Coding& coding, std::size_t count) const {
  const std::byte* group = coding.source + coding.read;
  const Exponent exponent = scaled_ ? exponent_at(group) : 0;
  const auto* in = reinterpret_cast<const Half*>(group + (scaled_ ? sizeof exponent : 0));
  float* out = floats(coding.destination + coding.written);
  if (coding.operand == nullptr) return expand(out, in, count, exponent);
  const float* operand = floats(coding.operand + coding.written);
  if (adds(coding) && scaled_) {
    return kernels::accumulate_f16_scaled(out, operand, in, count, exponent);
  }
  if (adds(coding) && operand == out) return kernels::accumulate_bf16_into_f32(out, in, count);
  std::array<float, kTile> tile;
  for (std::size_t at = 0; at < count; at += kTile) {
    const std::size_t part = std::min(kTile, count - at);
    expand(tile.data(), in + at, part, exponent);
    coding.reduce(out + at, operand + at, tile.data(), part);
  }
}

}  // namespace

std::shared_ptr<const Codec> half_codec(HalfFormat format) {
  static const std::shared_ptr<const Codec> f16 = std::make_shared<HalfCodec>(HalfFormat::kF16);
  static const std::shared_ptr<const Codec> bf16 = std::make_shared<HalfCodec>(HalfFormat::kBF16);
  return format == HalfFormat::kF16 ? f16 : bf16;
}

}  // namespace taco::pg
