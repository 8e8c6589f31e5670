#include "harp/session/reassembly.h"

#include <cstring>

namespace taco::harp {

Reassembly::Partial* Reassembly::find(const wire::Packet& piece) {
  for (Partial& partial : partial_) {
    if (partial.slot == piece.slot && partial.segment == piece.segment) return &partial;
  }
  if (partial_.size() == kMaxPartial) return nullptr;
  Partial& made =
      partial_.emplace_back(Partial{piece.slot, piece.segment, piece.fragment_of, 0, nullptr});
  made.missing = static_cast<std::uint32_t>(made.granules());
  made.block = buffers_.take(made.capacity());
  std::memset(made.block + made.bytes, 0, made.granules());
  return &made;
}

Reassembly::Verdict Reassembly::add(const wire::Packet& piece,
                                    std::span<const std::byte>& segment) {
  Partial* partial = find(piece);
  if (partial == nullptr || partial->bytes != piece.fragment_of) return Verdict::kRefused;
  std::memcpy(partial->block + piece.fragment_offset, piece.body.data(), piece.body.size());
  std::byte* const come = partial->block + partial->bytes;
  const std::size_t first = piece.fragment_offset / wire::kGranule;
  const std::size_t end =
      (piece.fragment_offset + piece.body.size() + wire::kGranule - 1) / wire::kGranule;
  for (std::size_t granule = first; granule < end; ++granule) {
    if (come[granule] != std::byte{0}) continue;
    come[granule] = std::byte{1};
    --partial->missing;
  }
  if (partial->missing > 0) return Verdict::kKept;
  segment = {partial->block, partial->bytes};
  return Verdict::kWhole;
}

void Reassembly::drop(std::size_t index) {
  buffers_.give(partial_[index].block, partial_[index].capacity());
  partial_[index] = partial_.back();
  partial_.pop_back();
}

void Reassembly::forget(std::uint64_t slot, std::uint32_t segment) {
  for (std::size_t i = partial_.size(); i-- > 0;) {
    if (partial_[i].slot == slot && partial_[i].segment == segment) drop(i);
  }
}

void Reassembly::forget(std::uint64_t slot) {
  for (std::size_t i = partial_.size(); i-- > 0;) {
    if (partial_[i].slot == slot) drop(i);
  }
}

void Reassembly::clear() {
  while (!partial_.empty()) drop(partial_.size() - 1);
}

void Reassembly::trim() {
  if (partial_.empty()) std::vector<Partial>().swap(partial_);
}

std::size_t Reassembly::memory_bytes() const {
  std::size_t bytes = partial_.capacity() * sizeof(Partial);
  for (const Partial& partial : partial_) bytes += partial.capacity();
  return bytes;
}

}  // namespace taco::harp
