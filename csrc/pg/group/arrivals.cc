#include "pg/group/arrivals.h"

namespace taco::pg {

std::optional<Arrivals::Conflict> Arrivals::note(int rank, std::uint32_t ordinal,
                                                 std::uint64_t signature) {
  Entry& entry = entries_[ordinal % kKept];
  if (entry.rank >= 0 && entry.ordinal == ordinal) {
    if (entry.signature == signature) return std::nullopt;
    return Conflict{ordinal, entry.rank, rank, entry.signature, signature};
  }
  // Wraps as the tag's 32 bits do.
  if (entry.rank >= 0 && static_cast<std::int32_t>(ordinal - entry.ordinal) < 0)
    return std::nullopt;
  entry = {ordinal, rank, signature};
  return std::nullopt;
}

std::optional<std::uint64_t> Arrivals::signature_of(std::uint32_t ordinal) const {
  const Entry& entry = entries_[ordinal % kKept];
  if (entry.rank < 0 || entry.ordinal != ordinal) return std::nullopt;
  return entry.signature;
}

}  // namespace taco::pg
