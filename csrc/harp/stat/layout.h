// The page of memory on which an engine says how it stands, as other processes of its user read it:
// harp-stat finds it as a memfd in /proc/<pid>/fd. Plain numbers and names, in the byte order of
// the host; nothing on it is secret. The magic and the version stay where they are in every
// version.
//
//   offset 0     About: written before anybody can see the page, the same ever after
//   offset 512   the sequence, odd while the rest is being written (a seqlock), in a line of its
//   own offset 576   Totals offset 1088  Row, kMaxRows times; Totals says how many there are
//
// Pure layout; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace taco::harp::statistics {

inline constexpr char kMemoryName[] = "taco-harp-stat";
inline constexpr std::array<char, 8> kMagic = {'H', 'A', 'R', 'P', 'S', 'T', 'A', 'T'};
inline constexpr std::uint32_t kVersion = 2;  // changes with any of what follows
inline constexpr std::size_t kMaxRows = 1024;

// A count since the engine was made, or of this moment; kCounterTexts says which.
enum class Counter : std::uint32_t {
  kBytesSent,
  kBytesReceived,
  kPacketsSent,
  kPacketsReceived,
  kRetransmits,
  kSpuriousRetransmits,
  kProbes,
  kNicFull,
  kDroppedChecksum,
  kDroppedForged,
  kDroppedMalformed,
  kDroppedUnsealed,
  kDroppedEarly,
  kDroppedUnproven,
  kDroppedOtherVersion,
  kDroppedDuplicate,
  kDroppedLate,
  kDroppedOverflow,
  kResetsSent,
  kResetsReceived,
  kPathsProved,
  kPathsLeft,
  kPathsMoved,
  kBytesCopied,
  kShmBytesSent,
  kShmBytesReceived,
  kShmMessagesSent,
  kShmMessagesReceived,
  kDoorbells,
  kSleeps,
  kPeers,
  kSessions,
  kPaths,
  kShmLinks,
  kUnmatched,
  kCreditOutstanding,
  kEnd,
};
inline constexpr auto kCounters = static_cast<std::size_t>(Counter::kEnd);

struct CounterText {
  Counter counter;
  const char* name;   // as JSON and Prometheus have it
  const char* cause;  // of a drop; null: none
  bool is_gauge;      // of this moment
  const char* meaning;
};
std::span<const CounterText, kCounters> counter_texts();  // in the order of Counter

enum class Reach : std::uint8_t { kSelf, kMemory, kNetwork };
// The standing of a path, or of the link to a peer that is reached by none.
enum class Standing : std::uint8_t { kCalling, kProving, kLive, kLeft, kResting, kEnded };
const char* name_of(Reach reach);        // "?" of what no version knows
const char* name_of(Standing standing);  // the same

template <std::size_t kBytes>
using Text = std::array<char, kBytes>;  // ends with a 0, or is full

struct About {
  std::array<char, 8> magic = kMagic;
  std::uint32_t version = kVersion;
  std::uint32_t pid = 0;
  Text<32> driver{}, security{}, congestion{};
  std::uint32_t engine = 0;  // its number among those of the process
  Text<396> transport{};     // as Stack::transport_summary() says it
};

struct Totals {
  std::uint64_t time = 0;  // ns, of CLOCK_MONOTONIC
  std::uint64_t rows = 0, rows_left_out = 0;
  std::array<std::uint64_t, kCounters> counters{};
  std::array<std::uint64_t, 64 - 3 - kCounters> unused{};

  std::uint64_t& operator[](Counter counter) { return counters[static_cast<std::size_t>(counter)]; }
  std::uint64_t operator[](Counter counter) const {
    return counters[static_cast<std::size_t>(counter)];
  }
};

// A path to a peer, or the link to one that is not reached over the network. Addresses are IPv6, or
// IPv4 mapped into it.
struct Row {
  std::uint32_t peer = 0;
  Reach reach = Reach::kSelf;
  Standing standing = Standing::kCalling;
  std::uint16_t path = 0;
  std::array<std::byte, 16> local{}, remote{};
  std::uint16_t local_port = 0, remote_port = 0;
  std::uint32_t pid = 0;         // of the peer
  std::uint64_t round_trip = 0;  // ns, smoothed; 0: not known
  std::uint64_t window = 0, in_flight = 0;
  std::uint64_t bytes_sent = 0;  // payload
  std::uint64_t packets_sent = 0, packets_lost = 0;
  std::uint64_t datagram = 0;  // bytes of the largest that is known to arrive
  Text<152> name{};            // of the peer, as Stack::describe() says it
};

inline constexpr std::size_t kSequenceAt = 512, kTotalsAt = 576, kRowsAt = 1088;
inline constexpr std::size_t kPageBytes = kRowsAt + kMaxRows * sizeof(Row);

static_assert(sizeof(About) == kSequenceAt && std::is_trivially_copyable_v<About>);
static_assert(sizeof(Totals) == kRowsAt - kTotalsAt && std::is_trivially_copyable_v<Totals>);
static_assert(sizeof(Row) == 256 && std::is_trivially_copyable_v<Row>);
static_assert(offsetof(About, magic) == 0 && offsetof(About, version) == 8);

}  // namespace taco::harp::statistics
