#include "pg/group/arrivals.h"

namespace taco::pg {

std::optional<Arrivals::Conflict> Arrivals::note(int rank, std::uint32_t sequence,
                                                 std::uint64_t signature) {
  Entry& entry = entries_[sequence % kKept];
  if (entry.rank >= 0 && entry.sequence == sequence) {
    if (entry.signature == signature) return std::nullopt;
    return Conflict{sequence, entry.rank, rank, entry.signature, signature};
  }
  // Wraps as the tag's 32 bits do.
  if (entry.rank >= 0 && static_cast<std::int32_t>(sequence - entry.sequence) < 0)
    return std::nullopt;
  entry = {sequence, rank, signature};
  return std::nullopt;
}

std::optional<std::uint64_t> Arrivals::signature_of(std::uint32_t sequence) const {
  const Entry& entry = entries_[sequence % kKept];
  if (entry.rank < 0 || entry.sequence != sequence) return std::nullopt;
  return entry.signature;
}

}  // namespace taco::pg
