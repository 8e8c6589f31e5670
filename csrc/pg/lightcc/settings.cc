#include "pg/lightcc/settings.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdio>

#include "pg/codecs/half_codec.h"
#include "pg/codecs/top_k_codec.h"

namespace taco::pg::lightcc {
namespace {

constexpr std::array kNames = {"none", "topk", "float16", "bfloat16", "auto"};

constexpr int kFormatShift = kCodecCodeBits;

std::string text_of(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%g", value);
  return text.data();
}

std::string top_k_name(const Settings& settings) {
  return "TopK " + text_of(settings.ratio * 100) + (settings.f16_values ? "% as float16" : "%");
}

std::string format_name(Compression format) {
  return format == Compression::kNone ? "float32" : name_of(format);
}

}  // namespace

const char* name_of(Compression compression) {
  return kNames[static_cast<std::size_t>(compression)];
}

Result<Compression> compression_named(const std::string& name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) return static_cast<Compression>(i);
  }
  return Status(
      Code::kInvalidArgument,
      "compression is \"" + name + "\", but must be topk, float16, bfloat16, none or auto");
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
    return wrong("momentum", text_of(settings.momentum),
                 "0 unless compression is topk: it takes the place of the optimizer's, which is "
                 "lost where nothing is left out");
  }
  if (settings.small == Compression::kTopK || settings.small == Compression::kAuto) {
    return wrong("what small gradients are sent as", name_of(settings.small),
                 "none, float16 or bfloat16");
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
    case Compression::kAuto:
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

Settings by_way(const Settings& settings, Way way) {
  Settings one = settings;
  one.compression = way == Way::kHalf                         ? settings.small
                    : way == Way::kTopK && settings.may_top_k ? Compression::kTopK
                                                              : Compression::kNone;
  one.small = Compression::kNone;
  one.may_top_k = false;
  return one;
}

bool may_use(const Settings& settings, Way way, std::uint64_t bytes) {
  if (way == Way::kExact) return true;
  if (way == Way::kHalf) return settings.small != Compression::kNone;
  return settings.may_top_k && bytes >= static_cast<std::uint64_t>(settings.threshold);
}

// From below: the code of TopK, or 0; the 16-bit format; a hash of all that these do not tell.
std::uint64_t choice_code(const Settings& settings) {
  std::uint64_t hash = 0;
  for (const std::uint64_t value : {std::bit_cast<std::uint64_t>(settings.ratio),
                                    static_cast<std::uint64_t>(settings.threshold),
                                    static_cast<std::uint64_t>(settings.warm_up_steps)}) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 29;
  }
  constexpr std::uint64_t kHashBits = 52 - kFormatShift - 2;
  const std::uint64_t top_k =
      settings.may_top_k ? top_k_code(settings.ratio, settings.f16_values, 0) : 0;
  const std::uint64_t format = settings.small == Compression::kFloat16    ? 1
                               : settings.small == Compression::kBFloat16 ? 2
                                                                          : 0;
  const std::uint64_t rest = settings.may_top_k ? hash & ((1ull << kHashBits) - 1) : 0;
  return top_k | format << kFormatShift | rest << (kFormatShift + 2);
}

std::string describe_choice(std::uint64_t code) {
  const auto top_k = static_cast<std::uint32_t>(code & ((1u << kFormatShift) - 1));
  const std::uint64_t format = code >> kFormatShift & 3;
  std::string text = "float32";
  if (format != 0) text += std::string(", ") + (format == 1 ? "float16" : "bfloat16");
  return top_k == 0 ? text : text + ", " + describe_codec(top_k);
}

std::array<std::string, kWays> names_of_ways(const Settings& settings) {
  return {"float32", format_name(settings.small), top_k_name(settings)};
}

std::string describe(const Settings& settings) {
  if (settings.compression == Compression::kAuto) {
    std::string text = "float32";
    if (settings.small != Compression::kNone) text += std::string(", ") + name_of(settings.small);
    if (settings.may_top_k) {
      text +=
          ", " + top_k_name(settings) + " from " + std::to_string(settings.threshold) + " bytes";
    }
    return text + ", by what each bucket should cost";
  }
  if (settings.compression != Compression::kTopK) return format_name(settings.compression);
  std::string text = top_k_name(settings);
  if (settings.warm_up_steps > 0) {
    text += ", reached in " + std::to_string(settings.warm_up_steps) + " steps,";
  }
  if (settings.momentum > 0) text += " with momentum " + text_of(settings.momentum);
  text += " from " + std::to_string(settings.threshold) + " bytes, ";
  return text + format_name(settings.small) + " below";
}

}  // namespace taco::pg::lightcc
