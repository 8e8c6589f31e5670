#include "pg/codecs/float_codec.h"

#include "base/assert.h"
#include "base/clock.h"
#include "pg/codecs/coding_stats.h"

namespace taco::pg {

Status FloatCodec::check(const Coding& coding, std::size_t bytes) const {
  if (coding.dtype != kernels::Dtype::kF32) {
    return Status(Code::kInvalidArgument, "the codec " + name_ + " takes float32 elements, not " +
                                              kernels::name_of(coding.dtype) +
                                              ": send these without a codec");
  }
  if (bytes % sizeof(float) != 0) {
    return Status(Code::kInvalidArgument, "the codec " + name_ +
                                              " takes whole float32 elements, not a block of " +
                                              std::to_string(bytes) + " bytes");
  }
  return Status();
}

Result<std::size_t> FloatCodec::encode(Coding& coding, std::size_t budget) const {
  TACO_RETURN_IF_ERROR(check(coding, coding.source_bytes));
  if (const std::uint64_t room = most(coding.source_bytes); coding.destination_bytes < room) {
    return Status(Code::kInternal, "the codec " + name_ + " needs room for " +
                                       std::to_string(room) + " bytes and has " +
                                       std::to_string(coding.destination_bytes));
  }
  const Time began = monotonic_now();
  Result<std::size_t> worked = encode_floats(coding, budget);
  count_encoding(monotonic_now() - began);
  if (worked.ok() && coding.done) count_encoded(coding.source_bytes, coding.written);
  return worked;
}

Result<std::size_t> FloatCodec::decode(Coding& coding, std::size_t budget) const {
  TACO_RETURN_IF_ERROR(check(coding, coding.destination_bytes));
  TACO_ASSERT(coding.divisor == 1 || has_memory());
  const Time began = monotonic_now();
  Result<std::size_t> worked = decode_floats(coding, budget);
  count_decoding(monotonic_now() - began);
  if (worked.ok() && coding.done) count_decoded();
  return worked;
}

bool adds(const Coding& coding) {
  return coding.reduce == kernels::reduce_function(kernels::ReduceOp::kSum, kernels::Dtype::kF32);
}

}  // namespace taco::pg
