#include "support/campaign_invariants.h"

namespace taco::harp {
namespace {

// A session holds copies of small messages, within windows, and pieces, within limits.
constexpr std::size_t kMaxSessionBytes = 4 << 20;
constexpr std::size_t kIdleSessionBytes = 4096, kIdlePathBytes = 1024, kKeyBytes = 4096;
constexpr Duration kRecent = 2 * kSecond;
// Steps of the simulation in a row in which nobody sends and nothing arrives.
constexpr std::uint64_t kMaxSilentSteps = 2000;
// Turns of a process that has nothing to do, for each other process: ticks, what a path that comes
// back has to try, and challenges by paths that are dead. Who asks whether a peer is still there
// asks by each path.
constexpr double kIdleTurns = 300, kIdleTurnsAPath = 40, kIdleTurnsASecond = 60;

std::string pair_text(std::uint32_t node, std::uint32_t other) {
  return "process " + std::to_string(node) + " and " + std::to_string(other) + ": ";
}

bool are_in_touch(const Session* a, const Session* b) {
  return a != nullptr && b != nullptr && a->established() && b->established() && !a->ended() &&
         !b->ended() && a->peer_connection_id() == b->connection_id() &&
         b->peer_connection_id() == a->connection_id();
}

}  // namespace

Invariants::Invariants(SimCluster& cluster) : cluster_(cluster) {
  witnesses_.resize(cluster.size());
  for (std::uint32_t node = 0; node < cluster.size(); ++node) watch(node);
}

Invariants::~Invariants() {
  for (std::uint32_t node = 0; node < cluster_.size(); ++node) {
    cluster_[node].loop().services().set(Service::kCollectives, nullptr);
  }
}

void Invariants::watch(std::uint32_t node) {
  witnesses_[node] = std::make_unique<Witness>(*this, node);
  cluster_[node].loop().services().set(Service::kCollectives, witnesses_[node].get());
}

void Invariants::on_death(std::uint32_t node) {
  for (std::uint32_t i = 0; i < cluster_.size(); ++i) {
    if (i != node) mourners_.insert({i, cluster_[i].id_of(node)});
  }
  cluster_[node].loop().services().set(Service::kCollectives, nullptr);
}

void Invariants::on_restart(std::uint32_t node) { watch(node); }

void Invariants::on_lost(std::uint32_t node, PeerId peer, const Status& why) {
  if (mourners_.count({node, peer}) > 0) {
    ++losses_;
    return;
  }
  fail("process " + std::to_string(node) + " lost a peer that lives: " + why.message());
}

// Where no host is, nobody can have proved to be: its hellos bring it no more than they had.
void Invariants::see(const SimNetwork::Departure& sent) {
  const bool forged = sent.fate == "forged";
  // One that the Nic has refused leaves in part, and then again.
  const bool hello = wire::is_hello(sent.bytes) && sent.fate != "in part";
  if (forged && sent.from.node == cluster_.size()) from_nowhere_ += sent.bytes.size();
  if (!forged && hello && sent.to.node == cluster_.size()) to_nowhere_ += sent.bytes.size();
  if (to_nowhere_ > from_nowhere_) fail("more hellos are sent to a stranger than came from there");
  if (!nonces_.add(sent)) fail("two packets are sealed under one nonce");
}

void Invariants::step() {
  const auto node = static_cast<std::uint32_t>(steps_++ % cluster_.size());
  check_pace();
  if (cluster_[node].is_dead()) return;
  check_pool(node);
  check_open(node);
  for (std::uint32_t other = 0; other < cluster_.size(); ++other) {
    if (other == node || cluster_[other].is_dead()) continue;
    check_credit(node, other);
  }
}

// Nobody has received more than was sent, nor believes that it may send more than was granted.
void Invariants::check_credit(std::uint32_t node, std::uint32_t other) {
  const Session* const from = cluster_[node].session(other);
  const Session* const to = cluster_[other].session(node);
  if (!are_in_touch(from, to) || to->grants().is_closed()) return;
  if (to->grants().received() > from->granted().used()) {
    fail(pair_text(node, other) + std::to_string(to->grants().received()) +
         " packets were received, " + std::to_string(from->granted().used()) + " sent");
  }
  if (from->granted().limit() > to->grants().promised()) {
    fail(pair_text(node, other) + "it may send up to " + std::to_string(from->granted().limit()) +
         ", granted are " + std::to_string(to->grants().promised()));
  }
  const std::size_t bytes = from->memory_bytes();
  max_session_bytes_ = std::max(max_session_bytes_, bytes);
  if (bytes > kMaxSessionBytes) {
    fail(pair_text(node, other) + "a session of " + std::to_string(bytes) + " bytes");
  }
}

void Invariants::check_pool(std::uint32_t node) {
  const CreditPool& pool = cluster_[node].credit();
  if (pool.outstanding() > pool.most()) {
    fail("process " + std::to_string(node) + " has granted " + std::to_string(pool.outstanding()) +
         " bytes and has " + std::to_string(pool.capacity()));
  }
}

// The engine knows without looking at each peer whether there is anything to do. Of a process that
// has died it has more peers than those here.
void Invariants::check_open(std::uint32_t node) {
  bool open = false, busy = false;
  for (std::uint32_t other = 0; other < cluster_.size(); ++other) {
    if (other == node) continue;
    const Peer& peer = cluster_[node].peer(other);
    open |= peer.matcher.expecting();
    busy |= peer.link != nullptr && !peer.matcher.lost() && peer.link->busy();
  }
  EngineLoop& loop = cluster_[node].loop();
  const bool all = mourners_.empty();
  const auto is_wrong = [all](bool said, bool is) { return is ? !said : said && all; };
  if (is_wrong(loop.has_open_requests_st(), open) || is_wrong(loop.any_link_busy_st(), busy)) {
    fail("process " + std::to_string(node) + " is wrong about what it has to do");
  }
}

void Invariants::check_pace() {
  const SimCounts& counts = cluster_.network().counts();
  const std::uint64_t packets = counts.sent + counts.delivered;
  silent_steps_ = packets == packets_ ? silent_steps_ + 1 : 0;
  packets_ = packets;
  max_silent_steps_ = std::max(max_silent_steps_, silent_steps_);
  if (silent_steps_ > kMaxSilentSteps) fail("timers run, and nothing is sent");
}

void Invariants::begin_idle() {
  idle_since_ = cluster_.now();
  turns_before_.clear();
  for (std::uint32_t node = 0; node < cluster_.size(); ++node) {
    turns_before_.push_back(cluster_[node].turns());
  }
}

void Invariants::end_idle() {
  const double seconds = static_cast<double>(cluster_.now() - idle_since_) / kSecond;
  for (std::uint32_t node = 0; node < cluster_.size(); ++node) {
    double most = 0;
    for (std::uint32_t other = 0; other < cluster_.size(); ++other) {
      if (other == node) continue;
      const Session* const session = cluster_[node].session(other);
      const std::size_t paths = session != nullptr ? session->paths().count() : 1;
      most += kIdleTurns + kIdleTurnsAPath * static_cast<double>(paths - 1) +
              kIdleTurnsASecond * seconds;
    }
    const std::uint64_t turns = cluster_[node].turns() - turns_before_[node];
    if (static_cast<double>(turns) > most) {
      fail("process " + std::to_string(node) + " took " + std::to_string(turns) + " turns in " +
           std::to_string(seconds) + " s in which nobody wanted anything");
    }
    for (std::uint32_t other = 0; other < cluster_.size(); ++other) {
      if (other == node) continue;
      check_credit_used_up(node, other);
      check_idle_memory(node, other);
    }
  }
}

// All that was sent has arrived, or the receiver knows that it never will; but for what has only
// just left.
void Invariants::check_credit_used_up(std::uint32_t node, std::uint32_t other) {
  const Session* const from = cluster_[node].session(other);
  const Session* const to = cluster_[other].session(node);
  if (!are_in_touch(from, to) || to->grants().is_closed()) return;
  std::uint64_t flying = 0;
  for (const auto& path : from->paths()) flying += path->in_flight();
  const std::uint64_t used = from->granted().used(), received = to->grants().received();
  if (used > received + flying) {
    fail(pair_text(node, other) + std::to_string(used) + " packets have used up credit, " +
         std::to_string(received) + " are accounted for and " + std::to_string(flying) +
         " under way");
  }
}

void Invariants::check_idle_memory(std::uint32_t node, std::uint32_t other) {
  const Session* const session = cluster_[node].session(other);
  if (session == nullptr || session->ended() || !session->established()) return;
  // A path that has only just come back remembers for a while what was lost on it.
  const Time now = cluster_[node].loop().now();
  for (const auto& path : session->paths()) {
    if (now - path->last_news() < kRecent || path->in_flight() > 0) return;
  }
  const std::size_t bytes = session->memory_bytes();
  const std::size_t paths = session->paths().count(), live = session->paths().live();
  const std::size_t most =
      kIdleSessionBytes + kIdlePathBytes * paths + (session->sealing() != nullptr ? kKeyBytes : 0);
  max_idle_bytes_ = std::max(max_idle_bytes_, bytes);
  if (bytes > most) {
    fail(pair_text(node, other) + "an idle session of " + std::to_string(bytes) + " bytes and " +
         std::to_string(paths) + " paths, " + std::to_string(live) + " live, which hold " +
         std::to_string(session->paths().memory_bytes()));
  }
}

}  // namespace taco::harp
