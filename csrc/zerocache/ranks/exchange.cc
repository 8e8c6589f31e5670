#include "zerocache/ranks/exchange.h"

#include <algorithm>
#include <utility>

#include "zerocache/ranks/agreement.h"

namespace taco::zerocache {
namespace {

constexpr std::size_t kMinSlice = 4096;
constexpr std::size_t kNone = static_cast<std::size_t>(-1);

}  // namespace

Exchange::Exchange(Collectives& ranks, ExchangeCalls calls, std::size_t longest, std::size_t memory)
    : ranks_(ranks), calls_(std::move(calls)), buffers_(std::make_shared<Buffers>()) {
  const auto size = static_cast<std::size_t>(ranks.size());
  // Two are under way at a time.
  slice_ = std::clamp(memory / 2 / size / kMinSlice * kMinSlice, kMinSlice,
                      std::max(longest, kMinSlice));
  for (int i = 0; i < 2; ++i) {
    buffers_->sent[i].resize(longest);
    buffers_->received[i].resize(slice_ * size);
  }
}

Exchange::~Exchange() {
  if (pending_.work != nullptr) pending_.work->abandon(buffers_);
}

Status Exchange::send(std::span<const Parcel> parcels) {
  const auto size = static_cast<std::size_t>(ranks_.size());
  std::vector<std::vector<std::size_t>> by_rank(size);
  for (const Parcel& parcel : parcels) {
    by_rank[static_cast<std::size_t>(parcel.owner)].push_back(parcels_.size());
    parcels_.push_back(parcel);
  }
  std::size_t rounds = 0;
  for (const std::vector<std::size_t>& own : by_rank) rounds = std::max(rounds, own.size());
  for (std::size_t round = 0; round < rounds; ++round) {
    std::vector<std::size_t> each(size, kNone);
    for (std::size_t rank = 0; rank < size; ++rank) {
      if (round < by_rank[rank].size()) each[rank] = by_rank[rank][round];
    }
    TACO_RETURN_IF_ERROR(send_round(each));
  }
  return {};
}

Status Exchange::send_round(const std::vector<std::size_t>& parcels) {
  std::size_t bytes = 0;
  for (const std::size_t parcel : parcels) {
    if (parcel != kNone) bytes = std::max(bytes, parcels_[parcel].bytes);
  }
  // Only the last slice of the round before may still be under way; it is sent from the other
  // buffer.
  std::vector<std::byte>& sent = buffers_->sent[rounds_++ % 2];
  const std::size_t own = parcels[static_cast<std::size_t>(ranks_.rank())];
  if (own != kNone && own_.ok()) {
    note(calls_.pack(own, std::span(sent).first(parcels_[own].bytes)));
  }
  for (std::size_t from = 0; from < bytes; from += slice_) {
    Slice slice{parcels, from, std::min(slice_, bytes - from), next_buffer_, nullptr};
    next_buffer_ = 1 - next_buffer_;
    std::vector<std::byte>& received = buffers_->received[slice.buffer];
    auto work = ranks_.all_gather(std::span(sent).subspan(from, slice.bytes),
                                  std::span(received).first(slice.bytes * parcels.size()));
    if (!work.ok()) return work.status();
    slice.work = std::move(*work);
    TACO_RETURN_IF_ERROR(wait());
    pending_ = std::move(slice);
  }
  return {};
}

// Waits for the slice that is under way, if there is one, and hands it out.
Status Exchange::wait() {
  if (pending_.work == nullptr) return {};
  const Slice slice = std::exchange(pending_, {});
  TACO_RETURN_IF_ERROR(slice.work->wait());
  for (std::size_t rank = 0; rank < slice.parcels.size(); ++rank) {
    const std::size_t parcel = slice.parcels[rank];
    if (parcel == kNone || rank == static_cast<std::size_t>(ranks_.rank())) continue;
    if (parcels_[parcel].bytes <= slice.from || !own_.ok()) continue;
    const std::size_t bytes = std::min(slice.bytes, parcels_[parcel].bytes - slice.from);
    const std::span<const std::byte> from =
        std::span(buffers_->received[slice.buffer]).subspan(rank * slice.bytes, bytes);
    note(calls_.unpack(parcel, slice.from, from));
  }
  return {};
}

Status exchange(Collectives& ranks, std::span<const Parcel> parcels, const ExchangeCalls& calls,
                std::size_t memory) {
  std::size_t longest = 0;
  for (const Parcel& parcel : parcels) longest = std::max(longest, parcel.bytes);
  Exchange all(ranks, calls, longest, memory);
  TACO_RETURN_IF_ERROR(all.send(parcels));
  TACO_RETURN_IF_ERROR(all.wait());
  return agree(ranks, all.own());
}

}  // namespace taco::zerocache
