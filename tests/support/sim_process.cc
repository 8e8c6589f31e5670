#include "support/sim_process.h"

#include <algorithm>
#include <string>
#include <utility>

namespace taco::harp {
namespace {

LoopOptions options_of(SimRandom& random) {
  LoopOptions options;
  options.own.incarnation = random.next();
  for (std::byte& byte : options.own.secret) byte = static_cast<std::byte>(random.next());
  options.random = [&random] { return random.next(); };
  return options;
}

}  // namespace

SimProcess::SimProcess(SimNetwork& network, std::uint64_t seed, const SimNicOptions& nic)
    : network_(network),
      nic_(network, nic),
      random_(seed),
      options_(options_of(random_)),
      loop_(options_, token_, nic_, nullptr, peers_) {
  options_.routes = [this] { return [this](const Endpoint& to) { return nic_.routes_to(to); }; };
  token_.try_acquire();
}

void SimProcess::know(const std::vector<std::unique_ptr<SimProcess>>& cluster) {
  others_.resize(cluster.size());
  for (std::uint32_t node = 0; node < cluster.size(); ++node) {
    others_[node].identity = cluster[node]->options_.own;
    others_[node].nic = &cluster[node]->nic_;
    if (cluster[node].get() != this) add_peer(node);
  }
}

void SimProcess::add_peer(std::uint32_t node) {
  PeerPlan plan;
  plan.address.incarnation = others_[node].identity.incarnation;
  plan.address.secret = others_[node].identity.secret;
  plan.address.pid = node;
  plan.address.host_name = "node " + std::to_string(node);
  for (std::uint32_t i = 0; i < paths_; ++i) {
    const std::uint32_t address = address_ + i;
    const SimNic& nic = *others_[node].nic;
    const NicAddress& there = nic.addresses()[nic.now_at(address)];
    const auto mtu = static_cast<std::uint32_t>(there.max_datagram) + 28;  // IP and UDP
    plan.routes.push_back({nic_.now_at(address), {.endpoint = there.endpoint, .mtu = mtu}});
    plan.address.paths.push_back(plan.routes.back().remote);
  }
  const auto added = peers_.add(
      plan.address.incarnation, [&]() -> Result<PeerPlan> { return plan; },
      [&](PeerId id, PeerPlan made) {
        return std::make_unique<Peer>(id, std::move(made), loop_.matching());
      });
  others_[node].id = added.value()->id;
}

Matcher& SimProcess::matcher(std::uint32_t node) {
  loop_.open_link_st(peer(node));
  return peer(node).matcher;
}

void SimProcess::drop(std::uint32_t node) {
  peers_.release(others_[node].id);
  loop_.end_peer_st(peer(node));
  add_peer(node);
}

void SimProcess::replace_peer(std::uint32_t node, const SimProcess& successor) {
  peers_.release(others_[node].id);
  loop_.take_released_st();
  others_[node].identity = successor.options_.own;
  others_[node].nic = &successor.nic_;
  add_peer(node);
}

void SimProcess::die() {
  dead_ = true;
  nic_.close_st();
  stall_until(kNever);
}

void SimProcess::jump_clock(Duration by) {
  clock_ahead_ += by;
  if (!started_) loop_.set_now(clock_ahead_);
}

void SimProcess::set_address(std::uint32_t address) {
  address_ = address;
  add_peers_anew();
}

void SimProcess::set_paths(std::uint32_t paths) {
  paths_ = paths;
  add_peers_anew();
}

void SimProcess::add_peers_anew() {
  for (std::uint32_t node = 0; node < others_.size(); ++node) {
    if (node != nic_.node()) drop(node);
  }
}

void SimProcess::turn(Time now) {
  if (now < std::max(stalled_until_, works_until_)) return;
  if (next_event() <= now) ++turns_;
  started_ = true;
  loop_.begin_turn_st(now + clock_ahead_, std::exchange(worked_, turn_time_));
  loop_.transmit_eager_st();
  awake_ = loop_.turn_st() || !loop_.may_sleep_st() || turn_time_ > 0;
  if (turn_time_ > 0) works_until_ = now + turn_time_;
  if (!awake_) loop_.expect_turn_st(loop_.next_deadline_st());
}

Time SimProcess::next_event() const {
  Time next = loop_.next_deadline_st();
  if (next != kNever) next = std::max<Time>(next - clock_ahead_, 0);
  if (loop_.has_ready()) next = std::min(next, nic_.room_at());
  if (awake_ || nic_.has_arrivals() || !loop_.may_sleep_st()) next = 0;
  return std::max({next, stalled_until_, works_until_});
}

std::size_t SimProcess::bytes_kept() {
  return loop_.matching().buffers.bytes_kept() + loop_.buffers().bytes_kept() + loop_.bytes_kept();
}

}  // namespace taco::harp
