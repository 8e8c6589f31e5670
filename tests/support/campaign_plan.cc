#include "support/campaign_plan.h"

#include <algorithm>

namespace taco::harp {
namespace {

// `chance` of a fault; notes that it was drawn.
class Draw {
 public:
  Draw(SimRandom& random, CampaignPlan& plan) : random_(random), plan_(plan) {}
  bool operator()(Fault fault, double chance) {
    const bool drawn = random_.chance(chance);
    plan_.drawn[fault] = drawn ? 1 : 0;
    return drawn;
  }

 private:
  SimRandom& random_;
  CampaignPlan& plan_;
};

void draw_network(SimRandom& random, CampaignPlan& plan, Draw& draw) {
  SimFaults& faults = plan.network;
  if (draw(Fault::kLoss, 0.6)) {
    const bool heavy = draw(Fault::kHeavyLoss, 0.2);
    faults.loss = heavy ? 0.01 * static_cast<double>(10 + random.below(21))
                        : 0.001 * static_cast<double>(1 + random.below(80));
  }
  if (draw(Fault::kBursts, 0.3)) {
    faults.burst = 0.002;
    faults.longest_burst = 4 << random.below(6);
  }
  if (draw(Fault::kDuplication, 0.5)) faults.duplication = 0.05;
  if (draw(Fault::kReordering, 0.4)) faults.reordering = 0.05;
  if (draw(Fault::kCorruption, 0.5)) faults.corruption = 0.02;
  if (random.chance(0.3)) faults.jitter = 200 * kMicrosecond;
  faults.latency = random.between(5 * kMicrosecond, kMillisecond);
  faults.bytes_per_second = random.chance(0.3) ? 1.25e8 : 2.5e9;
  faults.longest_queue = random.between(20 * kMicrosecond, kMillisecond);
  faults.receive_buffer = 96 * 1024 + random.below(256 * 1024);
  faults.gso = random.chance(0.8);
  faults.gro = random.chance(0.8);
  faults.asynchronous_return = random.chance(0.2);
  if (random.chance(0.2)) {
    faults.max_datagram = 8972;
    faults.receive_buffer += 2 << 20;
  }
  if (draw(Fault::kFullSwitch, 0.3)) {
    faults.port_bytes_per_second = faults.bytes_per_second;
    faults.port_queue = 16 * 1024 + random.below(64 * 1024);
  }
  // One packet in a hundred waits for longer than a thousand others take.
  if (draw(Fault::kFarReordering, 0.03)) {
    faults.reordering = 0.01;
    faults.reorder_delay = 60 * kMillisecond;
    faults.bytes_per_second = 2.5e9;
    faults.receive_buffer += 8 << 20;
  }
  // So small a queue before a slow cable that somebody finds it full.
  plan.drawn[Fault::kFullNic] = faults.bytes_per_second < 1e9 ? 1 : 0;
}

// Draws paths and addresses, after all else that the seed draws.
void draw_paths(CampaignPlan& plan, Draw& draw) {
  if (plan.addresses() > 1 && draw(Fault::kMtuOfPath, 0.2)) plan.path_mtu_change = 0.01;
  // Who is refused by the one path that is left, because others have died, is right to think that
  // the peer has ended.
  bool others_live = plan.addresses() > 1 && plan.network.loss < 0.02;
  for (const Fault fault :
       {Fault::kBursts, Fault::kStall, Fault::kSlowTurns, Fault::kDeathOneWay, Fault::kRestart,
        Fault::kClockJump, Fault::kFlapping, Fault::kDeathForGood}) {
    others_live = others_live && !plan.draws(fault);
  }
  if (others_live && draw(Fault::kRefused, 1)) {
    plan.refusal = 0.005;
  } else if (!plan.draws(Fault::kMove)) {
    if (draw(Fault::kAddressLost, 0.2)) plan.address_loss = 0.002;
    if (draw(Fault::kAddressRenewed, 0.2)) plan.renewal = 0.002;
  }
  if (plan.security != Security::kEncrypt && draw(Fault::kTrusted, 0.3)) {
    plan.checksum = wire::Checksum::kKernel;
    plan.network.udp_checksums = true;
  }
  if (plan.security != Security::kNone && draw(Fault::kSpeaks, 0.2)) plan.speech = 0.02;
  if (draw(Fault::kOldHellos, 0.15)) plan.old_hello = 0.02;
  if (draw(Fault::kLateReplays, 0.15)) plan.late_replay = 0.02;
}

}  // namespace

const char* name_of(Fault fault) {
  static constexpr std::array<const char*, kFaults> kNames = {
      "loss",
      "loss of 10-30%",
      "bursts of loss",
      "duplication",
      "reordering",
      "reordering by 1,000 or more",
      "corruption",
      "change of a link's MTU",
      "change of one path's MTU",
      "path death, one way",
      "path death, both ways",
      "path death for good",
      "flapping path",
      "path moved to other ports",
      "path refused by a firewall",
      "address lost for a while",
      "address renewed with another",
      "restart of a process",
      "clock jump",
      "engine stall",
      "engine stall of 0.5-1.5 s",
      "incast",
      "hostile packets",
      "cable's queue full",
      "switch's queue full",
      "cancelled exchange",
      "corruption, payload trusted",
      "hostile, right connection",
      "old hellos repeated",
      "packets repeated late",
      "slow turns of an engine",
      "one network for all addresses",
  };
  return kNames[static_cast<std::size_t>(fault)];
}

CampaignPlan CampaignPlan::draw(SimRandom& random) {
  CampaignPlan plan;
  Draw draw(random, plan);
  plan.nodes = 2 + static_cast<std::uint32_t>(random.below(4));
  if (random.chance(0.4)) plan.paths = 2 + static_cast<std::uint32_t>(random.below(3));
  draw_network(random, plan, draw);
  if (draw(Fault::kStall, 0.5)) {
    plan.stall = 0.01;
    draw(Fault::kLongStall, 0.2);
  }
  if (random.chance(0.4)) {
    plan.death = 0.002;
    plan.drawn[Fault::kDeathOneWay] = plan.drawn[Fault::kDeathBothWays] = 1;
  }
  if (plan.paths > 1 && draw(Fault::kMove, 0.3)) {
    plan.move = 0.02;
  } else if (plan.paths > 1) {
    draw(Fault::kDeathForGood, 0.2);
    draw(Fault::kFlapping, 0.2);
  }
  if (draw(Fault::kMtuChange, 0.3)) plan.mtu_change = 0.01;
  if (draw(Fault::kClockJump, 0.15)) plan.clock_jump = 0.001;
  draw(Fault::kRestart, 0.15);
  if (draw(Fault::kIncast, 0.15)) plan.nodes = std::max(plan.nodes, 4u);
  if (draw(Fault::kHostile, 0.25)) plan.hostile = 0.02;
  if (draw(Fault::kCancel, 0.3)) plan.cancel = 0.1;
  plan.security = static_cast<Security>(random.below(3));
  if (random.chance(0.5)) plan.packets_per_key = 20 + random.below(200);
  if (draw(Fault::kSlowTurns, 0.15)) plan.slow_turns = 0.003;
  draw_paths(plan, draw);
  // Its chance is its own: nothing else that is drawn depends on it.
  SimRandom beside = random;
  Draw draw_beside(beside, plan);
  if (plan.addresses() > 1 && draw_beside(Fault::kOneNetwork, 0.3)) plan.network.rails = false;
  plan.calm_end = random.chance(plan.draws(Fault::kDeathForGood) ? 0.8 : 0.4);
  return plan;
}

SimNicOptions CampaignPlan::nic() const {
  if (!draws(Fault::kMove)) return {};
  return {.max_datagrams = {network.max_datagram}, .ports = 2 * paths};
}

}  // namespace taco::harp
