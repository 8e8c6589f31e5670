// The Stack's one implementation: what the process publishes about itself, the peers it was told
// of, and its engine.
//
// Any thread, but for what stack.h says otherwise.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "harp/engine/engine_core.h"
#include "harp/engine/peer.h"
#include "harp/engine/stack.h"
#include "harp/network.h"

namespace taco::harp {

class StackCore final : public Stack {
 public:
  // `number`: see stack.cc.
  static Result<std::shared_ptr<Stack>> create(const StackOptions& options, int number = 0);
  ~StackCore() override;

  std::string address() const override;
  Result<PeerId> add_peer(std::string_view address) override;
  void release_peer(PeerId peer) override;
  bool is_local(PeerId peer) const override;
  std::string host_of(PeerId peer) const override;
  std::string describe(PeerId peer) const override;
  std::string host() const override { return own_.host_id; }
  std::uint64_t incarnation() const override { return own_.incarnation; }
  std::uint64_t incarnation_of(PeerId peer) const override;
  Engine& engine() override { return *engine_; }
  void set_observer(Service service, Observer* observer) override;
  StackStats stats() const override;
  std::string transport_summary() const override;
  std::vector<UsedInterface> interfaces() const override { return interfaces_; }
  Status usable() const override;
  void close() override;

 private:
  StackCore(const StackOptions& options, int number);
  // An address of the Nic's that the host has now, and which one it is.
  struct Local {
    PathAddress address;
    std::uint32_t local_path = 0;
  };

  Status start();
  Result<std::unique_ptr<Nic>> open_network();
  void note_use_of(const Interface& interface);
  std::string summary() const;
  Result<std::unique_ptr<ShmEndpoint>> open_shm(const JobKey& job_key);
  std::vector<Local> locals_now() const;
  Result<std::vector<Route>> routes_to(const Address& peer, bool same_host) const;
  Result<PeerPlan> plan_for(Address address) const;
  Reach reach_of(const Address& address) const;
  bool reaches_memory_of(const Address& address) const;

  const StackOptions options_;
  const int number_;
  const std::uint32_t generation_;
  std::shared_ptr<const Network> network_;
  Address own_;  // as of the start
  std::vector<UsedInterface> interfaces_;
  std::string summary_;
  const ShmEndpoint* shm_ = nullptr;  // the engine's; null: none
  mutable std::mutex closing_;        // close() against what uses the engine from outside
  std::atomic<bool> closed_{false};
  // In this order: peers refer to the engine's buffers until they are gone.
  std::unique_ptr<EngineCore> engine_;
  PeerTable peers_;
};

}  // namespace taco::harp
