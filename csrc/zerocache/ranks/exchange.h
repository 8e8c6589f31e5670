// Has bytes that one rank makes arrive at all others: parcels, each of one rank, in rounds of one
// parcel from every rank. A rank makes its parcel of the next round while those of a round travel;
// so arithmetic and I/O go on beside the network.
//
// The same parcels in the same order on all ranks. The memory for them is bounded: where there are
// many ranks, parcels travel in slices.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "zerocache/ranks/collectives.h"

namespace taco::zerocache {

struct Parcel {
  int owner = 0;
  std::size_t bytes = 0;
};

struct ExchangeCalls {
  // On its owner: fills in the whole of a parcel.
  std::function<Status(std::size_t parcel, std::span<std::byte> to)> pack;
  // On all others: bytes of a parcel, from `from` on.
  std::function<Status(std::size_t parcel, std::size_t from, std::span<const std::byte> bytes)>
      unpack;
};

inline constexpr std::size_t kExchangeBytes = std::size_t{32} << 20;

// Parcels by and by, as there are any; the last ones travel while the ranks do something else.
//
//   send(parcels)   begins with these
//   wait()          all have arrived
//
// After a failure of its own a rank makes no more calls, but goes on to take part, for the others
// not to wait for it; what they get from it then is arbitrary. own() says so, to this rank alone.
// A failure that these return is one of the group, after which no call is possible.
class Exchange {
 public:
  // `longest`, in bytes: of all parcels. `memory` holds what is received; parcels that are sent
  // come on top, two of them.
  Exchange(Collectives& ranks, ExchangeCalls calls, std::size_t longest,
           std::size_t memory = kExchangeBytes);
  // Drops what is under way.
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // Calls number parcels from 0 on, over all that were sent.
  Status send(std::span<const Parcel> parcels);
  Status wait();
  const Status& own() const { return own_; }

 private:
  struct Buffers {
    std::vector<std::byte> sent[2], received[2];
  };
  struct Slice {
    std::vector<std::size_t> parcels;  // of its round, by rank
    std::size_t from = 0, bytes = 0;   // of the longest
    int buffer = 0;
    std::unique_ptr<Collectives::Work> work;
  };

  void note(const Status& status) {
    if (own_.ok()) own_ = status;
  }
  Status send_round(const std::vector<std::size_t>& parcels);

  Collectives& ranks_;
  const ExchangeCalls calls_;
  std::vector<Parcel> parcels_;
  std::size_t slice_ = 0;
  std::shared_ptr<Buffers> buffers_;  // outlives the work
  std::size_t rounds_ = 0;
  int next_buffer_ = 0;
  Status own_;     // the first failure of this rank's calls
  Slice pending_;  // under way, if it has work
};

// All of it at once: OK on all ranks, or a failure on all of them (agreement.h).
Status exchange(Collectives& ranks, std::span<const Parcel> parcels, const ExchangeCalls& calls,
                std::size_t memory = kExchangeBytes);

}  // namespace taco::zerocache
