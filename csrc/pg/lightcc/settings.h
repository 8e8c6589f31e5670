// Settings of what is done to a model's gradients on their way between hosts, as the user asked for
// it: by lightcc.compress(), or by the LIGHT_* variables (base/env.h). Plain values, no torch.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "pg/codec.h"
#include "pg/lightcc/choice.h"

namespace taco::pg::lightcc {

// kAuto: what automatic.h chooses for each bucket.
enum class Compression : std::uint8_t { kNone, kTopK, kFloat16, kBFloat16, kAuto };
const char* name_of(Compression compression);  // "none", "topk", "float16", "bfloat16", "auto"
Result<Compression> compression_named(const std::string& name);

struct Settings {
  Compression compression = Compression::kNone;
  // kTopK: gradients of fewer bytes than `threshold` are sent like this, which is not kTopK.
  // kAuto: in how many bits it may send gradients; kNone: in all 32.
  Compression small = Compression::kNone;
  bool may_top_k = false;            // kAuto: it may send gradients by TopK
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

// Under kAuto, the settings of what is sent by one way. kNone for a way that it must not use.
Settings by_way(const Settings& settings, Way way);
bool may_use(const Settings& settings, Way way, std::uint64_t bytes);
// The ways that kAuto may choose among, in 52 bits, for ranks to compare; and those of another rank
// in words, for who differs: "float32, float16, TopK 1%".
std::uint64_t choice_code(const Settings& settings);
std::string describe_choice(std::uint64_t code);
// By Way, for the log.
std::array<std::string, kWays> names_of_ways(const Settings& settings);

// How a gradient of `bytes` is coded in step `step`; null: not at all, as under kAuto, which goes
// by_way(). `settings` have been checked.
Result<std::shared_ptr<const Codec>> codec_for(const Settings& settings, std::uint64_t bytes,
                                               std::int64_t step);

// For the log: "TopK 1% from 1048576 bytes, float32 below".
std::string describe(const Settings& settings);

}  // namespace taco::pg::lightcc
