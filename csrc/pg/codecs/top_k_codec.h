// The k of n elements that are largest in magnitude, with error feedback: what is not sent now is
// added to the next gradient (Shi et al., "Towards Scalable Distributed Training of Deep Learning
// on Public Cloud Clusters", MLSys 2021). A receiver finds zeros where nothing was sent.
//
// Takes blocks of at most kMaxTopKElements float32 elements and a Feedback that covers them. One
// that holds NaN or infinity, in the gradient or in what it adds up to, travels as it is, and its
// residual and momentum stay as they were: the receivers see what they would without a codec.
// pg/codecs/top_k_block.h has the bytes.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "kernels/select.h"
#include "pg/codec.h"

namespace taco::pg {

inline constexpr std::size_t kMaxTopKElements = kernels::kMaxSelectable;

struct TopKSettings {
  double ratio = 0.01;      // in (0, 1]: k = max(1, round(ratio * n)) in each block
  bool f16_values = false;  // values as float16, scaled for each block; the rounding stays behind
  // In [0, 1): the factor of DGC's momentum correction, which stands for the optimizer's momentum
  // (Lin et al., "Deep Gradient Compression", ICLR 2018); 0: none. Needs Feedback::momentum.
  double momentum = 0;
};

// kInvalidArgument when a setting is outside its range. While somebody holds a codec, equal
// settings give the same object.
Result<std::shared_ptr<const Codec>> top_k_codec(const TopKSettings& settings);

}  // namespace taco::pg
