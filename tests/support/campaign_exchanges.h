// The messages of one campaign scenario: posted, cancelled, completed, and every byte checked. Test
// support.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "support/campaign_plan.h"
#include "support/sim_cluster.h"

namespace taco::harp {

class Exchanges {
 public:
  // All referred to outlive it.
  Exchanges(SimRandom& random, SimCluster& cluster, const CampaignPlan& plan);

  // Posts and cancels what is due. True when every exchange is done.
  bool step();
  // Before the process of that node dies, and whatever it has open with it.
  void on_death(std::uint32_t node);
  // Why something that must hold does not; empty: all is well.
  std::string check() const;

  std::size_t size() const { return exchanges_.size(); }
  std::uint64_t cancelled() const { return cancelled_; }

 private:
  // One end of an exchange.
  struct End {
    Time at = 0, cancel_at = kNever;
    bool posted = false;
    bool gone = false;  // its process has died; or the other's, before this one posted
    int completions = 0;
    Code code = Code::kOk;
    bool done() const { return gone || completions > 0; }
  };
  struct Exchange {
    std::uint32_t from = 0, to = 0;
    std::vector<std::byte> source, target, expected;
    SendRequest send;
    RecvRequest recv;
    End sending, receiving;
    bool cancelled = false;
    bool doomed = false;  // the process at one end died before both were done
    bool done() const { return sending.done() && receiving.done(); }
  };

  static void on_send(SendRequest& request, const Status& status);
  static void on_recv(RecvRequest& request, const Status& status);
  void add(std::uint64_t tag, std::size_t bytes);
  std::size_t choose_size();
  void choose_ends(Exchange& exchange);
  void post_due(Exchange& exchange, Time now);
  void cancel_due(Exchange& exchange, Time now);
  static std::string check(const Exchange& exchange);

  SimRandom& random_;
  SimCluster& cluster_;
  const CampaignPlan& plan_;
  std::deque<Exchange> exchanges_;
  std::uint64_t cancelled_ = 0;
};

}  // namespace taco::harp
