// The collectives that ranks have started: every signature seen lately, ours and the peers', by
// sequence number, so that ranks that disagree are found out whichever message of theirs is seen
// first, before or after our own operation. Bounded: the last kKept sequence numbers. Engine only;
// one per group.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

namespace taco::pg {

// The sequence number of which the wire carries the low 32 bits: the one of that kind next to
// `near`.
inline std::uint64_t full_sequence(std::uint32_t low, std::uint64_t near) {
  return near + static_cast<std::int64_t>(
                    static_cast<std::int32_t>(low - static_cast<std::uint32_t>(near)));
}

class Arrivals {
 public:
  static constexpr std::uint32_t kKept = 256;

  // Two ranks mean different operations by one sequence number.
  struct Conflict {
    std::uint32_t sequence = 0;
    int rank_a = 0, rank_b = 0;
    std::uint64_t signature_a = 0, signature_b = 0;
  };

  // `rank` (this one or a peer) runs `signature` as its operation number `sequence`.
  std::optional<Conflict> note(int rank, std::uint32_t sequence, std::uint64_t signature);

  // The signature under which this sequence number is known, from whomever it was heard first.
  std::optional<std::uint64_t> signature_of(std::uint32_t sequence) const;

 private:
  struct Entry {
    std::uint32_t sequence = 0;
    int rank = -1;  // -1: empty
    std::uint64_t signature = 0;
  };
  std::array<Entry, kKept> entries_;
};

}  // namespace taco::pg
