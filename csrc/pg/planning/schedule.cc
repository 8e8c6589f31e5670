#include "pg/planning/schedule.h"

#include "base/digest.h"

namespace taco::pg {

const char* name_of(StepKind kind) {
  switch (kind) {
    case StepKind::kSend:
      return "send";
    case StepKind::kRecv:
      return "recv";
    case StepKind::kRecvReduce:
      return "recv_reduce";
    case StepKind::kCopy:
      return "copy";
    case StepKind::kReduce:
      return "reduce";
    case StepKind::kScale:
      return "scale";
    case StepKind::kDivide:
      return "divide";
    case StepKind::kEncode:
      return "encode";
    case StepKind::kDecode:
      return "decode";
    case StepKind::kDecodeReduce:
      return "decode_reduce";
  }
  return "unknown";
}

std::uint64_t Problem::total(int world) const {
  if (blocks.empty()) return bytes * static_cast<std::uint64_t>(world);
  std::uint64_t sum = 0;
  for (const std::uint64_t block : blocks) sum += block;
  return sum;
}

std::size_t hash_of(const Problem& problem) {
  std::uint64_t hash = kEmptyDigest;
  const auto mix = [&hash](std::uint64_t value) { hash = folded(hash, value); };
  mix(static_cast<std::uint64_t>(problem.kind) | std::uint64_t{problem.element_bytes} << 8 |
      std::uint64_t{problem.average} << 40 | std::uint64_t{problem.premultiply} << 41 |
      std::uint64_t{problem.equal_splits} << 42 | std::uint64_t{problem.in_place} << 43);
  mix(static_cast<std::uint64_t>(problem.root));
  mix(problem.bytes);
  mix(reinterpret_cast<std::uintptr_t>(problem.codec.get()));
  for (const std::uint64_t block : problem.blocks) mix(block);
  for (const std::uint64_t block : problem.send_blocks) mix(block);
  for (const std::uint64_t block : problem.receive_blocks) mix(block);
  return hash;
}

}  // namespace taco::pg
