#include "support/sim_campaign.h"

#include <array>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "support/sim_cluster.h"

namespace taco::harp {
namespace {

constexpr Time kLimit = 60 * kSecond;  // virtual
constexpr std::uint32_t kSignature = 77;

void add_u32(void* out, const void* a, const void* b, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t x, y;
    std::memcpy(&x, static_cast<const std::byte*>(a) + 4 * i, 4);
    std::memcpy(&y, static_cast<const std::byte*>(b) + 4 * i, 4);
    x += y;
    std::memcpy(static_cast<std::byte*>(out) + 4 * i, &x, 4);
  }
}

struct Exchange {
  std::uint32_t from = 0, to = 0;
  std::vector<std::byte> source, target, expected;
  SendRequest send;
  RecvRequest recv;
  Time send_at = 0, recv_at = 0, cancel_send_at = kNever, cancel_recv_at = kNever;
  bool send_posted = false, recv_posted = false;
  int sends_done = 0, recvs_done = 0;
  Code send_code = Code::kOk, recv_code = Code::kOk;
  bool cancelled = false;

  bool done() const { return sends_done > 0 && recvs_done > 0; }
};

void on_send(SendRequest& request, const Status& status) {
  auto& exchange = *static_cast<Exchange*>(request.context);
  ++exchange.sends_done;
  exchange.send_code = status.code();
  // The memory is ours again: a transport that still reads it would now send nonsense.
  for (std::byte& byte : exchange.source) byte = std::byte{0xee};
}

void on_recv(RecvRequest& request, const Status& status) {
  auto& exchange = *static_cast<Exchange*>(request.context);
  ++exchange.recvs_done;
  exchange.recv_code = status.code();
  if (status.ok()) {
    // The transport must not touch this any more: keep what it was.
    if (exchange.target != exchange.expected) exchange.recv_code = Code::kInternal;
    return;
  }
  exchange.expected = exchange.target;
}

class Scenario {
 public:
  explicit Scenario(std::uint64_t seed)
      : random_(seed ^ 0x5eed), faults_(choose_faults()), cluster_(nodes(), seed, faults_) {
    for (std::uint32_t i = 0; i < cluster_.size(); ++i) {
      if (random_.chance(0.3)) cluster_[i].set_congestion(&kCubic);
      if (random_.chance(0.1)) {
        cluster_[i].set_address(static_cast<std::uint32_t>(random_.below(3)));
      }
    }
    if (paths_ > 1) {
      for (std::uint32_t i = 0; i < cluster_.size(); ++i) cluster_[i].set_paths(paths_);
    }
    choose_security();
    const std::size_t count = 10 + random_.below(30);
    for (std::size_t i = 0; i < count; ++i) add_exchange(i);
  }

  ScenarioResult run() {
    const bool finished = cluster_.run(
        kLimit, [&] { return step() && left(); }, [&] { disturb(); });
    check(finished);
    collect();
    return result_;
  }

 private:
  std::uint32_t nodes() { return 2 + static_cast<std::uint32_t>(random_.below(4)); }

  SimFaults choose_faults() {
    SimFaults faults;
    if (random_.chance(0.6)) faults.loss = 0.001 * static_cast<double>(1 + random_.below(80));
    if (random_.chance(0.5)) faults.duplication = 0.05;
    if (random_.chance(0.4)) faults.reordering = 0.05;
    if (random_.chance(0.5)) faults.corruption = 0.02;
    if (random_.chance(0.3)) faults.jitter = 200 * kMicrosecond;
    faults.latency = random_.between(5 * kMicrosecond, kMillisecond);
    faults.bytes_per_second = random_.chance(0.3) ? 1.25e8 : 2.5e9;
    faults.longest_queue = random_.between(20 * kMicrosecond, kMillisecond);
    faults.receive_buffer = 96 * 1024 + random_.below(256 * 1024);
    faults.gso = random_.chance(0.8);
    faults.gro = random_.chance(0.8);
    faults.asynchronous_return = random_.chance(0.2);
    stall_rate_ = random_.chance(0.6) ? 0.01 : 0;
    death_rate_ = random_.chance(0.4) ? 0.002 : 0;
    cancel_rate_ = random_.chance(0.3) ? 0.1 : 0;
    mtu_rate_ = random_.chance(0.3) ? 0.01 : 0;
    if (random_.chance(0.3)) {  // several hosts that send to one fill its queue in the switch
      faults.port_bytes_per_second = faults.bytes_per_second;
      faults.port_queue = 16 * 1024 + random_.below(64 * 1024);
    }
    if (random_.chance(0.4)) paths_ = 2 + static_cast<std::uint32_t>(random_.below(3));
    if (random_.chance(0.2)) {
      faults.max_datagram = 8972;
      faults.receive_buffer += 2 << 20;
    }
    return faults;
  }

