// The engine's counts and paths as other processes read them.
#include <algorithm>

#include "harp/engine/engine_loop.h"

namespace taco::harp {
namespace {

using statistics::Counter;

struct ProtocolCount {
  Counter counter;
  std::uint64_t ProtocolCounters::*from;
};
constexpr ProtocolCount kProtocolCounts[] = {
    {Counter::kBytesSent, &ProtocolCounters::bytes_sent},
    {Counter::kBytesReceived, &ProtocolCounters::bytes_received},
    {Counter::kPacketsSent, &ProtocolCounters::packets_sent},
    {Counter::kPacketsReceived, &ProtocolCounters::packets_received},
    {Counter::kRetransmits, &ProtocolCounters::retransmits},
    {Counter::kSpuriousRetransmits, &ProtocolCounters::spurious_retransmits},
    {Counter::kProbes, &ProtocolCounters::probes},
    {Counter::kNicFull, &ProtocolCounters::nic_full},
    {Counter::kDroppedChecksum, &ProtocolCounters::checksum_failures},
    {Counter::kDroppedForged, &ProtocolCounters::forged},
    {Counter::kDroppedMalformed, &ProtocolCounters::malformed},
    {Counter::kDroppedUnsealed, &ProtocolCounters::unsealed},
    {Counter::kDroppedEarly, &ProtocolCounters::early},
    {Counter::kDroppedUnproven, &ProtocolCounters::unproven},
    {Counter::kDroppedOtherVersion, &ProtocolCounters::other_versions},
    {Counter::kDroppedDuplicate, &ProtocolCounters::duplicates},
    {Counter::kDroppedLate, &ProtocolCounters::late},
    {Counter::kResetsSent, &ProtocolCounters::resets_sent},
    {Counter::kResetsReceived, &ProtocolCounters::resets_received},
    {Counter::kPathsProved, &ProtocolCounters::paths_proved},
    {Counter::kPathsLeft, &ProtocolCounters::paths_left},
    {Counter::kPathsMoved, &ProtocolCounters::paths_moved},
};

statistics::Standing standing_of(const Path& path) {
  switch (path.standing()) {
    case Path::Standing::kProving:
      return statistics::Standing::kProving;
    case Path::Standing::kLive:
      return statistics::Standing::kLive;
    case Path::Standing::kLeft:
      return statistics::Standing::kLeft;
    case Path::Standing::kResting:
      return statistics::Standing::kResting;
  }
  return statistics::Standing::kEnded;
}

statistics::Row row_of(const Peer& peer) {
  statistics::Row row;
  row.peer = peer.id;
  row.pid = peer.address.pid;
  statistics::set_text(row.name, peer.description);
  return row;
}

void add_path(statistics::Row& row, const Path& path, const Endpoint& local) {
  row.path = static_cast<std::uint16_t>(path.id());
  row.standing = standing_of(path);
  row.local = mapped_address(local);
  row.local_port = port_of(local);
  row.remote = mapped_address(path.pair().remote);
  row.remote_port = port_of(path.pair().remote);
  row.round_trip = static_cast<std::uint64_t>(path.round_trip());
  row.window = path.window();
  row.in_flight = path.in_flight();
  row.bytes_sent = path.payload_sent();
  row.packets_sent = path.last_number();
  row.packets_lost = path.packets_lost();
  row.datagram = path.mtu().size();
}

statistics::Standing standing_of_link(const Peer& peer) {
  if (peer.matcher.lost()) return statistics::Standing::kEnded;
  const bool connected = peer.shm == nullptr || peer.shm->is_connected();
  return connected ? statistics::Standing::kLive : statistics::Standing::kCalling;
}

}  // namespace

std::uint64_t EngineLoop::activity_st() const {
  // Peers may come as others go: a bit that no count reaches tells them from packets.
  std::uint64_t sum = std::uint64_t{linked_.size()} << 48;
  for (const ProtocolCount& each : kProtocolCounts) sum += counters().*each.from;
  return sum + nic().overflows();
}

void EngineLoop::describe_st(statistics::State& state) {
  assert_owner();
  statistics::Totals& totals = state.totals;
  for (const ProtocolCount& each : kProtocolCounts) totals[each.counter] = counters().*each.from;
  totals[Counter::kBytesCopied] = matching_.bytes_copied;
  totals[Counter::kDroppedOverflow] = nic().overflows();
  totals[Counter::kPeers] = linked_.size();
  totals[Counter::kCreditOutstanding] = credit().outstanding();
  state.rows.clear();
  for (const Peer* peer : linked_) {
    totals[Counter::kUnmatched] += peer->matcher.kept_for_peer();
    if (peer->session != nullptr) {
      ++totals[Counter::kSessions];
      if (peer->session->established()) {
        totals[Counter::kPaths] += peer->session->paths().live();
      }
    }
    if (state.rows.size() >= statistics::kMaxRows) {
      totals.rows_left_out += peer->session == nullptr ? 1 : peer->session->paths().count();
      continue;
    }
    add_rows(*peer, state.rows);
  }
}

void EngineLoop::add_rows(const Peer& peer, std::vector<statistics::Row>& rows) const {
  if (peer.session == nullptr) {
    statistics::Row& row = rows.emplace_back(row_of(peer));
    row.reach = peer.reach == Reach::kSelf ? statistics::Reach::kSelf : statistics::Reach::kMemory;
    row.standing = standing_of_link(peer);
    return;
  }
  for (const auto& path : peer.session->paths()) {
    statistics::Row& row = rows.emplace_back(row_of(peer));
    row.reach = statistics::Reach::kNetwork;
    add_path(row, *path, nic().addresses()[path->pair().local].endpoint);
    if (!peer.session->established()) row.standing = statistics::Standing::kCalling;
    if (peer.session->ended() || peer.matcher.lost()) row.standing = statistics::Standing::kEnded;
  }
}

}  // namespace taco::harp
