#include "support/campaign_faults.h"

#include <algorithm>
#include <array>
#include <utility>

namespace taco::harp {

CampaignFaults::CampaignFaults(SimRandom& random, SimCluster& cluster, const CampaignPlan& plan,
                               Exchanges& exchanges, Invariants& invariants)
    : random_(random),
      cluster_(cluster),
      plan_(plan),
      exchanges_(exchanges),
      invariants_(invariants),
      hostile_(random, cluster.network(), cluster.size()) {
  if (plan.draws(Fault::kRestart)) death_ = random_.between(100 * kMicrosecond, 10 * kMillisecond);
  if (plan.draws(Fault::kDeathForGood)) death_for_good_ = random_.between(0, 5 * kMillisecond);
  renewing_ = any_node();
  refusing_ = static_cast<std::uint32_t>(random_.below(plan_.paths));
  if (plan.draws(Fault::kFlapping)) {
    flap_.pair = any_pair();
    flap_.address = static_cast<std::uint32_t>(random_.below(plan.paths));
    flap_.period = random_.between(2 * kMillisecond, 800 * kMillisecond);
    flap_.next = random_.between(0, 5 * kMillisecond);
  }
  bool disturbed = plan.network.loss > 0.02;
  for (const Fault fault : {Fault::kBursts, Fault::kStall, Fault::kSlowTurns, Fault::kDeathOneWay,
                            Fault::kRestart, Fault::kClockJump, Fault::kFlapping,
                            Fault::kDeathForGood, Fault::kAddressLost, Fault::kAddressRenewed}) {
    disturbed = disturbed || plan.draws(fault);
  }
  hostile_.allow_resets(!disturbed);
}

std::uint32_t CampaignFaults::any_node() {
  return static_cast<std::uint32_t>(random_.below(cluster_.size()));
}

CampaignFaults::Pair CampaignFaults::any_pair() {
  Pair pair{any_node(), any_node()};
  while (pair.to == pair.from) pair.to = any_node();
  return pair;
}

void CampaignFaults::step() {
  if (cluster_.now() >= death_ || pending()) restart();
  admit_and_return();
  if (cluster_.now() >= slow_until_) speed_up();
  if (over_) return;
  stall();
  if (random_.chance(plan_.slow_turns)) slow_down();
  if (random_.chance(plan_.death)) kill_link();
  if (cluster_.now() >= death_for_good_) kill_path_for_good();
  if (cluster_.now() >= flap_.next) flap();
  if (random_.chance(plan_.move)) move_path();
  if (random_.chance(plan_.mtu_change)) change_mtu();
  if (random_.chance(plan_.path_mtu_change)) change_mtu_of_path();
  if (random_.chance(plan_.refusal)) refuse_path();
  if (random_.chance(plan_.address_loss)) lose_address();
  if (random_.chance(plan_.renewal)) renew_address();
  if (random_.chance(plan_.speech)) fired_[Fault::kSpeaks] += hostile_.speak() ? 1 : 0;
  if (random_.chance(plan_.old_hello)) {
    fired_[Fault::kOldHellos] += hostile_.repeat_hello() ? 1 : 0;
  }
  if (random_.chance(plan_.late_replay)) {
    fired_[Fault::kLateReplays] += hostile_.repeat_late() ? 1 : 0;
  }
  if (random_.chance(plan_.clock_jump)) jump_clock();
  if (random_.chance(plan_.hostile)) {
    for (std::uint64_t i = random_.below(4) + 1; i > 0; --i) hostile_.attack();
  }
}

void CampaignFaults::end() {
  over_ = true;
  end_deaths();
  SimFaults& network = cluster_.network().faults();
  network.loss = network.burst = network.duplication = network.reordering = network.corruption = 0;
  network.jitter = 0;
}

void CampaignFaults::stall() {
  if (plan_.stall == 0) return;
  for (std::uint32_t i = 0; i < cluster_.size(); ++i) {
    if (!random_.chance(plan_.stall) || cluster_[i].is_dead()) continue;
    const bool is_long = plan_.draws(Fault::kLongStall) && random_.chance(0.01);
    ++fired_[is_long ? Fault::kLongStall : Fault::kStall];
    cluster_[i].stall_until(cluster_.now() +
                            (is_long ? random_.between(500 * kMillisecond, 1500 * kMillisecond)
                                     : random_.between(kMillisecond, 100 * kMillisecond)));
  }
}

// One engine at a time has work of its own in every turn, and never sleeps: for a while, or for
// good.
void CampaignFaults::slow_down() {
  const std::uint32_t node = any_node();
  if (slow_node_ != kNobody || cluster_[node].is_dead()) return;
  ++fired_[Fault::kSlowTurns];
  slow_node_ = node;
  const bool for_good = random_.chance(0.3);
  const Duration least = for_good ? 8 * kMillisecond : 500 * kMicrosecond;
  cluster_[node].set_turn_time(random_.between(least, 20 * kMillisecond));
  if (for_good) return;
  slow_until_ = cluster_.now() + random_.between(20 * kMillisecond, 500 * kMillisecond);
  cluster_.wake_at(slow_until_);
}

void CampaignFaults::speed_up() {
  slow_until_ = kNever;
  const std::uint32_t node = std::exchange(slow_node_, kNobody);
  if (node != kNobody) cluster_[node].set_turn_time(0);
}

// All ways between two hosts, or one, which then takes its time to come back.
void CampaignFaults::kill_link() {
  const auto [from, to] = any_pair();
  const bool one = plan_.addresses() > 1 && random_.chance(0.7);
  const bool both = random_.chance(0.5);
  const auto address =
      one ? static_cast<std::uint32_t>(random_.below(plan_.paths)) : SimNetwork::kEvery;
  const Time until =
      cluster_.now() + random_.between(kMillisecond, (one ? 2'000 : 200) * kMillisecond);
  ++fired_[both ? Fault::kDeathBothWays : Fault::kDeathOneWay];
  cluster_.network().kill_link(from, to, until, address);
  if (both) cluster_.network().kill_link(to, from, until, address);
}

// One that is not the handshake's, once there are others to go on by.
void CampaignFaults::kill_path_for_good() {
  const auto [from, to] = any_pair();
  if (cluster_[from].is_dead() || cluster_[to].is_dead()) return;
  const Session* const session = cluster_[from].session(to);
  if (session == nullptr || session->paths().live() < 2) return;
  death_for_good_ = kNever;
  ++fired_[Fault::kDeathForGood];
  const auto address = 1 + static_cast<std::uint32_t>(random_.below(plan_.paths - 1));
  cluster_.network().kill_link(from, to, kNever, address);
  if (random_.chance(0.5)) cluster_.network().kill_link(to, from, kNever, address);
}

void CampaignFaults::flap() {
  ++fired_[Fault::kFlapping];
  const Time up = cluster_.now() + flap_.period / 2;
  cluster_.network().kill_link(flap_.pair.from, flap_.pair.to, up, flap_.address);
  cluster_.network().kill_link(flap_.pair.to, flap_.pair.from, up, flap_.address);
  flap_.next = cluster_.now() + flap_.period;
}

// As if it had been found to be slow; or faster where it was before.
void CampaignFaults::move_path() {
  const auto [from, to] = any_pair();
  if (cluster_[from].is_dead() || cluster_[to].is_dead()) return;
  Session* const session = cluster_[from].session(to);
  if (session == nullptr || session->ended()) return;
  const wire::PathId id{static_cast<std::uint8_t>(random_.below(plan_.paths))};
  fired_[Fault::kMove] += session->move_path({id, random_.chance(0.3)}) ? 1 : 0;
}

void CampaignFaults::change_mtu() {
  constexpr std::array<std::size_t, 6> kSizes = {8972, 4060, 1472, 1400, 1232, 1200};
  ++fired_[Fault::kMtuChange];
  const auto [from, to] = any_pair();
  cluster_.network().set_mtu(from, to, kSizes[random_.below(kSizes.size())]);
}

void CampaignFaults::change_mtu_of_path() {
  constexpr std::array<std::size_t, 4> kSizes = {8972, 1472, 1400, 1232};
  ++fired_[Fault::kMtuOfPath];
  const auto [from, to] = any_pair();
  const auto address = static_cast<std::uint32_t>(random_.below(plan_.paths));
  cluster_.network().set_mtu(from, to, kSizes[random_.below(kSizes.size())], address);
}

// Always the same path: the others may have to do while it is still left.
void CampaignFaults::refuse_path() {
  if (!refused_.empty()) return;
  ++fired_[Fault::kRefused];
  const Outage outage{any_node(), refusing_,
                      cluster_.now() + random_.between(kMillisecond, kSecond)};
  cluster_.network().refuse_at(outage.node, outage.address);
  refused_.push_back(outage);
  cluster_.wake_at(outage.until);
}

void CampaignFaults::lose_address() {
  const std::uint32_t node = any_node();
  if (cluster_[node].is_dead()) return;
  SimNic& nic = cluster_[node].sim_nic();
  const auto used = std::max(plan_.paths, 3u);  // those without several have one of the first three
  const std::uint32_t address = nic.now_at(static_cast<std::uint32_t>(random_.below(used)));
  if ((nic.missing_st() >> address & 1) != 0) return;
  ++fired_[Fault::kAddressLost];
  nic.set_missing(nic.missing_st() | 1u << address);
  const bool briefly = plan_.paths == 1 || random_.chance(0.5);
  const Duration longest = (briefly ? 200 : 2'000) * kMillisecond;
  lost_.push_back({node, address, cluster_.now() + random_.between(kMillisecond, longest)});
  cluster_.wake_at(lost_.back().until);
}

// By everybody: whoever waits for its first answer knows of no other address.
bool CampaignFaults::is_established(std::uint32_t node) {
  const auto stands = [&](std::uint32_t from, std::uint32_t to) {
    const Session* const session = cluster_[from].session(to);
    return session != nullptr && session->established() && !session->ended();
  };
  for (std::uint32_t other = 0; other < cluster_.size(); ++other) {
    if (other == node) continue;
    if (cluster_[other].is_dead() || !stands(node, other) || !stands(other, node)) return false;
  }
  return true;
}

void CampaignFaults::renew_address() {
  if (cluster_[renewing_].is_dead() || renewals_ == kMaxRenewals || !is_established(renewing_))
    return;
  SimNic& nic = cluster_[renewing_].sim_nic();
  const auto used = std::max(plan_.paths, 3u);
  const std::uint32_t address = nic.now_at(static_cast<std::uint32_t>(random_.below(used)));
  ++renewals_;
  ++fired_[Fault::kAddressRenewed];
  std::erase_if(lost_, [&](const Outage& outage) {
    return outage.node == renewing_ && outage.address == address;
  });
  nic.renumber(address);
}

void CampaignFaults::admit_and_return() {
  const auto is_over = [&](const Outage& outage) {
    return over_ || outage.until <= cluster_.now();
  };
  for (const Outage& outage : refused_) {
    if (is_over(outage)) cluster_.network().admit_at(outage.node, outage.address);
  }
  std::erase_if(refused_, is_over);
  for (const Outage& outage : lost_) {
    if (!is_over(outage) || cluster_[outage.node].is_dead()) continue;
    SimNic& nic = cluster_[outage.node].sim_nic();
    nic.set_missing(nic.missing_st() & ~(1u << outage.address));
  }
  std::erase_if(lost_, is_over);
}

// As after the machine was suspended: the process did nothing, and the network went on.
void CampaignFaults::jump_clock() {
  const std::uint32_t node = any_node();
  if (cluster_[node].is_dead() || !cluster_[node].has_started()) return;
  ++fired_[Fault::kClockJump];
  const bool far = random_.chance(0.1);
  cluster_[node].jump_clock(far ? random_.between(kSecond, 20 * kSecond)
                                : random_.between(kMillisecond, 200 * kMillisecond));
}

void CampaignFaults::restart() {
  if (!pending()) {
    death_ = kNever;
    dead_node_ = any_node();
    ++fired_[Fault::kRestart];
    exchanges_.on_death(dead_node_);
    invariants_.on_death(dead_node_);
    cluster_[dead_node_].die();
    rebirth_ = cluster_.now() + (random_.chance(0.3) ? 0 : random_.between(0, 50 * kMillisecond));
    cluster_.wake_at(rebirth_);
  }
  if (cluster_.now() < rebirth_) {
    cluster_.wake_at(rebirth_);
    return;
  }
  SimProcess& successor = cluster_.restart(dead_node_, random_.next());
  successor.set_security(plan_.security, plan_.packets_per_key);
  successor.set_checksum(plan_.checksum);
  std::erase_if(lost_, [&](const Outage& outage) { return outage.node == dead_node_; });
  if (plan_.paths > 1) successor.set_paths(plan_.paths);
  invariants_.on_restart(dead_node_);
  dead_node_ = kNobody;
}

}  // namespace taco::harp