  void choose_security() {
    const auto security = static_cast<Security>(random_.below(3));
    const std::uint64_t packets = random_.chance(0.5) ? 20 + random_.below(200) : kPacketsPerKey;
    for (std::uint32_t i = 0; i < cluster_.size(); ++i) {
      cluster_[i].set_security(security, packets);
    }
    std::uint64_t& runs = security == Security::kNone   ? result_.sealed_none
                          : security == Security::kAuth ? result_.sealed_auth
                                                        : result_.sealed_all;
    ++runs;
  }

  std::size_t choose_size() {
    switch (random_.below(6)) {
      case 0:
        return 4 * random_.below(16);
      case 1:
      case 2:
        return 4 * random_.below(300);
      case 3:
        return 4 * random_.below(1500);
      case 4:
        return 4 * random_.below(10'000);
      default:
        return 4 * random_.below(60'000);
    }
  }

  void add_exchange(std::size_t index) {
    Exchange& exchange = exchanges_.emplace_back();
    exchange.from = static_cast<std::uint32_t>(random_.below(cluster_.size()));
    do {
      exchange.to = static_cast<std::uint32_t>(random_.below(cluster_.size()));
    } while (exchange.to == exchange.from);
    const std::size_t bytes = choose_size();
    exchange.source.resize(bytes);
    exchange.target.resize(bytes);
    for (std::byte& byte : exchange.source) byte = static_cast<std::byte>(random_.next());
    for (std::byte& byte : exchange.target) byte = static_cast<std::byte>(random_.next());
    exchange.expected = exchange.source;
    exchange.send.key = exchange.recv.key = {1 + random_.below(3), index};
    exchange.send.signature = exchange.recv.signature = kSignature;
    exchange.send.data = exchange.source.data();
    exchange.send.bytes = bytes;
    exchange.send.on_done = on_send;
    exchange.recv.max_bytes = bytes + (random_.chance(0.2) ? 5000 : 0);
    exchange.recv.on_done = on_recv;
    if (random_.chance(0.5)) {
      exchange.recv.sink =
          Sink::reduce_into(exchange.target.data(), exchange.target.data(), add_u32, 4);
      add_u32(exchange.expected.data(), exchange.source.data(), exchange.target.data(), bytes / 4);
    } else {
      exchange.recv.sink = Sink::place(exchange.target.data());
    }
    exchange.send.context = exchange.recv.context = &exchange;
    const Duration spread = random_.chance(0.5) ? 20 * kMillisecond : 200 * kMicrosecond;
    exchange.send_at = random_.between(0, spread);
    exchange.recv_at = random_.between(0, spread);
    if (random_.chance(cancel_rate_)) {
      const Time when = random_.between(0, spread + 2 * kMillisecond);
      (random_.chance(0.5) ? exchange.cancel_send_at : exchange.cancel_recv_at) = when;
    }
  }

  // Posts and cancels what is due. True when every exchange is done.
  bool step() {
    const Time now = cluster_.now();
    bool all = true;
    for (Exchange& exchange : exchanges_) {
      if (exchange.done()) continue;
      all = false;
      if (!exchange.send_posted && now >= exchange.send_at) {
        exchange.send_posted = true;
        cluster_[exchange.from].send(exchange.to, exchange.send);
      }
      if (!exchange.recv_posted && now >= exchange.recv_at) {
        exchange.recv_posted = true;
        cluster_[exchange.to].recv(exchange.from, exchange.recv);
      }
      cancel_due(exchange, now);
      for (const Time when :
           {exchange.send_at, exchange.recv_at, exchange.cancel_send_at, exchange.cancel_recv_at}) {
        if (when > now) cluster_.wake_at(when);
      }
    }
    return all;
  }

  // A cancelled exchange ends on both sides, as a failed operation of the process group does.
  void cancel_due(Exchange& exchange, Time now) {
    if (now < exchange.cancel_send_at && now < exchange.cancel_recv_at) return;
    const Status why(Code::kAborted, "cancelled by the scenario");
    if (!exchange.cancelled) ++result_.cancels;
    exchange.cancelled = true;
    if (exchange.send_posted && exchange.sends_done == 0 && now >= exchange.cancel_send_at) {
      cluster_[exchange.from].loop().cancel_st(exchange.send, why);
      exchange.cancel_send_at = kNever;
      exchange.cancel_recv_at = now + 50 * kMillisecond;
    } else if (exchange.recv_posted && exchange.recvs_done == 0 && now >= exchange.cancel_recv_at) {
      cluster_[exchange.to].loop().cancel_st(exchange.recv, why);
      exchange.cancel_recv_at = kNever;
      exchange.cancel_send_at = now + 50 * kMillisecond;
    } else {
      exchange.cancel_send_at = exchange.cancel_recv_at = kNever;
      if (exchange.sends_done == 0) exchange.cancel_send_at = now + 10 * kMillisecond;
      if (exchange.recvs_done == 0) exchange.cancel_recv_at = now + 10 * kMillisecond;
    }
  }

  // Says goodbye once everything is done; true when all have fallen quiet.
  bool left() {
    if (!leaving_) {
      leaving_ = true;
      for (std::uint32_t i = 0; i < cluster_.size(); ++i) cluster_[i].leave();
    }
    for (std::uint32_t i = 0; i < cluster_.size(); ++i) {
      if (cluster_[i].busy()) return false;
    }
    return true;
  }

  void disturb() {
    for (std::uint32_t i = 0; i < cluster_.size(); ++i) {
      if (!random_.chance(stall_rate_)) continue;
      ++result_.stalls;
      cluster_[i].stall_until(cluster_.now() + random_.between(kMillisecond, 100 * kMillisecond));
    }
    if (random_.chance(death_rate_)) {
      ++result_.link_deaths;
      const auto from = static_cast<std::uint32_t>(random_.below(cluster_.size()));
      const auto to = static_cast<std::uint32_t>(random_.below(cluster_.size()));
      // All ways, or one, which then takes its time to come back.
      const bool one = paths_ > 1 && random_.chance(0.7);
      const auto address =
          one ? static_cast<std::uint32_t>(random_.below(paths_)) : SimNetwork::kEvery;
      const Duration longest = (one ? 2'000 : 200) * kMillisecond;
      cluster_.network().kill_link(
          from, to, cluster_.now() + random_.between(kMillisecond, longest), address);
    }
    if (random_.chance(mtu_rate_)) {
      constexpr std::array<std::size_t, 6> kSizes = {8972, 4060, 1472, 1400, 1232, 1200};
      ++result_.mtu_changes;
      const auto from = static_cast<std::uint32_t>(random_.below(cluster_.size()));
      const auto to = static_cast<std::uint32_t>(random_.below(cluster_.size()));
      cluster_.network().set_mtu(from, to, kSizes[random_.below(kSizes.size())]);
    }
  }

  void fail(const std::string& text) {
    if (result_.failure.empty()) result_.failure = text;
  }

  void check(bool finished) {
    for (std::size_t i = 0; i < exchanges_.size(); ++i) {
      const Exchange& exchange = exchanges_[i];
      const std::string name = "exchange " + std::to_string(i) + " (" +
                               std::to_string(exchange.send.bytes) + " bytes): ";
      if (exchange.sends_done > 1 || exchange.recvs_done > 1) fail(name + "completed twice");
      if (exchange.recv_code == Code::kInternal) fail(name + "wrong bytes");
      if (!exchange.cancelled) {
        if (exchange.sends_done == 0) fail(name + "send never completed");
        if (exchange.recvs_done == 0) fail(name + "receive never completed");
        if (exchange.send_code != Code::kOk || exchange.recv_code != Code::kOk) {
          fail(name + "failed");
        }
        if (exchange.recv.bytes != exchange.send.bytes) fail(name + "wrong length");
      }
      if (exchange.recvs_done > 0 && exchange.target != exchange.expected) {
        fail(name + "written after completion");
      }
    }
    if (!finished) fail("did not fall quiet");
    for (std::uint32_t i = 0; i < cluster_.size(); ++i) {
      if (cluster_[i].sim_nic().overflows() > 0) fail("a receive buffer overflowed");
    }
  }

  void collect() {
    result_.faults = cluster_.network().counts();
    result_.messages = exchanges_.size();
    for (std::uint32_t i = 0; i < cluster_.size(); ++i) {
      const ProtocolCounters& counters = cluster_[i].counters();
      result_.retransmits += counters.retransmits;
      result_.probes += counters.probes;
      result_.checksum_failures += counters.checksum_failures;
      result_.duplicates += counters.duplicates;
      result_.forged += counters.forged;
      result_.early += counters.early;
      for (const Session* session : cluster_[i].loop().sessions()) {
        if (session->sealing() == nullptr) continue;
        result_.key_rotations += session->sealing()->rotations();
      }
      result_.paths_left += counters.paths_left;
      result_.paths_proved += counters.paths_proved;
    }
  }

  SimRandom random_;
  double stall_rate_ = 0, death_rate_ = 0, cancel_rate_ = 0, mtu_rate_ = 0;
  std::uint32_t paths_ = 1;
  SimFaults faults_;
  SimCluster cluster_;
  std::deque<Exchange> exchanges_;
  bool leaving_ = false;
  ScenarioResult result_;
};

}  // namespace

ScenarioResult run_scenario(std::uint64_t seed) { return Scenario(seed).run(); }

}  // namespace taco::harp
