#include "pg/execution/signature.h"

namespace taco::pg {
namespace {

constexpr std::uint64_t kCountMask = (std::uint64_t{1} << 36) - 1;

bool is_reduction(Kind kind) {
  return kind == Kind::kAllReduce || kind == Kind::kReduce || kind == Kind::kReduceScatter;
}

bool has_root(Kind kind) {
  return kind == Kind::kBroadcast || kind == Kind::kReduce || kind == Kind::kGather ||
         kind == Kind::kScatter;
}

struct Count {
  std::uint64_t value = 0;
  bool hashed = false;
};

Count count_of_list(const std::vector<Piece>& pieces, std::size_t element) {
  bool even = true;
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const Piece& piece : pieces) {
    even = even && piece.bytes == pieces.front().bytes;
    hash = (hash ^ piece.bytes) * 0x100000001b3;
    hash ^= hash >> 29;
  }
  if (even) return {pieces.empty() ? 0 : pieces.front().bytes / element, false};
  return {hash, true};
}

Count count_of(const OperationSpec& spec) {
  const std::size_t element = kernels::size_of(spec.dtype);
  auto first = [&](const std::vector<Piece>& pieces) {
    return Count{pieces.empty() ? 0 : pieces.front().bytes / element, false};
  };
  switch (spec.kind) {
    case Kind::kAllReduce:
    case Kind::kReduce:
    case Kind::kGather:
    case Kind::kSend:
      return first(spec.inputs);
    case Kind::kBroadcast:
    case Kind::kScatter:
    case Kind::kRecv:
    case Kind::kRecvAny:
      return first(spec.outputs);
    case Kind::kAllGather:
      return count_of_list(spec.outputs, element);
    case Kind::kReduceScatter:
      return count_of_list(spec.inputs, element);
    case Kind::kAllToAll:  // each rank knows its own blocks only, or that all are equal
      return spec.equal_splits ? first(spec.inputs) : Count{};
    case Kind::kBarrier:
      return {};
  }
  return {};
}

std::uint64_t pack(const OperationSpec& spec, std::uint64_t parameter_hash) {
  const bool p2p =
      spec.kind == Kind::kSend || spec.kind == Kind::kRecv || spec.kind == Kind::kRecvAny;
  const Count count = count_of(spec);
  std::uint64_t signature = std::uint64_t(p2p ? Kind::kSend : spec.kind) << 60;
  if (spec.kind != Kind::kBarrier) signature |= std::uint64_t(spec.dtype) << 56;
  if (is_reduction(spec.kind)) signature |= std::uint64_t(spec.op) << 52;
  if (count.hashed || (spec.kind == Kind::kAllToAll && !spec.equal_splits))
    signature |= std::uint64_t{1} << 51;
  if (has_root(spec.kind)) signature |= std::uint64_t(spec.root & 0x3ff) << 41;
  if (!p2p) signature |= (parameter_hash & 0x1f) << 36;
  return signature | (count.value & kCountMask);
}

}  // namespace

std::uint64_t signature_of(const OperationSpec& spec, std::uint64_t parameter_hash) {
  return pack(spec, parameter_hash);
}

std::string describe_signature(std::uint64_t signature) {
  const Kind kind = static_cast<Kind>(signature >> 60);
  std::string text = name_of(kind);
  if (kind == Kind::kBarrier) return text;
  if (is_reduction(kind)) {
    const auto op = (signature >> 52) & 0xf;
    text += " ";
    text += op < kernels::kReduceOps ? name_of(kernels::ReduceOp(op)) : "unknown";
  }
  const auto dtype = (signature >> 56) & 0xf;
  text += " ";
  text += dtype < kernels::kDtypes ? name_of(kernels::Dtype(dtype)) : "unknown";
  if ((signature >> 51 & 1) == 0) {
    text += " x " + std::to_string(signature & kCountMask);
  } else if (kind == Kind::kAllToAll) {
    text += " in blocks";
  } else {
    text += " with uneven sizes (hash " + std::to_string(signature & 0xffffff) + ")";
  }
  if (has_root(kind)) text += " root " + std::to_string(signature >> 41 & 0x3ff);
  return text;
}

std::string describe_beside(std::uint64_t signature, std::uint64_t other) {
  std::string text = describe_signature(signature);
  const bool blocks = (signature ^ other) >> 51 & 1;
  if (blocks && Kind(signature >> 60) == Kind::kAllToAll && Kind(other >> 60) == Kind::kAllToAll) {
    return text +
           " (among several hosts with several ranks each, short blocks travel together: "
           "either all ranks pass split sizes or none does, or TACO_ALGORITHM=all_to_all=direct on "
           "all of them)";
  }
  const auto block = [](std::uint64_t of) { return of >> 36 & 0x1f; };
  if (block(signature) == block(other)) return text;
  return text + " planned with parameter block " + std::to_string(block(signature)) +
         " (TACO_ALGORITHM, TACO_CHUNK_BYTES and the hosts must be the same on all ranks)";
}

std::string describe(const OperationSpec& spec) { return describe_signature(pack(spec, 0)); }

}  // namespace taco::pg
