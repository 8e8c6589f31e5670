#include "pg/execution/signature.h"

#include <algorithm>
#include <span>
#include <vector>

#include "base/digest.h"
#include "pg/codec.h"

namespace taco::pg {
namespace {

constexpr int kRootShift = 35;
constexpr std::uint64_t kMaxCount = (std::uint64_t{1} << kRootShift) - 1, kMaxRoot = 0xffff;
constexpr std::uint64_t kHashed = std::uint64_t{1} << 51;
constexpr std::uint64_t kHashMask = kHashed - 1;
// Stands in place of a dtype: float32, coded. A codec takes a sum of that.
constexpr std::uint64_t kCodedDtype = 0xf;
static_assert(kernels::kDtypes <= kCodedDtype);
constexpr int kCodeShift = 31;
constexpr std::uint64_t kMaxCoded = (std::uint64_t{1} << kCodeShift) - 1;
constexpr std::uint64_t kCodeMask = (std::uint64_t{1} << kCodecCodeBits) - 1;
static_assert(kCodeShift + kCodecCodeBits == 51);
// Only sums and averages are coded.
constexpr std::uint64_t kScaled = std::uint64_t{1} << 53, kFates = std::uint64_t{1} << 54;
constexpr std::uint64_t kCodedReductions = 0x9;
static_assert(((1 | std::uint64_t(kernels::ReduceOp::kAvg) |
                std::uint64_t(kernels::ReduceOp::kPremulSum)) &
               ~kCodedReductions) == 0);

bool is_reduction(Kind kind) {
  return kind == Kind::kAllReduce || kind == Kind::kReduce || kind == Kind::kReduceScatter;
}

bool may_be_coded(Kind kind) { return kind == Kind::kAllReduce || kind == Kind::kReduceScatter; }

bool has_root(Kind kind) {
  return kind == Kind::kBroadcast || kind == Kind::kReduce || kind == Kind::kGather ||
         kind == Kind::kScatter;
}

// Never 0, which stands for the blocks of an all_to_all.
std::uint64_t hash_of(std::uint64_t root, std::span<const Piece> pieces) {
  std::uint64_t hash = folded(kEmptyDigest, root);
  for (const Piece& piece : pieces) hash = folded(hash, piece.bytes);
  hash = (hash ^ (hash >> 47)) & kHashMask;
  return hash == 0 ? 1 : hash;
}

// The pieces that every rank has of the same sizes; none where each rank knows only its own.
std::span<const Piece> common_pieces(const OperationSpec& spec) {
  const auto first = [](const std::vector<Piece>& pieces) {
    return std::span(pieces).first(pieces.empty() ? 0 : 1);
  };
  switch (spec.kind) {
    case Kind::kAllReduce:
    case Kind::kReduce:
    case Kind::kGather:
    case Kind::kSend:
    case Kind::kPut:
      return first(spec.inputs);
    case Kind::kBroadcast:
    case Kind::kScatter:
    case Kind::kRecv:
    case Kind::kRecvAny:
      return first(spec.outputs);
    case Kind::kAllGather:
      return spec.outputs;
    case Kind::kReduceScatter:
      return spec.inputs;
    case Kind::kAllToAll:
      return spec.equal_splits ? first(spec.inputs) : std::span<const Piece>();
    case Kind::kBarrier:
    case Kind::kSignal:
    case Kind::kWaitSignal:
      return {};
  }
  return {};
}

bool all_equal(std::span<const Piece> pieces) {
  return std::all_of(pieces.begin(), pieces.end(),
                     [&](const Piece& piece) { return piece.bytes == pieces.front().bytes; });
}

std::uint64_t coded_extent(const OperationSpec& spec) {
  const std::uint64_t code = (spec.codec->code() & kCodeMask) << kCodeShift;
  const std::span<const Piece> pieces = common_pieces(spec);
  if (!all_equal(pieces)) return kHashed | code | (hash_of(0, pieces) & kMaxCoded);
  const std::uint64_t count =
      pieces.empty() ? 0 : pieces.front().bytes / kernels::size_of(spec.dtype);
  return code | std::min(count, kMaxCoded);
}

// Root and sizes, bits 0 to 51.
std::uint64_t extent_of(const OperationSpec& spec) {
  if (spec.kind == Kind::kAllToAll && !spec.equal_splits) return kHashed;
  const std::span<const Piece> pieces = common_pieces(spec);
  const std::uint64_t root = has_root(spec.kind) ? static_cast<std::uint32_t>(spec.root) : 0;
  const std::uint64_t count =
      pieces.empty() ? 0 : pieces.front().bytes / kernels::size_of(spec.dtype);
  if (all_equal(pieces) && root <= kMaxRoot && count <= kMaxCount)
    return root << kRootShift | count;
  return kHashed | hash_of(root, pieces);
}

}  // namespace

std::uint64_t signature_of(const OperationSpec& spec) {
  const bool p2p =
      spec.kind == Kind::kSend || spec.kind == Kind::kRecv || spec.kind == Kind::kRecvAny;
  std::uint64_t signature = std::uint64_t(p2p ? Kind::kSend : spec.kind) << 60;
  if (is_reduction(spec.kind)) signature |= std::uint64_t(spec.op) << 52;
  if (spec.codec != nullptr && may_be_coded(spec.kind)) {
    if (spec.scaled) signature |= kScaled;
    if (spec.fates) signature |= kFates;
    return signature | kCodedDtype << 56 | coded_extent(spec);
  }
  if (spec.kind != Kind::kBarrier) signature |= std::uint64_t(spec.dtype) << 56;
  return signature | extent_of(spec);
}

static std::string uneven(std::uint64_t hash) {
  return " with uneven sizes (hash " + std::to_string(hash) + ")";
}

static std::string describe_coded(std::uint64_t signature) {
  const std::uint64_t count = signature & kMaxCoded;
  const auto code = static_cast<std::uint32_t>(signature >> kCodeShift & kCodeMask);
  const std::string sizes = (signature & kHashed) != 0 ? uneven(count)
                                                       : " x " + std::to_string(count) +
                                                             (count == kMaxCoded ? " or more" : "");
  const char* const scaled = (signature & kScaled) != 0 ? " of a scaled loss" : "";
  return " float32" + sizes + " coded as " + describe_codec(code) + scaled;
}

std::string describe_signature(std::uint64_t signature) {
  const Kind kind = static_cast<Kind>(signature >> 60);
  std::string text = name_of(kind);
  if (kind == Kind::kBarrier || kind == Kind::kSignal || kind == Kind::kWaitSignal) return text;
  const auto dtype = (signature >> 56) & 0xf;
  const bool coded = may_be_coded(kind) && dtype == kCodedDtype;
  if (is_reduction(kind)) {
    const auto op = (signature >> 52) & (coded ? kCodedReductions : 0xf);
    text += " ";
    text += op < kernels::kReduceOps ? name_of(kernels::ReduceOp(op)) : "unknown";
  }
  if (coded) return text + describe_coded(signature);
  text += " ";
  text += dtype < kernels::kDtypes ? name_of(kernels::Dtype(dtype)) : "unknown";
  const std::uint64_t hash = signature & kHashMask;
  if ((signature & kHashed) == 0) {
    text += " x " + std::to_string(signature & kMaxCount);
    if (has_root(kind)) text += " root " + std::to_string(signature >> kRootShift & kMaxRoot);
  } else if (kind == Kind::kAllToAll && hash == 0) {
    text += " in blocks";
  } else if (kind == Kind::kAllGather || kind == Kind::kReduceScatter) {
    text += uneven(hash);
  } else {
    text += " of a size or root too large to be told here (hash " + std::to_string(hash) + ")";
  }
  return text;
}

std::string describe_beside(std::uint64_t signature, std::uint64_t other) {
  std::string text = describe_signature(signature);
  if ((signature ^ other) == kFates && (signature >> 56 & 0xf) == kCodedDtype) {
    return text +
           " (ranks have not done the same with earlier gradients of this model: each of them must "
           "be applied, skipped or thrown away on all ranks or on none)";
  }
  if ((signature ^ other) == kScaled && (signature >> 56 & 0xf) == kCodedDtype) {
    return text +
           " (all ranks or none must scale the loss by a GradScaler, and name it to "
           "lightcc.compress() if any does)";
  }
  const bool blocks = ((signature ^ other) & kHashed) != 0;
  if (blocks && Kind(signature >> 60) == Kind::kAllToAll && Kind(other >> 60) == Kind::kAllToAll) {
    return text +
           " (among several hosts with several ranks each, short blocks travel together: "
           "either all ranks pass split sizes or none does, or TACO_ALGORITHM=all_to_all=direct on "
           "all of them)";
  }
  return text;
}

std::string describe(const OperationSpec& spec) { return describe_signature(signature_of(spec)); }

}  // namespace taco::pg
