#include "zerocache/exchange.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "zerocache/agreement.h"

namespace taco::zerocache {
namespace {

constexpr std::size_t kLeastSlice = 4096;
constexpr std::size_t kNone = static_cast<std::size_t>(-1);

class Rounds {
 public:
  Rounds(Collectives& ranks, std::span<const Parcel> parcels, const ExchangeCalls& calls,
         std::size_t memory)
      : ranks_(ranks), parcels_(parcels), calls_(calls) {
    const auto size = static_cast<std::size_t>(ranks.size());
    by_rank_.resize(size);
    for (std::size_t i = 0; i < parcels.size(); ++i) {
      by_rank_[static_cast<std::size_t>(parcels[i].owner)].push_back(i);
    }
    std::size_t longest = 0;
    for (const Parcel& parcel : parcels) longest = std::max(longest, parcel.bytes);
    // Two are under way at a time.
    slice_ = std::clamp(memory / 2 / size / kLeastSlice * kLeastSlice, kLeastSlice,
                        std::max(longest, kLeastSlice));
    for (int i = 0; i < 2; ++i) {
      sent_[i].resize(longest);
      received_[i].resize(slice_ * size);
    }
  }

  Status run() {
    std::size_t rounds = 0;
    for (const std::vector<std::size_t>& own : by_rank_) rounds = std::max(rounds, own.size());
    for (std::size_t round = 0; round < rounds; ++round) TACO_RETURN_IF_ERROR(run_round(round));
    TACO_RETURN_IF_ERROR(finish());
    return agree(ranks_, own_);
  }

 private:
  struct Slice {
    std::size_t round = 0, from = 0, bytes = 0;  // of the longest parcel of the round
    int buffer = 0;
    std::unique_ptr<Collectives::Work> work;
  };

  std::size_t parcel_of(std::size_t rank, std::size_t round) const {
    return round < by_rank_[rank].size() ? by_rank_[rank][round] : kNone;
  }

  void note(const Status& status) {
    if (own_.ok()) own_ = status;
  }

  Status run_round(std::size_t round) {
    std::size_t bytes = 0;
    for (std::size_t rank = 0; rank < by_rank_.size(); ++rank) {
      const std::size_t parcel = parcel_of(rank, round);
      if (parcel != kNone) bytes = std::max(bytes, parcels_[parcel].bytes);
    }
    // Of the round before, only the last slice may still be under way; it is sent from the other
    // buffer.
    std::vector<std::byte>& sent = sent_[round % 2];
    const std::size_t own = parcel_of(static_cast<std::size_t>(ranks_.rank()), round);
    if (own != kNone && own_.ok()) {
      note(calls_.pack(own, std::span(sent).first(parcels_[own].bytes)));
    }
    for (std::size_t from = 0; from < bytes; from += slice_) {
      Slice slice{round, from, std::min(slice_, bytes - from), next_buffer_, nullptr};
      next_buffer_ = 1 - next_buffer_;
      std::vector<std::byte>& received = received_[slice.buffer];
      auto work = ranks_.all_gather(std::span(sent).subspan(from, slice.bytes),
                                    std::span(received).first(slice.bytes * by_rank_.size()));
      if (!work.ok()) return work.status();
      slice.work = std::move(*work);
      TACO_RETURN_IF_ERROR(finish());
      pending_ = std::move(slice);
    }
    return {};
  }

  // Waits for the slice that is under way, if there is one, and hands it out.
  Status finish() {
    if (pending_.work == nullptr) return {};
    const Slice slice = std::move(pending_);
    pending_ = {};
    TACO_RETURN_IF_ERROR(slice.work->wait());
    for (std::size_t rank = 0; rank < by_rank_.size(); ++rank) {
      const std::size_t parcel = parcel_of(rank, slice.round);
      if (parcel == kNone || rank == static_cast<std::size_t>(ranks_.rank())) continue;
      if (parcels_[parcel].bytes <= slice.from || !own_.ok()) continue;
      const std::size_t bytes = std::min(slice.bytes, parcels_[parcel].bytes - slice.from);
      const std::span<const std::byte> from =
          std::span(received_[slice.buffer]).subspan(rank * slice.bytes, bytes);
      note(calls_.unpack(parcel, slice.from, from));
    }
    return {};
  }

  Collectives& ranks_;
  const std::span<const Parcel> parcels_;
  const ExchangeCalls& calls_;
  std::vector<std::vector<std::size_t>> by_rank_;  // parcels, in order
  std::size_t slice_ = 0;
  std::vector<std::byte> sent_[2];
  std::vector<std::byte> received_[2];
  int next_buffer_ = 0;
  Status own_;     // the first failure of this rank's calls
  Slice pending_;  // goes before the buffers
};

}  // namespace

Status exchange(Collectives& ranks, std::span<const Parcel> parcels, const ExchangeCalls& calls,
                std::size_t memory) {
  return Rounds(ranks, parcels, calls, memory).run();
}

}  // namespace taco::zerocache
