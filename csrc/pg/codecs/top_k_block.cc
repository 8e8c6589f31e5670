#include "pg/codecs/top_k_block.h"

#include <bit>
#include <cstring>
#include <string>

#include "kernels/scaled_half.h"

namespace taco::pg {
namespace {

static_assert(std::endian::native == std::endian::little, "coded blocks are little endian");

Status wrong(const std::string& how) { return Status(Code::kMismatch, "a TopK block " + how); }

Status check_exponent(const TopKHeader& header) {
  const bool scaled = header.kind == TopKKind::kF16;
  const int least = scaled ? kernels::kMinF16Exponent : 0;
  const int most = scaled ? kernels::kMaxF16Exponent : 0;
  if (header.exponent >= least && header.exponent <= most) return Status();
  return wrong("has the exponent " + std::to_string(header.exponent) + ", outside " +
               std::to_string(least) + " to " + std::to_string(most));
}

Status check_header(const TopKHeader& header, std::size_t elements, std::size_t values) {
  if (header.version != TopKHeader::kVersion) {
    return wrong("is of version " + std::to_string(header.version) + ", not " +
                 std::to_string(TopKHeader::kVersion));
  }
  if (header.kind > TopKKind::kF16) {
    return wrong("is of the unknown kind " + std::to_string(static_cast<int>(header.kind)));
  }
  if (header.zero != 0) {
    return wrong("has " + std::to_string(header.zero) + " where it must have 0");
  }
  if (header.elements != elements) {
    return wrong("is of " + std::to_string(header.elements) + " elements, not " +
                 std::to_string(elements));
  }
  const bool dense = header.kind == TopKKind::kDense;
  const std::size_t due = dense ? elements : values;
  if (header.values != due) {
    return wrong("of " + std::to_string(elements) + " elements sends " +
                 std::to_string(header.values) + ", not " + std::to_string(due));
  }
  if (dense && header.index_bytes != 0) {
    return wrong("is dense and has " + std::to_string(header.index_bytes) + " bytes of indices");
  }
  return check_exponent(header);
}

}  // namespace

Result<TopKBlock> parse_top_k_block(const std::byte* bytes, std::size_t length,
                                    std::size_t elements, std::size_t values) {
  TopKBlock block;
  if (length < sizeof block.header) {
    return wrong("has " + std::to_string(length) + " bytes, and its header alone " +
                 std::to_string(sizeof block.header));
  }
  std::memcpy(&block.header, bytes, sizeof block.header);
  TACO_RETURN_IF_ERROR(check_header(block.header, elements, values));
  const std::uint64_t value_bytes = top_k_value_bytes(block.header.kind, block.header.values);
  const std::uint64_t whole = sizeof block.header + value_bytes + block.header.index_bytes;
  if (length != whole) {
    return wrong("has " + std::to_string(length) + " bytes, and its header says " +
                 std::to_string(whole));
  }
  block.values = bytes + sizeof block.header;
  block.deltas = reinterpret_cast<const std::uint8_t*>(block.values + value_bytes);
  return block;
}

}  // namespace taco::pg
