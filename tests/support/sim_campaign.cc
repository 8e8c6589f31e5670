#include "support/sim_campaign.h"

#include <algorithm>
#include <memory>

#include "support/campaign_exchanges.h"
#include "support/campaign_faults.h"
#include "support/campaign_invariants.h"
#include "support/sim_cluster.h"
#include "support/sim_pcap.h"

namespace taco::harp {
namespace {

// Virtual. What was open when the faults ended is done well before the limit, also where a peer has
// to be missed for its timeout before.
constexpr Time kFaultsEnd = 3 * kSecond, kLimit = 40 * kSecond;
constexpr Duration kIdle = 3 * kSecond;

class Scenario {
 public:
  Scenario(std::uint64_t seed, const std::string& trace)
      : random_(seed ^ 0x5eed),
        plan_(CampaignPlan::draw(random_)),
        cluster_(plan_.nodes, seed, plan_.network, plan_.nic()),
        invariants_(cluster_),
        exchanges_(random_, cluster_, plan_),
        faults_(random_, cluster_, plan_, exchanges_, invariants_) {
    if (!trace.empty()) pcap_ = std::make_unique<SimPcap>(trace);
    const bool sealed = plan_.security != Security::kNone;
    const bool watched = plan_.draws(Fault::kHostile) || plan_.draws(Fault::kOldHellos) ||
                         plan_.draws(Fault::kLateReplays);
    const bool observed = sealed || watched;
    if (pcap_ != nullptr || observed) {
      cluster_.network().set_tap([this, observed](const SimNetwork::Departure& sent) {
        if (pcap_ != nullptr) pcap_->write(sent);
        if (!observed) return;  // a trace draws no chance, or it would be of another scenario
        invariants_.see(sent);
        faults_.hostile().see(sent);
      });
    }
    for (std::uint32_t i = 0; i < cluster_.size(); ++i) {
      if (random_.chance(0.3)) {
        cluster_[i].set_congestion(random_.chance(0.5) ? &kCubic : &kPacedSwift);
      }
      cluster_[i].set_security(plan_.security, plan_.packets_per_key);
      cluster_[i].set_checksum(plan_.checksum);
      if (plan_.draws(Fault::kClockJump)) cluster_[i].jump_clock(random_.between(0, kHour));
      if (plan_.paths > 1) {
        cluster_[i].set_paths(plan_.paths);
      } else if (random_.chance(0.1)) {
        cluster_[i].set_address(static_cast<std::uint32_t>(random_.below(3)));
      }
    }
  }

  ~Scenario() { cluster_.end(); }
  Scenario(const Scenario&) = delete;
  Scenario& operator=(const Scenario&) = delete;

  ScenarioResult run() {
    const bool finished = cluster_.run(
        kLimit, [&] { return broken() || step(); }, [&] { disturb(); });
    if (!broken()) fail(exchanges_.check());
    if (!finished) fail("did not fall quiet");
    for (std::uint32_t i = 0; i < cluster_.size(); ++i) {
      if (cluster_[i].sim_nic().overflows() > 0) fail("a receive buffer overflowed");
    }
    fail(invariants_.failure());
    collect();
    cluster_.network().set_tap(nullptr);
    return result_;
  }

 private:
  static constexpr Duration kHour = 3600 * kSecond;
  enum class Phase : std::uint8_t { kExchanging, kQuieting, kIdle, kLeaving };

  bool broken() const { return !invariants_.failure().empty(); }

  void disturb() {
    if (cluster_.now() >= kFaultsEnd) faults_.end();
    faults_.step();
    invariants_.step();
  }

  bool quiet() {
    for (std::uint32_t i = 0; i < cluster_.size(); ++i) {
      if (cluster_[i].busy()) return false;
    }
    return true;
  }

  // Exchange, then (in some scenarios) idle for a while, then say goodbye. True when all is over.
  bool step() {
    switch (phase_) {
      case Phase::kExchanging:
        if (!exchanges_.step() || faults_.pending()) return false;
        faults_.speed_up();
        if (!plan_.calm_end) return leave();
        faults_.end();
        phase_ = Phase::kQuieting;
        [[fallthrough]];
      case Phase::kQuieting:
        // Packets that the network has held back for long are answered when they arrive.
        if (!quiet() || cluster_.network().next_arrival() != kNever) return false;
        phase_ = Phase::kIdle;
        idle_until_ = cluster_.now() + kIdle;
        invariants_.begin_idle();
        [[fallthrough]];
      case Phase::kIdle:
        if (cluster_.now() < idle_until_) cluster_.wake_at(idle_until_);
        if (cluster_.now() < idle_until_ || !quiet()) return false;
        invariants_.end_idle();
        check_unmatched();
        return leave();
      case Phase::kLeaving:
        return quiet();
    }
    return true;
  }

