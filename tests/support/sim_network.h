// A network that exists only in memory and virtual time. It exposes the same objects that handle
// real packets to faults that are rare in reality. Everything follows from one seed.
//
// Every host has a SimNic with some addresses, each with a cable of its own to one switch, and at
// each address some ports. What a host sends waits for its cable, which may refuse; at the switch
// it waits for the cable of its destination, and is dropped when the queue there is full. Packets
// are lost, duplicated, delayed and corrupted on the way, links die for a while, and what is too
// large for a link vanishes. A SimNic's receive buffers are bounded too, and count what did not
// fit, so that missing flow control shows. Whoever sends to a port that nobody has is refused.
//
// Single-threaded; the driver of the simulation advances `now`. Test support.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "harp/nic.h"
#include "support/sim_random.h"

namespace taco::harp {

struct SimFaults {
  double loss = 0, duplication = 0, reordering = 0, corruption = 0;
  double burst = 0;  // that a packet begins one: all that follow on its link are lost,
  std::uint32_t longest_burst = 1;  // so many at most
  Duration latency = 50 * kMicrosecond;
  Duration jitter = 0;                         // added to every packet, order kept
  Duration reorder_delay = 3 * kMillisecond;   // at most, for reordered and duplicate packets
  double bytes_per_second = 1.25e9;            // of a cable, from its host
  Duration longest_queue = 20 * kMillisecond;  // for a cable; beyond it send_st refuses
  double port_bytes_per_second = 0;            // of a cable, from the switch; 0: no limit
  std::size_t port_queue = 256 * 1024;         // bytes that may wait there; others are dropped
  // A fat tree: switches with so many hosts each, joined by so many uplinks, of which addresses and
  // ports of a packet choose one. 0: one switch has all hosts.
  std::uint32_t hosts_a_switch = 0, uplinks = 0;
  double uplink_bytes_per_second = 1.25e9;
  std::size_t uplink_queue = 256 * 1024;    // bytes, at either end of it
  std::size_t receive_buffer = 256 * 1024;  // of each address and port, as the kernel counts
  std::size_t max_datagram = 1472;          // that an address claims to take
  bool gso = true, gro = true, asynchronous_return = false;
  // Those that travel with a checksum of UDP's: damage to the payload that HARP trusts that for
  // (wire::kTrusted) is not HARP's to find, so what is corrupted of such a packet is the rest.
  bool udp_checksums = false;
  // Address i reaches address i of others and no other: as with a switch, or network, for each.
  // An address that has taken the place of another (SimNic::renumber) is on the same one.
  bool rails = true;
};

// How often each fault has fired.
struct SimCounts {
  std::uint64_t sent = 0, delivered = 0, lost = 0, duplicated = 0, reordered = 0, corrupted = 0;
  std::uint64_t bursts = 0, burst_lost = 0;
  std::uint64_t far_reordered = 0;  // overtaken by 1,000 packets of their link, or more
  std::uint64_t forged = 0;         // came from nowhere
  std::uint64_t trusted = 0;        // corrupted, of those whose payload is trusted
  std::uint64_t link_dead = 0;      // packets swallowed by a dead link
  std::uint64_t refused = 0;        // by a cable's full queue
  std::uint64_t port_full = 0;      // dropped by the switch
  std::uint64_t uplink_full = 0;    // dropped before an uplink, or behind it
  std::uint64_t overflowed = 0;     // dropped by a full receive buffer
  std::uint64_t too_large = 0;      // for their link
  std::uint64_t unreachable = 0;    // nobody has the port
  void add(const SimCounts& other);
};

// Somebody's end of a conversation.
struct SimPlace {
  std::uint32_t node = 0, address = 0, port = 0;
  bool operator==(const SimPlace&) const = default;
};

class SimNic;

class SimNetwork {
 public:
  SimNetwork(std::uint64_t seed, const SimFaults& faults)
      : random_(seed), faults_(faults), hash_seed_(seed) {}

  Time now() const { return now_; }
  // Delivers everything due until then.
  void advance(Time now);
  Time next_arrival() const;

  static constexpr std::uint32_t kEvery = UINT32_MAX;
  // Packets from `from` to `to` vanish until then; only those to one address, or from one port,
  // when it is given.
  void kill_link(std::uint32_t from, std::uint32_t to, Time until, std::uint32_t address = kEvery,
                 std::uint32_t port = kEvery);
  // Larger datagrams from `from` to `to` vanish from now on; only those to one address, if given.
  void set_mtu(std::uint32_t from, std::uint32_t to, std::size_t max_datagram,
               std::uint32_t address = kEvery);

  // A firewall refuses what comes to that address of a host, from now on.
  void refuse_at(std::uint32_t node, std::uint32_t address) { refusing_.insert({node, address}); }
  void admit_at(std::uint32_t node, std::uint32_t address) { refusing_.erase({node, address}); }

