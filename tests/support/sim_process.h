// One process of a simulated cluster: a SessionHost with real Sessions and Matchers over a SimNic,
// driven turn by turn in virtual time as the engine drives them in real time. Test support.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "harp/matching/matcher.h"
#include "harp/session/session.h"
#include "harp/session/session_host.h"
#include "harp/session/stray_packets.h"
#include "support/sim_network.h"

namespace taco::harp {

class SimProcess final : public SessionHost, private StrayPackets::Peers {
 public:
  // Processes of one cluster must be made in order, so that their node numbers agree.
  SimProcess(SimNetwork& network, std::uint64_t seed, Observer* observer = nullptr);
  ~SimProcess() override;

  // To be called once every process exists. Peers are numbered by node.
  void know(const std::vector<std::unique_ptr<SimProcess>>& cluster);

  Matcher& matcher(std::uint32_t node);  // makes the session on first use
  Session* session(std::uint32_t node);  // null: not used yet

  // One turn of the loop. Does nothing while stalled.
  void turn(Time now);
  void stall_until(Time when) { stalled_until_ = when; }
  // When the next turn has something to do.
  Time next_event() const;
  bool busy() const;
  void leave();

  MatcherHost& matching() { return matching_; }
  SimNic& sim_nic() { return *nic_; }
  std::uint64_t incarnation() const { return incarnation_; }
  const Secret& secret() const { return secret_; }
  void set_congestion(const CongestionOps* ops) { congestion_ = ops; }
  // Which of its addresses it says hello from, and to.
  void set_address(std::uint32_t address) { address_ = address; }
  void set_peer_timeout(Duration timeout) { peer_timeout_ = timeout; }

  // Its session and all that goes with it is gone, as in a process that has been started again.
  void drop(std::uint32_t node);
  // Datagrams, as if they had come from the network.
  void inject(const RxPacket& packets) { dispatch(packets); }
  // The sessions whose peers, so resets said, have ended.
  const std::vector<const Session*>& believed_resets() const { return believed_resets_; }

  void arm(Timer& timer, Time deadline) override;
  void disarm(Timer& timer) override;
  std::uint64_t random() override { return random_.next(); }

 private:
  struct Peer {
    std::uint64_t incarnation = 0;
    Secret secret{};
    std::unique_ptr<Matcher> matcher;
    std::unique_ptr<Session> session;
  };
  SimProcess(std::unique_ptr<SimNic> nic, std::unique_ptr<MatcherHost> matching,
             std::uint64_t seed);
  Session& ensure(std::uint32_t node);
  void open_session(std::uint32_t node);
  std::uint32_t node_of(std::uint64_t incarnation) const;
  void receive();
  void dispatch(const RxPacket& packets);
  Session* session_of(std::uint64_t connection);
  std::optional<PairKey> key_with(std::uint64_t incarnation) override;
  Session& session_with(std::uint64_t incarnation) override;
  Session* begin_anew(std::uint64_t incarnation) override;
  void on_reset(Session& session) override { believed_resets_.push_back(&session); }
  void fire_timers();

  std::unique_ptr<SimNic> nic_;
  std::unique_ptr<MatcherHost> matching_owner_;
  MatcherHost& matching_;
  SimRandom random_;
  std::uint64_t incarnation_;
  Secret secret_{};
  std::vector<Peer> peers_;
  std::vector<Timer*> timers_;
  Time last_turn_ = 0;
  Time stalled_until_ = 0;
  Duration peer_timeout_ = 10 * kSecond;
  const CongestionOps* congestion_ = nullptr;
  std::uint32_t address_ = 0;
  std::unique_ptr<StrayPackets> strays_;
  std::vector<const Session*> believed_resets_;
  bool more_ = false;  // the last turn left work behind
};

}  // namespace taco::harp
