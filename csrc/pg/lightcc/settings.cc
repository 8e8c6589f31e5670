#include "pg/lightcc/settings.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "pg/codecs/half_codec.h"
#include "pg/codecs/top_k_codec.h"

namespace taco::pg::lightcc {
namespace {

constexpr std::array kNames = {"none", "topk", "float16", "bfloat16"};

std::string text_of(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%g", value);
  return text.data();
}

}  // namespace

const char* name_of(Compression compression) {
  return kNames[static_cast<std::size_t>(compression)];
}

Result<Compression> compression_named(const std::string& name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) return static_cast<Compression>(i);
  }
  return Status(Code::kInvalidArgument,
                "compression is \"" + name + "\", but must be topk, float16, bfloat16 or none");
}

Status check(const Settings& settings) {
  const auto wrong = [](const char* name, const std::string& value, const char* accepted) {
    return Status(Code::kInvalidArgument,
                  std::string(name) + " is " + value + ", but must be " + accepted);
  };
  if (!(settings.ratio > 0 && settings.ratio <= 1)) {
    return wrong("ratio", text_of(settings.ratio), "above 0 and at most 1");
  }
  if (settings.threshold < 0) {
    return wrong("threshold", std::to_string(settings.threshold), "a number of bytes, 0 or more");
  }
  if (settings.warm_up_steps < 0) {
    return wrong("warm_up_steps", std::to_string(settings.warm_up_steps), "0 or more");
  }
  if (!(settings.momentum >= 0 && settings.momentum < 1)) {
    return wrong("momentum", text_of(settings.momentum), "0 (none) or more, and below 1");
  }
  if (settings.momentum > 0 && settings.compression != Compression::kTopK) {
    return wrong("momentum", text_of(settings.momentum), "0 unless compression is topk");
  }
  if (settings.small == Compression::kTopK) {
    return wrong("what small gradients are sent as", "topk", "none, float16 or bfloat16");
  }
  return Status();
}

double ratio_at(const Settings& settings, std::int64_t step) {
  constexpr std::int64_t kStages = 4;
  if (step >= settings.warm_up_steps) return settings.ratio;
  const std::int64_t stage = step * kStages / settings.warm_up_steps;
  return std::max(settings.ratio, std::pow(0.25, static_cast<double>(stage + 1)));
}

Result<std::shared_ptr<const Codec>> codec_for(const Settings& settings, std::uint64_t bytes,
                                               std::int64_t step) {
  Compression compression = settings.compression;
  if (compression == Compression::kTopK && bytes < static_cast<std::uint64_t>(settings.threshold)) {
    compression = settings.small;
  }
  switch (compression) {
    case Compression::kNone:
      break;
    case Compression::kTopK:
      return top_k_codec({.ratio = ratio_at(settings, step),
                          .f16_values = settings.f16_values,
                          .momentum = settings.momentum});
    case Compression::kFloat16:
      return half_codec(HalfFormat::kF16);
    case Compression::kBFloat16:
      return half_codec(HalfFormat::kBF16);
  }
  return std::shared_ptr<const Codec>();
}

std::string describe(const Settings& settings) {
  if (settings.compression != Compression::kTopK) {
    return settings.compression == Compression::kNone ? "float32" : name_of(settings.compression);
  }
  std::string text = "TopK " + text_of(settings.ratio * 100) + "%";
  if (settings.f16_values) text += " as float16";
  if (settings.warm_up_steps > 0) {
    text += ", reached in " + std::to_string(settings.warm_up_steps) + " steps,";
  }
  if (settings.momentum > 0) text += " with momentum " + text_of(settings.momentum);
  text += " from " + std::to_string(settings.threshold) + " bytes, ";
  return text + (settings.small == Compression::kNone ? "float32" : name_of(settings.small)) +
         " below";
}

}  // namespace taco::pg::lightcc
