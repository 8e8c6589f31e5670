#include "pg/codec.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string_view>

namespace taco::pg {
namespace {

// The uppermost two bits say what the others mean; 0 stands for no codec.
constexpr int kFamilyShift = kCodecCodeBits - 2;
constexpr std::uint32_t kNamed = 1u << kFamilyShift;  // a hash
constexpr std::uint32_t kHalf = 2u << kFamilyShift;   // bit 0: bfloat16
constexpr std::uint32_t kTopK = 3u << kFamilyShift;   // 12..0 ratio, 13 float16, 17..14 momentum
constexpr std::uint32_t kSettings = kNamed - 1;
constexpr double kStepsPerOctave = 256;
constexpr std::uint32_t kMaxRatio = (1u << 13) - 1, kMaxMomentum = 15;

}  // namespace

std::uint32_t Codec::code() const {
  std::uint32_t hash = 0x811c9dc5;
  for (const char c : std::string_view(name())) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x01000193;
  }
  return kNamed | ((hash ^ (hash >> kFamilyShift)) & kSettings);
}

std::uint32_t half_code(bool bfloat16) { return kHalf | (bfloat16 ? 1u : 0u); }

std::uint32_t top_k_code(double ratio, bool f16_values, double momentum) {
  const double octaves = -std::log2(std::clamp(ratio, 1e-9, 1.0));
  const auto steps = static_cast<std::uint32_t>(std::lround(octaves * kStepsPerOctave));
  const double share = std::clamp(momentum, 0.0, 1.0);
  const auto coarse = static_cast<std::uint32_t>(std::ceil(share * kMaxMomentum));
  return kTopK | coarse << 14 | (f16_values ? 1u << 13 : 0) | std::min(steps, kMaxRatio);
}

std::string describe_codec(std::uint32_t code) {
  const std::uint32_t family = code & ~kSettings;
  if (family == kHalf) return (code & 1) != 0 ? "bfloat16" : "float16";
  if (family != kTopK) return "codec number " + std::to_string(code & kSettings);
  char percent[32];
  std::snprintf(percent, sizeof percent, "TopK %.3g%%",
                100 * std::exp2(-static_cast<double>(code & kMaxRatio) / kStepsPerOctave));
  std::string text = percent;
  if ((code >> 13 & 1) != 0) text += " in float16";
  if ((code >> 14 & kMaxMomentum) != 0) text += " with momentum";
  return text;
}

}  // namespace taco::pg
