#include "harp/stat/layout.h"

namespace taco::harp::statistics {
namespace {

constexpr std::array<CounterText, kCounters> kCounterTexts = {{
    {Counter::kBytesSent, "sent_bytes", nullptr, false,
     "Payload sent over the network, retransmissions included."},
    {Counter::kBytesReceived, "received_bytes", nullptr, false,
     "Payload received over the network."},
    {Counter::kPacketsSent, "sent_packets", nullptr, false, "Packets sent over the network."},
    {Counter::kPacketsReceived, "received_packets", nullptr, false,
     "Packets received over the network."},
    {Counter::kRetransmits, "retransmits", nullptr, false,
     "Segments and small packets sent again."},
    {Counter::kSpuriousRetransmits, "spurious_retransmits", nullptr, false,
     "Retransmissions whose first copy turned out to have arrived."},
    {Counter::kProbes, "probes", nullptr, false, "Packets sent to ask for a sign of life."},
    {Counter::kNicFull, "nic_full", nullptr, false, "Packets that the driver refused for now."},
    {Counter::kDroppedChecksum, "dropped_packets", "checksum", false,
     "Packets dropped on arrival, by cause."},
    {Counter::kDroppedForged, "dropped_packets", "forged", false, ""},
    {Counter::kDroppedMalformed, "dropped_packets", "malformed", false, ""},
    {Counter::kDroppedUnsealed, "dropped_packets", "unsealed", false, ""},
    {Counter::kDroppedEarly, "dropped_packets", "early", false, ""},
    {Counter::kDroppedUnproven, "dropped_packets", "unproven", false, ""},
    {Counter::kDroppedOtherVersion, "dropped_packets", "other_version", false, ""},
    {Counter::kDroppedDuplicate, "dropped_packets", "duplicate", false, ""},
    {Counter::kDroppedLate, "dropped_packets", "late", false, ""},
    {Counter::kDroppedOverflow, "dropped_packets", "overflow", false, ""},
    {Counter::kResetsSent, "sent_resets", nullptr, false, "Resets sent for nobody's packets."},
    {Counter::kResetsReceived, "received_resets", nullptr, false, "Resets received."},
    {Counter::kPathsProved, "paths_proved", nullptr, false, "Paths that have been proved."},
    {Counter::kPathsLeft, "paths_left", nullptr, false,
     "Paths left because they fell silent while others answered."},
    {Counter::kPathsMoved, "paths_moved", nullptr, false, "Paths moved to other ports."},
    {Counter::kBytesCopied, "copied_bytes", nullptr, false,
     "Bytes of small messages that waited for their receive."},
    {Counter::kShmBytesSent, "shm_sent_bytes", nullptr, false, "Bytes sent by shared memory."},
    {Counter::kShmBytesReceived, "shm_received_bytes", nullptr, false,
     "Bytes received by shared memory."},
    {Counter::kShmMessagesSent, "shm_sent_messages", nullptr, false,
     "Messages sent by shared memory."},
    {Counter::kShmMessagesReceived, "shm_received_messages", nullptr, false,
     "Messages received by shared memory."},
    {Counter::kDoorbells, "doorbells", nullptr, false, "Peers on this host that were woken."},
    {Counter::kSleeps, "sleeps", nullptr, false, "Times that the engine went to sleep."},
    {Counter::kPeers, "peers", nullptr, true, "Peers in contact."},
    {Counter::kSessions, "sessions", nullptr, true, "Sessions over the network."},
    {Counter::kPaths, "paths", nullptr, true, "Paths that are live."},
    {Counter::kShmLinks, "shm_links", nullptr, true, "Peers connected by shared memory."},
    {Counter::kUnmatched, "unmatched", nullptr, true,
     "Messages and offers of peers that match no request."},
    {Counter::kCreditOutstanding, "credit_bytes", nullptr, true,
     "Bytes that all peers together may send unasked."},
}};

constexpr bool are_in_order() {
  for (std::size_t i = 0; i < kCounters; ++i) {
    if (static_cast<std::size_t>(kCounterTexts[i].counter) != i) return false;
  }
  return true;
}
static_assert(are_in_order());

}  // namespace

std::span<const CounterText, kCounters> counter_texts() { return kCounterTexts; }

const char* name_of(Reach reach) {
  switch (reach) {
    case Reach::kSelf:
      return "self";
    case Reach::kMemory:
      return "memory";
    case Reach::kNetwork:
      return "network";
  }
  return "?";
}

const char* name_of(Standing standing) {
  switch (standing) {
    case Standing::kCalling:
      return "calling";
    case Standing::kProving:
      return "proving";
    case Standing::kLive:
      return "live";
    case Standing::kLeft:
      return "left";
    case Standing::kResting:
      return "resting";
    case Standing::kEnded:
      return "ended";
  }
  return "?";
}

}  // namespace taco::harp::statistics
