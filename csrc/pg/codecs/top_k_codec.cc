#include "pg/codecs/top_k_codec.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <tuple>

#include "base/per_process.h"
#include "kernels/scaled_half.h"
#include "pg/codecs/float_codec.h"
#include "pg/codecs/top_k_block.h"
#include "pg/codecs/top_k_scratch.h"
#include "pg/codecs/top_k_selection.h"

namespace taco::pg {
namespace {

constexpr std::uint64_t kMaxBytes = kMaxTopKElements * sizeof(float);

// The shortest text that gives the same number: two settings have the same name only if equal.
std::string text_of(double value) {
  std::array<char, 32> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  return std::string(text.data(), end);
}

std::string name_of(const TopKSettings& settings) {
  std::string name = "TopK ratio " + text_of(settings.ratio);
  if (settings.f16_values) name += " in float16";
  if (settings.momentum != 0) name += " with momentum " + text_of(settings.momentum);
  return name;
}

class TopKCodec final : public FloatCodec {
 public:
  explicit TopKCodec(const TopKSettings& settings)
      : FloatCodec(name_of(settings)),
        settings_(settings),
        delta_bytes_(expected_delta_bytes(settings.ratio)) {}

  std::uint64_t most(std::uint64_t bytes) const override {
    return of_blocks(bytes, [this](std::uint64_t block) { return max_of_block(block); });
  }
  std::uint64_t expected(std::uint64_t bytes) const override {
    return of_blocks(bytes, [this](std::uint64_t block) { return expected_of_block(block); });
  }
  double bytes_per_second() const override;
  double decoded_bytes_per_second() const override;
  double added_bytes_per_second() const override;
  bool has_memory() const override { return true; }
  std::uint64_t longest_block() const override;
  std::uint32_t code() const override {
    return top_k_code(settings_.ratio, settings_.f16_values, settings_.momentum);
  }

 private:
  Result<std::size_t> encode_floats(Coding& coding, std::size_t budget) const override;
  Result<std::size_t> decode_floats(Coding& coding, std::size_t budget) const override;

  // The cost model asks about whole shards, which algorithms cut into blocks.
  template <class OfBlock>
  static std::uint64_t of_blocks(std::uint64_t bytes, OfBlock of_block) {
    return bytes / kMaxBytes * of_block(kMaxBytes) + of_block(bytes % kMaxBytes);
  }
  std::uint64_t max_of_block(std::uint64_t bytes) const;
  std::uint64_t expected_of_block(std::uint64_t bytes) const;
  static double expected_delta_bytes(double ratio);

  std::size_t values_of(std::size_t elements) const {
    const auto rounded =
        static_cast<std::size_t>(std::llround(settings_.ratio * static_cast<double>(elements)));
    return std::clamp<std::size_t>(rounded, 1, elements);
  }
  TopKKind kind_of(const float* values, std::size_t count) const;

  Status invalid(const std::string& why) const {
    return Status(Code::kInvalidArgument, std::string("the codec ") + name() + " " + why);
  }
  Status check_length(std::size_t elements) const;
  Status check_feedback(const Coding& coding) const;
  bool encode_sparse(Coding& coding, std::size_t n, std::size_t k) const;
  Result<std::size_t> encode_dense(Coding& coding, std::size_t budget) const;
  Result<std::size_t> decode_dense(Coding& coding, const TopKBlock& block,
                                   std::size_t budget) const;
  Result<std::size_t> decode_sparse(Coding& coding, const TopKBlock& block,
                                    std::size_t budget) const;
  static void add_dense(const Coding& coding, const std::byte* from, std::size_t bytes);
  static std::size_t lay_ground(Coding& coding, std::size_t budget);
  static bool read_indices(const TopKBlock& block, TopKScratch& scratch);

