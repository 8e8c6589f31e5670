// Coded blocks come from other processes: decode() must survive any bytes, alone and on top of
// others, and a TopK block that is refused must have written nothing. Blocks are exactly as long
// as they are said to be, on the heap, so that a sanitizer sees whatever is read beyond.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "pg/codecs/half_codec.h"
#include "pg/codecs/top_k_block.h"
#include "pg/codecs/top_k_codec.h"

namespace {

using namespace taco::pg;

constexpr float kUntouched = 0x1.5p3f;

const std::array<std::shared_ptr<const Codec>, 5>& codecs() {
  static const std::array<std::shared_ptr<const Codec>, 5> all = {
      half_codec(HalfFormat::kF16), half_codec(HalfFormat::kBF16), *top_k_codec({.ratio = 0.1}),
      *top_k_codec({.ratio = 0.1, .f16_values = true}), *top_k_codec({.ratio = 1})};
  return all;
}

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t bytes) : data_(data), bytes_(bytes) {}
  std::uint32_t next(std::size_t bytes) {
    std::uint32_t value = 0;
    bytes = std::min(bytes, bytes_);
    std::memcpy(&value, data_, bytes);
    data_ += bytes;
    bytes_ -= bytes;
    return value;
  }
  std::vector<std::byte> rest() const {
    std::vector<std::byte> block(bytes_);
    if (bytes_ > 0) std::memcpy(block.data(), data_, bytes_);
    return block;
  }

 private:
  const std::uint8_t* data_;
  std::size_t bytes_;
};

// A header that fits what follows it, or bytes are hardly ever looked at behind it.
void make_plausible(std::vector<std::byte>& block, std::size_t elements, double ratio,
                    TopKKind kind) {
  TopKHeader header{.kind = kind, .elements = static_cast<std::uint32_t>(elements)};
  if (block.size() < sizeof header) return;
  const std::size_t dense = elements,
                    sparse = std::max<std::size_t>(
                        1, static_cast<std::size_t>(ratio * static_cast<double>(elements) + 0.5));
  header.values = static_cast<std::uint32_t>(kind == TopKKind::kDense ? dense : sparse);
  const std::size_t before = sizeof header + top_k_value_bytes(kind, header.values);
  if (block.size() < before) return;
  if (kind == TopKKind::kDense) block.resize(before);
  header.index_bytes = static_cast<std::uint32_t>(block.size() - before);
  std::memcpy(block.data(), &header, sizeof header);
}

bool decode(const Codec& codec, const std::vector<std::byte>& block, std::vector<float>& out,
            const float* operand, std::size_t budget) {
  Coding coding;
  coding.source = block.data();
  coding.source_bytes = block.size();
  coding.destination = reinterpret_cast<std::byte*>(out.data());
  coding.destination_bytes = out.size() * sizeof(float);
  coding.operand = reinterpret_cast<const std::byte*>(operand);
  coding.dtype = taco::kernels::Dtype::kF32;
  coding.reduce =
      taco::kernels::reduce_function(taco::kernels::ReduceOp::kSum, taco::kernels::Dtype::kF32);
  while (!coding.done) {
    if (!codec.decode(coding, budget).ok()) return false;
    if (coding.written > coding.destination_bytes || coding.read > block.size()) abort();
  }
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  Input input(data, bytes);
  const std::size_t which = input.next(1) % codecs().size();
  const std::size_t shape = input.next(1), elements = input.next(1) * (shape & 1 ? 8 : 1);
  const std::size_t budget = shape & 2 ? 1 + input.next(1) : SIZE_MAX;
  std::vector<std::byte> block = input.rest();
  if (shape & 4 && which >= 2) {
    make_plausible(block, elements, which == 4 ? 1 : 0.1, TopKKind((shape >> 3) % 3));
  }
  const Codec& codec = *codecs()[which];
  const std::vector<float> untouched(elements, kUntouched), operand(elements, 2.0f);
  for (const int way : {0, 1, 2}) {
    std::vector<float> out = untouched;
    const float* on_top = way == 0 ? nullptr : way == 1 ? operand.data() : out.data();
    if (!decode(codec, block, out, on_top, budget) && out != untouched) abort();
  }
  return 0;
}
