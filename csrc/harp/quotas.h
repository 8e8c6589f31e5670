// Limits that both ends of a link keep, and enforce on each other. Part of the protocol: a peer
// that exceeds one does not keep to the protocol and is declared lost.
#pragma once

#include <cstddef>
#include <cstdint>

namespace taco::harp {

// Messages (and bytes) of one group that may lie unmatched at one receiver; offers likewise.
inline constexpr std::uint32_t kEagerQuotaMessages = 64;
inline constexpr std::uint32_t kEagerQuotaBytes = 64 * 1024;
// The data that one peer may keep alive here with no request of ours to show for it: as much as so
// many groups with their quotas used up. Senders do not count this far, since no program comes
// near.
inline constexpr std::size_t kGroupsAtQuota = 1024;
inline constexpr std::size_t kMaxUnmatched = kGroupsAtQuota * kEagerQuotaMessages;
inline constexpr std::size_t kMaxUnmatchedBytes = kGroupsAtQuota * kEagerQuotaBytes;
// The records that answer one peer, as long as it has not taken them: as much as an honest one that
// takes none can cause, which has a question open for each receive that it knows of, and small
// messages within its quotas.
inline constexpr std::size_t kMaxAnswerBytes = 128 * kMaxUnmatched;
// Receives open with one peer: each may cost it the entry of a want, so we keep to it as well.
inline constexpr std::size_t kMaxReceives = kMaxUnmatched;

}  // namespace taco::harp