  // Whatever was sent has been received: something that is left has come twice.
  void check_unmatched() {
    if (plan_.draws(Fault::kCancel) || plan_.draws(Fault::kRestart)) return;
    StackStats stats;
    for (std::uint32_t i = 0; i < cluster_.size(); ++i) cluster_[i].loop().add_to_st(stats);
    if (stats.unmatched > 0) fail("a message has come twice");
  }

  bool leave() {
    phase_ = Phase::kLeaving;
    faults_.end_deaths();
    for (std::uint32_t i = 0; i < cluster_.size(); ++i) cluster_[i].leave();
    return quiet();
  }

  void fail(const std::string& text) {
    if (result_.failure.empty()) result_.failure = text;
  }

  void collect() {
    const SimCounts& network = result_.network = cluster_.network().counts();
    result_.drawn = plan_.drawn;
    FaultCounts& fired = result_.fired = faults_.fired();
    fired[plan_.draws(Fault::kHeavyLoss) ? Fault::kHeavyLoss : Fault::kLoss] = network.lost;
    fired[Fault::kBursts] = network.bursts;
    fired[Fault::kDuplication] = network.duplicated;
    fired[Fault::kReordering] = network.reordered;
    fired[Fault::kFarReordering] = network.far_reordered;
    fired[Fault::kCorruption] = network.corrupted;
    fired[Fault::kIncast] = plan_.draws(Fault::kIncast) ? 1 : 0;
    fired[Fault::kHostile] = network.forged - fired[Fault::kSpeaks] - fired[Fault::kOldHellos] -
                             fired[Fault::kLateReplays];
    fired[Fault::kOneNetwork] = plan_.draws(Fault::kOneNetwork) ? 1 : 0;
    fired[Fault::kTrusted] = network.trusted;
    fired[Fault::kFullNic] = network.refused;
    fired[Fault::kFullSwitch] = network.port_full;
    fired[Fault::kCancel] = exchanges_.cancelled();
    result_.sealed_none = plan_.security == Security::kNone ? 1 : 0;
    result_.sealed_auth = plan_.security == Security::kAuth ? 1 : 0;
    result_.sealed_all = plan_.security == Security::kEncrypt ? 1 : 0;
    result_.messages = exchanges_.size();
    result_.calm_ends = plan_.calm_end ? 1 : 0;
    result_.peers_lost = invariants_.losses();
    result_.sealed_in_part = invariants_.sealed_in_part();
    result_.session_bytes = invariants_.max_session_bytes();
    result_.idle_session_bytes = invariants_.max_idle_bytes();
    result_.silent_steps = invariants_.max_silent_steps();
    for (std::uint32_t i = 0; i < cluster_.size(); ++i) {
      const ProtocolCounters& counters = cluster_[i].counters();
      result_.retransmits += counters.retransmits;
      result_.probes += counters.probes;
      result_.checksum_failures += counters.checksum_failures;
      result_.duplicates += counters.duplicates;
      result_.forged += counters.forged;
      result_.early += counters.early;
      for (const Session* session : cluster_[i].loop().sessions()) {
        if (session->sealing() != nullptr) result_.key_rotations += session->sealing()->rotations();
      }
      result_.paths_left += counters.paths_left;
      result_.paths_proved += counters.paths_proved;
      result_.paths_moved += counters.paths_moved;
    }
  }

  SimRandom random_;
  const CampaignPlan plan_;
  SimCluster cluster_;
  Invariants invariants_;
  Exchanges exchanges_;
  CampaignFaults faults_;
  std::unique_ptr<SimPcap> pcap_;
  Phase phase_ = Phase::kExchanging;
  Time idle_until_ = 0;
  ScenarioResult result_;
};

}  // namespace

void ScenarioResult::add(const ScenarioResult& other) {
  network.add(other.network);
  drawn.add(other.drawn);
  fired.add(other.fired);
  for (const auto count :
       {&ScenarioResult::retransmits, &ScenarioResult::probes, &ScenarioResult::checksum_failures,
        &ScenarioResult::duplicates, &ScenarioResult::paths_left, &ScenarioResult::paths_proved,
        &ScenarioResult::paths_moved, &ScenarioResult::peers_lost, &ScenarioResult::messages,
        &ScenarioResult::calm_ends, &ScenarioResult::forged, &ScenarioResult::early,
        &ScenarioResult::key_rotations, &ScenarioResult::sealed_none, &ScenarioResult::sealed_auth,
        &ScenarioResult::sealed_all, &ScenarioResult::sealed_in_part}) {
    this->*count += other.*count;
  }
  session_bytes = std::max(session_bytes, other.session_bytes);
  idle_session_bytes = std::max(idle_session_bytes, other.idle_session_bytes);
  silent_steps = std::max(silent_steps, other.silent_steps);
}

ScenarioResult run_scenario(std::uint64_t seed, const std::string& trace) {
  return Scenario(seed, trace).run();
}

}  // namespace taco::harp
