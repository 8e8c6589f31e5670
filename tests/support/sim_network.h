// A network that exists only in memory and virtual time. It exposes the same objects that handle
// real packets to faults that are rare in reality. Everything follows from one seed.
//
// SimNetwork carries datagrams between SimNics and loses, duplicates, delays, corrupts them, kills
// links for a while, and drops what is too large for one, as a switch does. A SimNic has any number
// of addresses; address i of one reaches address i of another, and no other. It also has a bounded
// receive buffer and counts what did not fit, so that missing flow control shows.
// Single-threaded; the driver of the simulation advances `now`. Test support.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <utility>
#include <vector>

#include "harp/nic.h"
#include "support/sim_random.h"

namespace taco::harp {


struct SimFaults {
  double loss = 0, duplication = 0, reordering = 0, corruption = 0;
  Duration latency = 50 * kMicrosecond;
  Duration jitter = 0;                         // added to every packet, order kept
  Duration reorder_delay = 3 * kMillisecond;   // at most, for reordered and duplicate packets
  double bytes_per_second = 1.25e9;            // of a SimNic's egress
  Duration longest_queue = 20 * kMillisecond;  // of egress; beyond it send_st refuses
  std::size_t receive_buffer = 256 * 1024;     // as the kernel counts
  std::size_t max_datagram = 1472;             // that a SimNic claims to take
  bool gso = true, gro = true, asynchronous_return = false;
};

// How often each fault has fired.
struct SimCounts {
  std::uint64_t delivered = 0, lost = 0, duplicated = 0, reordered = 0, corrupted = 0;
  std::uint64_t link_dead = 0;  // packets swallowed by a dead link
  std::uint64_t refused = 0;    // by a full egress queue
  std::uint64_t overflowed = 0;
  std::uint64_t too_large = 0;  // for their link
  void add(const SimCounts& other);
};

class SimNic;

class SimNetwork {
 public:
  SimNetwork(std::uint64_t seed, const SimFaults& faults) : random_(seed), faults_(faults) {}

  Time now() const { return now_; }
  // Delivers everything due until then.
  void advance(Time now);
  Time next_arrival() const { return flying_.empty() ? kNever : flying_.top().at; }
  // Packets from `from` to `to` vanish until then; only those to one address when it is given.
  void kill_link(std::uint32_t from, std::uint32_t to, Time until,
                 std::uint32_t address = kEveryAddress);
  // Larger datagrams from `from` to `to` vanish from now on.
  void set_mtu(std::uint32_t from, std::uint32_t to, std::size_t max_datagram);

  const SimFaults& faults() const { return faults_; }
  SimFaults& faults() { return faults_; }
  const SimCounts& counts() const { return counts_; }
  SimRandom& random() { return random_; }
  // Hears every datagram that leaves, as an observer of the network does.
  using Tap = std::function<void(std::uint32_t from, std::uint32_t to, std::uint32_t address,
                                 const std::vector<std::byte>& bytes)>;
  void set_tap(Tap tap) { tap_ = std::move(tap); }

  static constexpr std::uint32_t kEveryAddress = UINT32_MAX;
  static Endpoint endpoint(std::uint32_t node, std::uint32_t address = 0);
  static std::uint32_t node_of(const Endpoint& endpoint);
  static std::uint32_t address_of(const Endpoint& endpoint);

 private:
  friend class SimNic;
  struct Flying {
    Time at;
    std::uint64_t order;
    std::uint32_t from, to, address;
    std::shared_ptr<std::vector<std::byte>> bytes;
    bool operator<(const Flying& other) const {
      return at != other.at ? at > other.at : order > other.order;
    }
  };
  struct DeadLink {
    std::uint32_t from, to, address;
    Time until;
  };
  void attach(SimNic& nic);
  // From `from`'s address to `to`'s of the same index.
  void carry(std::uint32_t from, std::uint32_t to, std::uint32_t address,
             std::vector<std::byte> bytes, Time leaves);
  void fly(Flying packet);
  Time& last_arrival(std::uint32_t from, std::uint32_t to);

  SimRandom random_;
  SimFaults faults_;
  Tap tap_;
  SimCounts counts_;
  Time now_ = 0;
  std::uint64_t order_ = 0;
  std::priority_queue<Flying> flying_;
  std::vector<SimNic*> nics_;
  std::vector<DeadLink> dead_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::size_t> mtus_;  // by from and to
  std::vector<Time> last_arrivals_;  // by from * nics + to: what is not reordered stays in order
};

class SimNic final : public Nic {
 public:
  explicit SimNic(SimNetwork& network);
  std::uint32_t node() const { return node_; }

  static constexpr std::size_t kAddresses = 8;

  const NicCapabilities& capabilities() const override { return capabilities_; }
  std::span<const NicAddress> addresses() const override { return addresses_; }
  std::span<const NicDescriptor> descriptors() const override { return {}; }  // see wake_time()
  std::size_t send_st(std::span<const TxPacket> packets) override;
  bool is_full_st(std::uint32_t) const override;
  void reap_st() override;
  void recall_st(TxReference& reference) override;
  std::size_t receive_st(std::span<RxPacket> packets) override;
  void close_st() override { closed_ = true; }
  // The moment at which the driver itself has something to do.
  Time wake_time() const;
  std::uint64_t overflows() const override { return overflows_; }
  bool has_received() const { return !received_.empty(); }

 private:
  friend class SimNetwork;
  struct Arrived {
    std::uint32_t from, address;
    std::shared_ptr<std::vector<std::byte>> bytes;
  };
  // A packet whose payload the "hardware" reads later, as a DMA engine would.
  struct Pending {
    Time at;
    std::uint32_t to, address;
    std::vector<std::byte> header;
    IoSlice payload;
    TxReference* reference;
  };
  void arrive(std::uint32_t from, std::uint32_t address,
              std::shared_ptr<std::vector<std::byte>> bytes);
  void launch(const TxPacket& packet);
  void flush(Pending& pending);

  SimNetwork& network_;
  std::uint32_t node_ = 0;
  NicCapabilities capabilities_;
  std::vector<NicAddress> addresses_;
  bool closed_ = false;
  Time egress_free_ = 0;
  std::deque<Pending> pending_;
  std::deque<Arrived> received_;
  std::size_t buffered_ = 0;  // bytes charged for received_
  std::uint64_t overflows_ = 0;
  // What the last receive_st handed out.
  std::vector<std::vector<std::byte>> views_;
  std::vector<Endpoint> sources_;
};

}  // namespace taco::harp
