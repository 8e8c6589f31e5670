// Segments that arrive in pieces, because the path became too narrow for the whole. A piece that is
// kept stays until its segment is whole or nobody wants it any more: its sender may believe so, and
// will not send it again. What finds no room is refused, and must not be acknowledged.
//
// One a session; the owner's thread only. Holds nothing while no segment is incomplete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "harp/byte_pool.h"
#include "harp/session/wire.h"

namespace taco::harp {

class Reassembly {
 public:
  explicit Reassembly(BytePool& buffers) : buffers_(buffers) {}
  ~Reassembly() { clear(); }
  Reassembly(const Reassembly&) = delete;
  Reassembly& operator=(const Reassembly&) = delete;

  enum class Verdict : std::uint8_t { kKept, kWhole, kRefused };
  // Takes a kFragment packet. kWhole: `segment` is complete, and valid until it is forgotten.
  Verdict add(const wire::Packet& piece, std::span<const std::byte>& segment);
  // The segment is not wanted any more, or not in pieces.
  void forget(std::uint64_t slot, std::uint32_t segment);
  // Nor is anything of this receive.
  void forget(std::uint64_t slot);
  void clear();
  bool empty() const { return partial_.empty(); }
  void trim();
  std::size_t memory_bytes() const;

  static constexpr std::size_t kMaxPartial = wire::kMaxPartialSegments;

 private:
  struct Partial {
    std::uint64_t slot;
    std::uint32_t segment, bytes;
    std::uint32_t missing;  // granules
    std::byte* block;       // the segment, then one byte a granule: has it come?
    std::size_t granules() const { return (bytes + wire::kGranule - 1) / wire::kGranule; }
    std::size_t capacity() const { return bytes + granules(); }
  };
  Partial* find(const wire::Packet& piece);
  void drop(std::size_t index);

  BytePool& buffers_;
  std::vector<Partial> partial_;
};

}  // namespace taco::harp