  // Sets the rate of one host's cable from now on, instead of what the faults say.
  void set_rate(std::uint32_t node, std::uint32_t address, double bytes_per_second) {
    rates_[{node, address}] = bytes_per_second;
  }

  // How long what comes to the switch now waits there for the cable to that address.
  Duration queue_before(std::uint32_t node, std::uint32_t address) const {
    const auto port = ports_free_.find({node, address});
    return port == ports_free_.end() ? 0 : std::max<Duration>(port->second - now_, 0);
  }

  const SimFaults& faults() const { return faults_; }
  SimFaults& faults() { return faults_; }
  const SimCounts& counts() const { return counts_; }
  SimRandom& random() { return random_; }
  // A datagram that has left, as it left, and what became of it on the way to the switch ("lost",
  // "corrupted", ...; empty: nothing). "in part": the Nic has refused it, and these bytes of it
  // have left all the same.
  struct Departure {
    SimPlace from, to;
    Time leaves = 0;
    std::span<const std::byte> bytes;
    std::string fate;
  };
  // Hears of every datagram that leaves, as an observer of the network does.
  using Tap = std::function<void(const Departure& departure)>;
  void set_tap(Tap tap) { tap_ = std::move(tap); }
  // Arrives at `to` as if it had come from there, from somebody who has no part in this.
  void forge(const SimPlace& from, const SimPlace& to, std::vector<std::byte> bytes);

  // Networks, one for each address of a host; those of the same number modulo this are on one.
  static constexpr std::uint32_t kRails = 16;
  static std::uint32_t rail_of(std::uint32_t address) { return address % kRails; }

  // 10.<address>.<node>:<first port + port>
  static Endpoint endpoint(std::uint32_t node, std::uint32_t address = 0, std::uint32_t port = 0);
  static SimPlace place_of(const Endpoint& endpoint);
  static Duration time_for(std::size_t bytes, double bytes_per_second) {
    return static_cast<Duration>(static_cast<double>(bytes) * kSecond / bytes_per_second);
  }

 private:
  friend class SimNic;
  using Bytes = std::shared_ptr<std::vector<std::byte>>;
  enum class Stage : std::uint8_t { kToUplink, kFromUplink, kToSwitch, kToHost, kRefused };
  struct Flying {
    Time at;
    std::uint64_t order;
    Stage stage;
    SimPlace from, to;
    Bytes bytes;
    std::uint64_t departure = 0;  // the how-manieth of its link; 0: not counted
    bool operator<(const Flying& other) const {
      return at != other.at ? at > other.at : order > other.order;
    }
  };
  struct DeadLink {
    std::uint32_t from, to, address, port;
    Time until;
  };
  using Link = std::pair<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t>;
  static Link link(std::uint32_t from, std::uint32_t to, std::uint32_t address) {
    return {{from, to}, address == kEvery ? kEvery : rail_of(address)};
  }

  void attach(SimNic& nic, std::uint32_t node);
  void detach(const SimNic& nic);
  void carry(const SimPlace& from, const SimPlace& to, std::vector<std::byte> bytes, Time leaves);
  // Why a packet does not arrive; null: it does.
  const char* vanishes(const SimPlace& from, const SimPlace& to, std::size_t bytes, Time leaves);
  bool is_dead(const SimPlace& from, const SimPlace& to, Time leaves) const;
  bool is_in_burst(const SimPlace& from, const SimPlace& to);
  void note_order(const Flying& packet);
  void tell(const SimPlace& from, const SimPlace& to, Time leaves, const Bytes& bytes,
            const std::string& fate) const;
  void fly(Flying packet);
  void land(Flying packet);
  Stage first_stage(const SimPlace& from, const SimPlace& to) const;
  std::uint32_t uplink_of(const SimPlace& from, const SimPlace& to) const;
  void leave_switch(Flying packet);
  void cross_uplink(Flying packet);
  static bool queue_up(Time& free, Flying& packet, double bytes_per_second, std::size_t room);
  void refuse(const Flying& packet);
  // The packets that one host sends to one address of another.
  struct Cord {
    Time last_arrival = 0;  // what is not reordered stays in order
    std::uint64_t departed = 0, newest_arrived = 0;
    std::uint32_t burst_left = 0;
  };
  Cord& cord(const SimPlace& from, const SimPlace& to);
  double rate_of(const SimPlace& from) const;

