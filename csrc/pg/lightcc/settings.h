// What is done to a model's gradients on their way between hosts, as the user asked for it: by
// lightcc.compress(), or by the LIGHT_* variables (base/env.h). Plain values, no torch.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "pg/codec.h"

namespace taco::pg::lightcc {

enum class Compression : std::uint8_t { kNone, kTopK, kFloat16, kBFloat16 };
const char* name_of(Compression compression);  // "none", "topk", "float16", "bfloat16"
Result<Compression> compression_named(const std::string& name);

struct Settings {
  Compression compression = Compression::kNone;
  // kTopK: gradients of fewer bytes than `threshold` are sent like this, which is not kTopK.
  Compression small = Compression::kNone;
  double ratio = 0.01;               // kTopK: the part of the elements that is sent
  std::int64_t threshold = 1 << 20;  // bytes
  bool f16_values = false;           // kTopK: values as scaled float16
  std::int64_t warm_up_steps = 0;    // kTopK: steps over which the ratio comes down
  double momentum = 0;               // kTopK: DGC's momentum correction; 0: none
  bool operator==(const Settings&) const = default;
};

// kInvalidArgument that names the setting and its value.
Status check(const Settings& settings);

// The ratio of step `step`, from 0: over the warm-up it comes down as in Deep Gradient Compression
// (Lin et al., 2018), 25%, 6.3%, 1.6%, 0.4%, each a quarter of the one before, as far as the
// target.
double ratio_at(const Settings& settings, std::int64_t step);

// How a gradient of `bytes` is coded in step `step`; null: not at all. `settings` have been
// checked.
Result<std::shared_ptr<const Codec>> codec_for(const Settings& settings, std::uint64_t bytes,
                                               std::int64_t step);

// For the log: "TopK 1% from 1048576 bytes, float32 below".
std::string describe(const Settings& settings);

}  // namespace taco::pg::lightcc