  const TopKSettings settings_;
  const double delta_bytes_;  // an index, where the largest elements lie anywhere
  mutable TopKScratchSlots scratch_;
};

// Dense, or float32 values: float16 is not for all (kind_of).
std::uint64_t TopKCodec::max_of_block(std::uint64_t bytes) const {
  if (bytes == 0) return 0;
  const std::size_t n = bytes / sizeof(float);
  const std::size_t k = values_of(std::max<std::size_t>(n, 1));
  const std::uint64_t sparse = k * sizeof(float) + kernels::max_delta_bytes(k, n);
  return sizeof(TopKHeader) + std::max<std::uint64_t>(bytes, sparse);
}

std::uint64_t TopKCodec::expected_of_block(std::uint64_t bytes) const {
  if (bytes == 0) return 0;
  const std::size_t k = values_of(std::max<std::size_t>(bytes / sizeof(float), 1));
  const TopKKind kind = settings_.f16_values ? TopKKind::kF16 : TopKKind::kF32;
  const auto deltas = static_cast<std::uint64_t>(delta_bytes_ * static_cast<double>(k));
  return std::min(sizeof(TopKHeader) + top_k_value_bytes(kind, k) + deltas, max_of_block(bytes));
}

// Each of the 255 elements after one that is sent is left out with the probability 1 - ratio; if
// all are, another byte skips them. Multiplied step by step: all ranks must come to the same bits,
// whatever their mathematical library.
double TopKCodec::expected_delta_bytes(double ratio) {
  double skipped = 1;
  for (int i = 0; i < 255; ++i) skipped *= 1 - ratio;
  return skipped < 1 ? 1 / (1 - skipped) : 255;
}

// Measured on one core of 2.3 GHz with AVX-512, in blocks of longest_block(): 4.1e9 at 1%, 2.3e9 at
// 10%.
double TopKCodec::bytes_per_second() const {
  const double plain = 4.5e9 / (1 + 10 * settings_.ratio);
  return settings_.momentum == 0 ? plain : 0.65 * plain;
}

// Zeros, and then the few values where they belong, as if they were added to what is there: that
// alone is 2.4e10 at 1%.
double TopKCodec::decoded_bytes_per_second() const {
  return 1 / (1 / 9.5e9 + 1 / added_bytes_per_second());
}
double TopKCodec::added_bytes_per_second() const { return 2.4e8 / settings_.ratio; }

// The rest of a quick block may be a short message: then two are as quick, nearly.
std::uint64_t TopKCodec::longest_block() const {
  constexpr std::uint64_t kQuick = kernels::kQuickSelectable * sizeof(float);
  return settings_.ratio <= 0.02 ? 2 * kQuick : kQuick;
}

Status TopKCodec::check_length(std::size_t elements) const {
  if (elements <= kMaxTopKElements) return Status();
  return invalid("takes blocks of at most " + std::to_string(kMaxTopKElements) + " elements, not " +
                 std::to_string(elements));
}

Status TopKCodec::check_feedback(const Coding& coding) const {
  if (coding.feedback == nullptr) return invalid("needs a Feedback for what it does not send");
  const Feedback& feedback = *coding.feedback;
  const std::size_t end = coding.feedback_from + coding.source_bytes / sizeof(float);
  if (feedback.residual.size() < end) {
    return invalid("needs a residual of at least " + std::to_string(end) + " elements, not " +
                   std::to_string(feedback.residual.size()));
  }
  if (settings_.momentum != 0 && feedback.momentum.size() != feedback.residual.size()) {
    return invalid("needs a momentum of " + std::to_string(feedback.residual.size()) +
                   " elements, as many as the residual, not " +
                   std::to_string(feedback.momentum.size()));
  }
  return Status();
}

// In one piece, but for a dense block, which has begun where something was written.
Result<std::size_t> TopKCodec::encode_floats(Coding& coding, std::size_t budget) const {
  if (coding.written != 0) return encode_dense(coding, budget);
  if (coding.source_bytes == 0) {
    coding.done = true;
    return std::size_t{0};
  }
  const std::size_t n = coding.source_bytes / sizeof(float);
  TACO_RETURN_IF_ERROR(check_length(n));
  TACO_RETURN_IF_ERROR(check_feedback(coding));
  if (!encode_sparse(coding, n, values_of(n))) return encode_dense(coding, budget);
  coding.read = coding.source_bytes;
  coding.done = true;
  return coding.read;
}

// Rounding to 11 bits may carry a value of 2^127 or more past float32's largest: its receivers
// would find infinity, and so would the residual.
TopKKind TopKCodec::kind_of(const float* values, std::size_t count) const {
  if (!settings_.f16_values) return TopKKind::kF32;
  return kernels::largest_finite(values, count) < 0x1p127f ? TopKKind::kF16 : TopKKind::kF32;
}

// False when the block must travel as it is.
bool TopKCodec::encode_sparse(Coding& coding, std::size_t n, std::size_t k) const {
  TopKScratchLease scratch(scratch_);
  TopKSelection selection(*coding.feedback, coding.feedback_from,
                          reinterpret_cast<const float*>(coding.source), n, k,
                          static_cast<float>(settings_.momentum), *scratch);
  if (!selection.take()) return false;
  const float* taken = scratch->taken.data();
  TopKHeader header{.kind = kind_of(taken, k),
                    .elements = static_cast<std::uint32_t>(n),
                    .values = static_cast<std::uint32_t>(k)};
  std::byte* values = coding.destination + sizeof header;
  if (header.kind == TopKKind::kF16) {
    auto* halves = reinterpret_cast<std::uint16_t*>(values);
    float* decoded = TopKScratch::room(scratch->decoded, k);
    header.exponent = kernels::f16_exponent(kernels::largest_finite(taken, k));
    kernels::f32_to_f16_scaled(halves, taken, k, header.exponent);
    kernels::f16_to_f32_scaled(decoded, halves, k, header.exponent);
    selection.keep_difference();
    selection.remember(decoded);
  } else {
    std::memcpy(values, taken, k * sizeof(float));
    selection.remember(taken);
  }
  const std::size_t value_bytes = top_k_value_bytes(header.kind, k);
  auto* deltas = reinterpret_cast<std::uint8_t*>(values + value_bytes);
  header.index_bytes =
      static_cast<std::uint32_t>(kernels::encode_deltas(deltas, scratch->indices.data(), k));
  std::memcpy(coding.destination, &header, sizeof header);
  coding.written = sizeof header + value_bytes + header.index_bytes;
  return true;
}

Result<std::size_t> TopKCodec::encode_dense(Coding& coding, std::size_t budget) const {
  if (coding.written == 0) {
    const auto n = static_cast<std::uint32_t>(coding.source_bytes / sizeof(float));
    const TopKHeader header{.kind = TopKKind::kDense, .elements = n, .values = n};
    std::memcpy(coding.destination, &header, sizeof header);
    coding.written = sizeof header;
  }
  const std::size_t bytes = std::min(budget, coding.source_bytes - coding.read);
  kernels::copy(coding.destination + coding.written, coding.source + coding.read, bytes);
  coding.read += bytes;
  coding.written += bytes;
  coding.done = coding.read == coding.source_bytes;
  return bytes;
}

Result<std::size_t> TopKCodec::decode_floats(Coding& coding, std::size_t budget) const {
  const std::size_t n = coding.destination_bytes / sizeof(float);
  TACO_RETURN_IF_ERROR(check_length(n));
  if (n == 0 && coding.source_bytes == 0) {
    coding.done = true;
    return std::size_t{0};
  }
  if (n == 0) return Status(Code::kMismatch, "a TopK block came where no element is expected");
  Result<TopKBlock> block = parse_top_k_block(coding.source, coding.source_bytes, n, values_of(n));
  if (!block.ok()) return block.status();
  if (coding.operand != nullptr && !adds(coding)) {
    return Status(Code::kInvalidArgument, std::string("blocks of the codec ") + name() +
                                              " can be added up, and nothing else");
  }
  switch (block->header.kind) {
    case TopKKind::kDense:
      return decode_dense(coding, *block, budget);
    case TopKKind::kF16:
      if (settings_.f16_values) break;
      return Status(Code::kMismatch, "a TopK block has float16 values, not float32");
    case TopKKind::kF32:
      break;
  }
  return decode_sparse(coding, *block, budget);
}

Result<std::size_t> TopKCodec::decode_dense(Coding& coding, const TopKBlock& block,
                                            std::size_t budget) const {
  std::size_t bytes =
      std::min(std::max(budget, sizeof(float)), coding.destination_bytes - coding.written);
  bytes -= bytes % sizeof(float);
  add_dense(coding, block.values + coding.written, bytes);
  coding.written += bytes;
  coding.done = coding.written == coding.destination_bytes;
  if (coding.done) coding.read = coding.source_bytes;
  return bytes;
}

// The next bytes of a block that travels as it is.
void TopKCodec::add_dense(const Coding& coding, const std::byte* from, std::size_t bytes) {
  std::array<float, 1024> divided;
  const std::size_t most = coding.divisor == 1 ? bytes : sizeof divided;
  for (std::size_t at = 0; at < bytes; at += most) {
    const std::size_t part = std::min(most, bytes - at), count = part / sizeof(float);
    std::byte* to = coding.destination + coding.written + at;
    const void* values = from + at;
    if (coding.divisor != 1) {
      kernels::divide(coding.dtype, divided.data(), values, count,
                      static_cast<int>(coding.divisor));
      values = divided.data();
    }
    if (coding.operand == nullptr) {
      kernels::copy(to, values, part);
    } else {
      kernels::reduce(coding.reduce, to, coding.operand + coding.written + at, values, count,
                      sizeof(float));
    }
  }
}

// First what the values are added to, part by part, then the few values at once. The indices are
// checked before anything is written, and read again where that was in an earlier call.
Result<std::size_t> TopKCodec::decode_sparse(Coding& coding, const TopKBlock& block,
                                             std::size_t budget) const {
  const TopKHeader& header = block.header;
  const bool first = coding.written == 0;
  TopKScratchLease scratch(scratch_);
  if (first && !read_indices(block, *scratch)) {
    return Status(Code::kMismatch, "the " + std::to_string(header.index_bytes) +
                                       " bytes of indices of a TopK block are not " +
                                       std::to_string(header.values) + " ascending ones below " +
                                       std::to_string(header.elements));
  }
  const std::size_t bytes = lay_ground(coding, budget);
  if (coding.written < coding.destination_bytes) return bytes;
  if (!first) read_indices(block, *scratch);
  const std::size_t k = header.values;
  const auto* values = reinterpret_cast<const float*>(block.values);
  if (header.kind == TopKKind::kF16) {
    float* decoded = TopKScratch::room(scratch->decoded, k);
    kernels::f16_to_f32_scaled(decoded, reinterpret_cast<const std::uint16_t*>(block.values), k,
                               header.exponent);
    values = decoded;
  }
  if (coding.divisor != 1) {
    float* divided = TopKScratch::room(scratch->decoded, k);
    kernels::divide(coding.dtype, divided, values, k, static_cast<int>(coding.divisor));
    values = divided;
  }
  kernels::scatter_add(reinterpret_cast<float*>(coding.destination), values,
                       scratch->indices.data(), k);
  coding.read = coding.source_bytes;
  coding.done = true;
  return bytes;
}

// Zeros, or the operand, where it is not there already.
std::size_t TopKCodec::lay_ground(Coding& coding, std::size_t budget) {
  const std::size_t left = coding.destination_bytes - coding.written;
  const bool in_place = coding.operand == coding.destination;
  const std::size_t bytes = in_place ? left : std::min(budget, left);
  std::byte* to = coding.destination + coding.written;
  if (coding.operand == nullptr) {
    std::memset(to, 0, bytes);
  } else if (!in_place) {
    kernels::copy(to, coding.operand + coding.written, bytes);
  }
  coding.written += bytes;
  return bytes;
}

bool TopKCodec::read_indices(const TopKBlock& block, TopKScratch& scratch) {
  const TopKHeader& header = block.header;
  return kernels::decode_deltas(TopKScratch::room(scratch.indices, header.values), header.values,
                                block.deltas, header.index_bytes, header.elements);
}

Status check(const TopKSettings& settings) {
  if (!(settings.ratio > 0 && settings.ratio <= 1)) {
    return Status(Code::kInvalidArgument,
                  "the ratio of TopK is " + text_of(settings.ratio) +
                      ": it must be above 0 and at most 1, the share of elements to send");
  }
  if (!(settings.momentum >= 0 && settings.momentum < 1)) {
    return Status(Code::kInvalidArgument, "the momentum of TopK is " + text_of(settings.momentum) +
                                              ": it must be at least 0 and below 1");
  }
  return Status();
}

struct Codecs {
  std::mutex mutex;
  std::map<std::tuple<double, bool, double>, std::weak_ptr<const Codec>> by_settings;
};

constinit PerProcess<Codecs> codecs;

}  // namespace

Result<std::shared_ptr<const Codec>> top_k_codec(const TopKSettings& settings) {
  TACO_RETURN_IF_ERROR(check(settings));
  std::lock_guard lock(codecs().mutex);
  auto& all = codecs().by_settings;
  std::erase_if(all, [](const auto& entry) { return entry.second.expired(); });
  auto& known = all[{settings.ratio, settings.f16_values, settings.momentum}];
  std::shared_ptr<const Codec> codec = known.lock();
  if (codec == nullptr) known = codec = std::make_shared<const TopKCodec>(settings);
  return codec;
}

}  // namespace taco::pg
