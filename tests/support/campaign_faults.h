// The faults of a campaign scenario that come and go while it runs. Test support.
#pragma once

#include <cstdint>
#include <vector>

#include "support/campaign_exchanges.h"
#include "support/campaign_hostile.h"
#include "support/campaign_invariants.h"
#include "support/campaign_plan.h"
#include "support/sim_cluster.h"

namespace taco::harp {

class CampaignFaults {
 public:
  // All referred to outlive it.
  CampaignFaults(SimRandom& random, SimCluster& cluster, const CampaignPlan& plan,
                 Exchanges& exchanges, Invariants& invariants);

  // Before every step of the simulation.
  void step();
  // No more of them, but for a path that has died for good.
  void end();
  // Nobody dies any more, nor changes its address: who has said goodbye is not asked to follow.
  void end_deaths() {
    death_ = kNever;
    renewals_ = kMaxRenewals;
  }
  // All is said and done: whose turns were slow is as fast as any.
  void speed_up();
  // A process is dead, and its successor has yet to come.
  bool pending() const { return dead_node_ != kNobody; }
  // Counts of faults that the scenario set going; the network counts the others.
  const FaultCounts& fired() const { return fired_; }
  Hostile& hostile() { return hostile_; }

 private:
  static constexpr std::uint32_t kNobody = UINT32_MAX;
  static constexpr std::uint32_t kMaxRenewals = 5;
  struct Pair {
    std::uint32_t from = 0, to = 0;
  };
  std::uint32_t any_node();
  Pair any_pair();
  void stall();
  void slow_down();
  void kill_link();
  void kill_path_for_good();
  void flap();
  void move_path();
  void change_mtu();
  void change_mtu_of_path();
  void refuse_path();
  void lose_address();
  bool is_established(std::uint32_t node);
  void renew_address();
  void admit_and_return();
  void jump_clock();
  void restart();

  SimRandom& random_;
  SimCluster& cluster_;
  const CampaignPlan& plan_;
  Exchanges& exchanges_;
  Invariants& invariants_;
  Hostile hostile_;
  FaultCounts fired_;
  bool over_ = false;
  Time death_for_good_ = kNever, death_ = kNever;
  std::uint32_t dead_node_ = kNobody;
  Time rebirth_ = kNever;
  std::uint32_t slow_node_ = kNobody;  // and until when
  Time slow_until_ = kNever;           // kNever: to the end
  std::uint32_t renewing_ = 0;         // the only node that does: not both ends at once
  std::uint32_t renewals_ = 0;
  std::uint32_t refusing_ = 0;  // the address
  // Addresses (bit i: the i-th) that are lost, or refused, until then.
  struct Outage {
    std::uint32_t node = 0, address = 0;
    Time until = kNever;
  };
  std::vector<Outage> lost_, refused_;
  struct {
    Pair pair;
    std::uint32_t address = 0;
    Duration period = 0;
    Time next = kNever;
  } flap_;
};

}  // namespace taco::harp