  SimRandom random_;
  SimFaults faults_;
  const std::uint64_t hash_seed_;  // of the switches
  Tap tap_;
  SimCounts counts_;
  Time now_ = 0;
  std::uint64_t order_ = 0;
  std::priority_queue<Flying> flying_;
  std::vector<SimNic*> nics_;
  std::vector<DeadLink> dead_;
  std::set<std::pair<std::uint32_t, std::uint32_t>> refusing_;  // by node and address
  std::map<Link, std::size_t> mtus_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, double> rates_;  // by node and address
  std::vector<Cord> cords_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, Time> ports_free_;  // by node and address
  // By switch and uplink, the queue before it and the one behind it.
  std::map<std::pair<std::uint32_t, std::uint32_t>, Time> uplinks_free_, downlinks_free_;
};

struct SimNicOptions {
  static constexpr std::uint32_t kNewHost = UINT32_MAX;
  std::uint32_t node = kNewHost;           // whose place it takes
  std::vector<std::size_t> max_datagrams;  // one an address; empty: eight of the network's
  std::uint32_t ports = 1;                 // at each address; local path = address * ports + port
  std::uint32_t spare_ports = 0;           // the last of them (NicAddress)
  std::size_t whole_datagram = 0;          // of all addresses (NicAddress)
};

class SimNic final : public Nic {
 public:
  explicit SimNic(SimNetwork& network, const SimNicOptions& options = {});
  ~SimNic() override { network_.detach(*this); }
  SimNic(const SimNic&) = delete;
  SimNic& operator=(const SimNic&) = delete;
  std::uint32_t node() const { return node_; }

  const NicCapabilities& capabilities() const override { return capabilities_; }
  std::span<const NicAddress> addresses() const override { return addresses_; }
  std::span<const NicDescriptor> descriptors() const override { return {}; }  // see room_at()
  std::size_t send_st(std::span<const TxPacket> packets) override;
  bool is_full_st(std::uint32_t local_path) const override { return cable_of(local_path).full; }
  void reap_st() override;
  void recall_st(TxReference& reference) override;
  std::size_t receive_st(std::span<RxPacket> packets) override;
  std::vector<Refusal> take_refusals_st() override { return std::exchange(refusals_, {}); }
  void close_st() override { closed_ = true; }
  std::uint32_t missing_st() const override { return missing_; }
  std::uint64_t overflows() const override { return overflows_; }

  // Its host does not have these addresses (bit i: the i-th) from now on, and has all others.
  void set_missing(std::uint32_t missing) {
    missing_ = missing;
    has_news_ = true;
  }

  // The local path that has taken the place of that one, of an address that is gone; that one, if
  // there is none.
  std::uint32_t now_at(std::uint32_t local_path) const;
  // The addresses that it sends from to reach that one: the first on the same rail; or, without
  // rails, all.
  std::vector<Endpoint> routes_to(const Endpoint& remote) const;
  // Its host comes to have one more, with a cable of its own.
  void add_address(std::size_t max_datagram);
  // Its host has another address on the network of its i-th, which is gone: a lease that was
  // renewed with another one. Local paths beside those that there are lead from there.
  void renumber(std::uint32_t i);

  // The news that descriptors would tell: something has arrived; and when a full cable has room
  // again.
  bool has_arrivals() const { return has_news_ || !received_.empty() || !refusals_.empty(); }
  Time room_at() const;

 private:
  friend class SimNetwork;
  struct Arrived {
    SimPlace from;
    std::uint32_t local_path;
    SimNetwork::Bytes bytes;
  };
  // A packet whose payload the "hardware" reads later, as a DMA engine would.
  struct Pending {
    Time at;
    SimPlace from, to;
    std::vector<std::byte> header;
    IoSlice payload;
    TxReference* reference;
  };
  struct Cable {
    Time free = 0;      // when it has carried all that was sent
    bool full = false;  // the last packet found no room
    std::deque<Pending> pending;
  };
  Cable& cable_of(std::uint32_t local_path) { return cables_[local_path / ports_]; }
  const Cable& cable_of(std::uint32_t local_path) const { return cables_[local_path / ports_]; }

  void add_numbered(std::uint32_t number, std::size_t max_datagram);
  // Which of its addresses has that number; none: how many there are.
  std::uint32_t index_of(std::uint32_t number) const;
  bool has(const SimPlace& place) const;
  void arrive(const SimPlace& from, const SimPlace& to, SimNetwork::Bytes bytes);
  void launch(const TxPacket& packet, Cable& cable);
  void leak(const TxPacket& packet);
  Time next_read() const;  // by the "hardware"
  void read_due(Time now);
  void read(Pending& pending);

  SimNetwork& network_;
  const std::uint32_t ports_, spare_ports_;
  const std::size_t whole_datagram_;
  std::uint32_t node_ = 0;
  NicCapabilities capabilities_;
  std::vector<NicAddress> addresses_;
  std::vector<std::uint32_t> numbers_;  // of its addresses, as places have them
  std::vector<Cable> cables_;
  std::size_t unread_ = 0;          // packets pending, on all cables
  std::vector<TxReference*> read_;  // one for each that has been read, and is not reaped
  std::deque<Arrived> received_;
  std::vector<std::size_t> buffered_;  // bytes charged for received_, by local path
  std::uint64_t overflows_ = 0;
  std::vector<Refusal> refusals_;
  bool closed_ = false;
  std::uint32_t missing_ = 0;
  bool has_news_ = false;  // addresses have come or gone
  // The packets that the last receive_st handed out.
  std::vector<std::vector<std::byte>> views_;
  std::vector<Endpoint> sources_;
};

}  // namespace taco::harp
