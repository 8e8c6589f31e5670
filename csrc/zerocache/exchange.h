// Has bytes that one rank makes arrive at all others: parcels, each of one rank, in rounds of one
// parcel from every rank. A rank makes its parcel of the next round while those of a round travel;
// so arithmetic and I/O go on beside the network.
//
// The same parcels in the same order on all ranks. The memory for them is bounded: where there are
// many ranks, parcels travel in slices.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "base/status.h"
#include "zerocache/collectives.h"

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

// OK on all ranks, or a failure on all of them (agreement.h). After a failure of its own a rank
// makes no more calls, but goes on to take part, for the others not to wait for it; what they get
// from it then is arbitrary. `memory`, in bytes, holds what is received; parcels that are sent come
// on top, two of them.
Status exchange(Collectives& ranks, std::span<const Parcel> parcels, const ExchangeCalls& calls,
                std::size_t memory = kExchangeBytes);

}  // namespace taco::zerocache
