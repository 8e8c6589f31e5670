#include "harp/drivers/dpdk/dpdk_port.h"

#include <errno.h>
#include <rte_dev.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_ether.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_mempool.h>
#include <rte_random.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>

namespace taco::harp {

namespace {

constexpr std::uint16_t kUsualSlots = 1024;
// Payload shorter than this is copied into the mbuf of its headers: to attach it takes as long.
constexpr std::size_t kWorthAttaching = 256;
// Ethernet's header and a VLAN's tag, and the checksum that some devices leave in place.
constexpr std::size_t kLinkBytes = 14 + 4 + 4;
constexpr unsigned kCached = 256;
constexpr const char* kMemifLog = "pmd.net.memif";
constexpr Duration kBetweenTries = 20 * kMillisecond;
constexpr Duration kToConnect = 300 * kMillisecond;  // so long a connection may take to come about

// DPDK's caches of buffers belong to its own threads. Whoever holds an engine's token is one of
// them for the length of a call. Several engines are the same one at the same time, and never with
// one pool: each port has its own.
class AsLcore {
 public:
  AsLcore() : before_(std::exchange(RTE_PER_LCORE(_lcore_id), rte_get_main_lcore())) {}
  ~AsLcore() { RTE_PER_LCORE(_lcore_id) = before_; }
  AsLcore(const AsLcore&) = delete;
  AsLcore& operator=(const AsLcore&) = delete;

 private:
  const unsigned before_;
};

// Keeps memif's rings from being taken away while it lives, if it is true.
class RingUse {
 public:
  explicit RingUse(InterruptGate::User* user)
      : user_(user), is_granted_(user == nullptr || user->enter()) {}
  ~RingUse() {
    if (user_ != nullptr && is_granted_) user_->leave();
  }
  RingUse(const RingUse&) = delete;
  RingUse& operator=(const RingUse&) = delete;
  explicit operator bool() const { return is_granted_; }

 private:
  InterruptGate::User* const user_;
  const bool is_granted_;
};

// Memif's driver says nothing while one lives: that a server has not come yet is not worth a line.
class QuietMemif {
 public:
  explicit QuietMemif(InterruptGate::Silence& silence) : silence_(silence) {
    std::lock_guard lock(silence_.mutex);
    if (silence_.wanted++ == 0) rte_log_set_level_pattern(kMemifLog, RTE_LOG_EMERG);
  }
  ~QuietMemif() {
    std::lock_guard lock(silence_.mutex);
    if (--silence_.wanted == 0) rte_log_set_level_pattern(kMemifLog, RTE_LOG_ERR);
  }
  QuietMemif(const QuietMemif&) = delete;
  QuietMemif& operator=(const QuietMemif&) = delete;

 private:
  InterruptGate::Silence& silence_;
};

void add(std::atomic<std::uint64_t>& counter, std::uint64_t more) {
  counter.store(counter.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
}

bool is_pci(const std::string& device) { return device.find(':') != std::string::npos; }

// A device's argument of that name. Empty: there is none.
std::string argument_of(const std::string& arguments, const std::string& key) {
  const std::size_t at = ("," + arguments).find("," + key + "=");
  if (at == std::string::npos) return "";
  const std::size_t begin = at + key.size() + 1;
  return arguments.substr(begin, arguments.find(',', begin) - begin);
}

// Memory that DPDK does not know is only for drivers that read frames by the processor: some have
// read all of a frame when their send returns, and a ring passes it to whoever receives from it.
// A memif with zero-copy=yes hands its peer places in its own memory, later: there nothing else
// fits.
FramePayload payload_of(const std::string& driver, const std::string& arguments,
                        std::uint64_t capabilities) {
  const bool is_handed_on = argument_of(arguments, "zero-copy") == "yes";
  if (is_handed_on || (capabilities & RTE_ETH_TX_OFFLOAD_MULTI_SEGS) == 0) {
    return FramePayload::kCopied;
  }
  if (driver == "net_ring") return FramePayload::kLent;
  const bool reads_at_once =
      driver == "net_memif" || driver == "net_af_packet" || driver == "net_tap";
  return reads_at_once ? FramePayload::kAttached : FramePayload::kCopied;
}

Status failure(const std::string& device, const char* what, int error) {
  // Drivers say -1 where they have no number for what is wrong.
  const std::string why = error == -1 ? "" : std::string(": ") + rte_strerror(abs(error));
  return Status(Code::kResource, "the DPDK device " + device + ": " + what + " failed" + why +
                                     " (" + last_words_of_eal() + ")");
}

// Where memif servers of this process listen. Devices are opened and closed one after another.
std::multiset<std::string>& server_sockets() {
  static std::multiset<std::string> all;
  return all;
}

// Where a memif server listens. Empty: it is none, or has a socket without a name among files.
std::string server_socket_of(const std::string& arguments) {
  const bool is_server = argument_of(arguments, "role") == "server" &&
                         argument_of(arguments, "socket-abstract") == "no";
  return is_server ? argument_of(arguments, "socket") : "";
}

// A memif server that ended without a goodbye has left its socket's name behind, at which the next
// one could not listen. Where another device of this process listens, nobody is to knock: memif's
// driver does not survive everybody who is gone again before he was let in.
void remove_dead_socket(const std::string& path) {
  if (server_sockets().count(path) != 0) return;
  sockaddr_un address{};
  if (path.size() >= sizeof address.sun_path) return;
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path, path.c_str(), path.size());
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const bool is_dead =
      connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 &&
      errno == ECONNREFUSED;
  if (fd >= 0) close(fd);
  if (is_dead) unlink(path.c_str());
}

// Devices take tags out of frames also where nobody has asked them to. The tag of none says a
// priority.
bool is_of_vlan(const rte_mbuf& mbuf) {
  constexpr int kVlanMask = 0x0fff;
  int tags = 0;
  if ((mbuf.ol_flags & RTE_MBUF_F_RX_VLAN_STRIPPED) != 0) tags |= mbuf.vlan_tci;
  if ((mbuf.ol_flags & RTE_MBUF_F_RX_QINQ_STRIPPED) != 0) tags |= mbuf.vlan_tci_outer;
  return (tags & kVlanMask) != 0;
}

// The longest frame that a device may bring: af_packet's driver wants buffers that hold a slot of
// its ring.
std::size_t longest_frame(const std::string& driver, const std::string& arguments) {
  constexpr std::size_t kUsualSlot = 2048;
  if (driver != "net_af_packet") return kUsualSlot;
  const std::string slot = argument_of(arguments, "framesz");
  return slot.empty() ? kUsualSlot : strtoul(slot.c_str(), nullptr, 10);
}

}  // namespace

Result<std::unique_ptr<FramePort>> open_dpdk_port(const DpdkPortOptions& options) {
  auto port = std::make_unique<DpdkPort>(options);
  TACO_RETURN_IF_ERROR(port->start(options));
  return std::unique_ptr<FramePort>(std::move(port));
}

Status DpdkPort::start(const DpdkPortOptions& options) {
  const AsLcore as_lcore;
  if (options.device.starts_with("net_memif")) return start_memif(options);
  TACO_RETURN_IF_ERROR(make(options));
  return begin();
}

// EAL's interrupt thread goes through what memif's driver keeps of all its devices, so it stands
// still meanwhile. A client connects when that thread may run, as does the server's: a call that
// waits for one of the two would else keep both from going on.
Status DpdkPort::start_memif(const DpdkPortOptions& options) {
  const auto interrupts = InterruptGate::get();
  if (!interrupts.ok()) return interrupts.status();
  interrupts_ = interrupts.value();
  rings_ = std::make_unique<InterruptGate::User>(*interrupts_);
  if (!rings_->enter_in_time()) {
    return Status(Code::kResource, "DPDK's interrupt thread does not come to a stop");
  }
  Status status = make(options);
  if (status.ok() && !awaits_server_) status = begin();
  rings_->leave();
  if (status.ok() && awaits_server_) connect();
  return status;
}

Status DpdkPort::make(const DpdkPortOptions& options) {
  TACO_RETURN_IF_ERROR(attach(options));
  TACO_RETURN_IF_ERROR(configure(options));
  TACO_RETURN_IF_ERROR(make_pool(options));
  return set_up_queues();
}

// A device on the PCI bus was found when EAL started, if it may be used; others are made here.
Status DpdkPort::attach(const DpdkPortOptions& options) {
  if (!is_pci(options.device)) {
    server_socket_ = server_socket_of(options.arguments);
    if (!server_socket_.empty()) {
      remove_dead_socket(server_socket_);
      server_sockets().insert(server_socket_);
    }
    const int made = rte_eal_hotplug_add("vdev", options.device.c_str(), options.arguments.c_str());
    if (made != 0) return failure(options.device, "making it", made);
    attached_ = true;
  }
  const int found = rte_eth_dev_get_port_by_name(options.device.c_str(), &port_);
  if (found == 0) return {};
  return Status(Code::kResource,
                "there is no DPDK device " + options.device +
                    ": a device on the PCI bus must be bound to vfio-pci (dpdk-devbind.py -s "
                    "shows them), which takes it away from the kernel (" +
                    last_words_of_eal() + ")");
}

Status DpdkPort::configure(const DpdkPortOptions& options) {
  rte_eth_dev_info device{};
  const int asked = rte_eth_dev_info_get(port_, &device);
  if (asked != 0) return failure(info_.name, "rte_eth_dev_info_get", asked);
  info_.driver = device.driver_name;
  info_.payload = payload_of(info_.driver, options.arguments, device.tx_offload_capa);
  info_.in_memory = info_.driver == "net_memif";
  awaits_server_ = info_.in_memory && argument_of(options.arguments, "role") != "server";
  info_.checksums = (device.tx_offload_capa & RTE_ETH_TX_OFFLOAD_UDP_CKSUM) != 0 &&
                    (device.rx_offload_capa & RTE_ETH_RX_OFFLOAD_UDP_CKSUM) != 0;
  rte_eth_conf conf{};
  if (info_.payload != FramePayload::kCopied) {
    conf.txmode.offloads |= RTE_ETH_TX_OFFLOAD_MULTI_SEGS;
  }
  if (info_.checksums) {
    conf.txmode.offloads |= RTE_ETH_TX_OFFLOAD_UDP_CKSUM;
    conf.rxmode.offloads = RTE_ETH_RX_OFFLOAD_UDP_CKSUM;
  }
  const int configured = rte_eth_dev_configure(port_, 1, 1, &conf);
  if (configured != 0) return failure(info_.name, "rte_eth_dev_configure", configured);
  TACO_RETURN_IF_ERROR(set_mtu(options.mtu));

  const auto wanted = static_cast<std::uint16_t>(options.slots);
  receive_slots_ =
      wanted != 0 ? wanted : std::max(kUsualSlots, device.default_rxportconf.ring_size);
  send_slots_ = wanted != 0 ? wanted : std::max(kUsualSlots, device.default_txportconf.ring_size);
  const int slots = rte_eth_dev_adjust_nb_rx_tx_desc(port_, &receive_slots_, &send_slots_);
  if (slots != 0) return failure(info_.name, "rte_eth_dev_adjust_nb_rx_tx_desc", slots);
  info_.receive_slots = receive_slots_;

  rte_ether_addr mac{};
  rte_eth_macaddr_get(port_, &mac);
  // Rings have none, and no host answers one without.
  if (rte_is_zero_ether_addr(&mac)) {
    const std::uint64_t any = rte_rand();
    memcpy(mac.addr_bytes, &any, sizeof mac.addr_bytes);
    mac.addr_bytes[0] = RTE_ETHER_LOCAL_ADMIN_ADDR;
  }
  std::transform(std::begin(mac.addr_bytes), std::end(mac.addr_bytes), info_.mac.begin(),
                 [](std::uint8_t byte) { return std::byte{byte}; });
  return {};
}

// Some drivers take any size and have no call for it.
Status DpdkPort::set_mtu(std::size_t wanted) {
  std::uint16_t mtu = 0;
  const int asked = rte_eth_dev_get_mtu(port_, &mtu);
  if (asked != 0) return failure(info_.name, "rte_eth_dev_get_mtu", asked);
  info_.mtu = wanted != 0 ? wanted : mtu;
  if (wanted == 0 || wanted == mtu) return {};
  const int set = rte_eth_dev_set_mtu(port_, static_cast<std::uint16_t>(wanted));
  if (set == 0 || set == -ENOTSUP) return {};
  return failure(info_.name, ("an MTU of " + std::to_string(wanted)).c_str(), set);
}

Status DpdkPort::make_pool(const DpdkPortOptions& options) {
  // Larger than what memif's rings have in a slot: then its driver packs a frame's buffers into one
  // slot, instead of using one for each.
  constexpr std::size_t kMore = 64;
  const std::size_t room =
      std::max(info_.mtu + kLinkBytes, longest_frame(info_.driver, options.arguments) + kMore);
  constexpr std::size_t kMax = UINT16_MAX - RTE_PKTMBUF_HEADROOM;
  if (room > kMax) {
    return Status(Code::kInvalidArgument,
                  "the DPDK device " + info_.name +
                      ": framesz=" + argument_of(options.arguments, "framesz") +
                      " is larger than a buffer: " + std::to_string(kMax - kMore) + " at most");
  }
  const unsigned count = receive_slots_ + send_slots_ + kMaxReceived + 3u * kBurst + 2 * kCached;
  const std::string name = "taco_" + std::to_string(port_);
  pool_ = rte_pktmbuf_pool_create(name.c_str(), count, kCached, LentPayload::kPrivateBytes,
                                  static_cast<std::uint16_t>(RTE_PKTMBUF_HEADROOM + room),
                                  rte_eth_dev_socket_id(port_));
  if (pool_ != nullptr) return {};
  return failure(info_.name,
                 ("a pool of " + std::to_string(count) + " buffers of " + std::to_string(room) +
                  " bytes (more huge pages, or fewer slots)")
                     .c_str(),
                 rte_errno);
}

Status DpdkPort::set_up_queues() {
  const auto socket = static_cast<unsigned>(rte_eth_dev_socket_id(port_));
  int done = rte_eth_rx_queue_setup(port_, 0, receive_slots_, socket, nullptr, pool_);
  if (done != 0) return failure(info_.name, "rte_eth_rx_queue_setup", done);
  done = rte_eth_tx_queue_setup(port_, 0, send_slots_, socket, nullptr);
  if (done != 0) return failure(info_.name, "rte_eth_tx_queue_setup", done);
  return {};
}

Status DpdkPort::begin() {
  const int done = rte_eth_dev_start(port_);
  if (done != 0) return failure(info_.name, "rte_eth_dev_start", done);
  on_started();
  return {};
}

// That its server has not come yet is no error: it is looked for again.
void DpdkPort::connect() {
  const QuietMemif quiet(interrupts_->silence());
  if (rte_eth_dev_start(port_) == 0) on_started();
  next_try_ = monotonic_now() + (started_ ? kToConnect : kBetweenTries);
}

void DpdkPort::on_started() {
  started_ = true;
  // Neighbours ask for an IPv6 address by a multicast; a device without the call hears them all.
  if (rte_eth_allmulticast_enable(port_) != 0) rte_eth_promiscuous_enable(port_);
  rte_eth_link link{};
  if (rte_eth_link_get_nowait(port_, &link) == 0 && link.link_speed != RTE_ETH_SPEED_NUM_UNKNOWN) {
    info_.mbits = link.link_speed;
  }
}

// A memif client connects when it starts. A server that had come, and turned the client away
// because it was not ready or is gone again, is looked for anew.
void DpdkPort::look_for_server() {
  if (monotonic_now() < next_try_) return;
  if (started_) {
    const QuietMemif quiet(interrupts_->silence());
    const RingUse use(rings_.get());
    if (!use) return;
    rte_eth_dev_stop(port_);
    started_ = false;
  }
  connect();
}

// One of several devices may fail while engines use others. A device whose rings are not let go of
// stays.
DpdkPort::~DpdkPort() {
  const AsLcore as_lcore;
  if (rings_ != nullptr && !rings_->enter_in_time()) return;
  end();
  if (rings_ != nullptr) rings_->leave();
}

void DpdkPort::end() {
  free_received(received_count_);
  if (started_) rte_eth_dev_stop(port_);
  if (port_ != RTE_MAX_ETHPORTS && (started_ || attached_)) rte_eth_dev_close(port_);
  if (pool_ != nullptr) rte_mempool_free(pool_);
  // Or nobody could make it again.
  if (attached_) rte_eal_hotplug_remove("vdev", info_.name.c_str());
  const auto socket = server_sockets().find(server_socket_);
  if (socket != server_sockets().end()) server_sockets().erase(socket);
}

bool DpdkPort::is_up_st() {
  const AsLcore as_lcore;
  rte_eth_link link{};
  const bool is_up =
      started_ && rte_eth_link_get_nowait(port_, &link) == 0 && link.link_status == RTE_ETH_LINK_UP;
  if (awaits_server_ && is_up) next_try_ = monotonic_now() + kToConnect;
  if (awaits_server_ && !is_up) look_for_server();
  if (interrupts_ != nullptr) interrupts_->let_run(monotonic_now(), !is_up);
  return is_up;
}

// UDP's alone, whose header holds the sum that hardware goes on from (write_udp_headers). IPv4's is
// finished: a device that was asked for it would sum its field up as well, and write another.
void DpdkPort::ask_for_checksum(rte_mbuf& mbuf, const TxFrame& frame) const {
  if (!info_.checksums || frame.ip_bytes == 0) return;
  const bool v4 = frame.ip_bytes == 20;
  mbuf.l2_len = frame.header_bytes - frame.ip_bytes - 8u;
  mbuf.l3_len = frame.ip_bytes;
  mbuf.ol_flags |= RTE_MBUF_F_TX_UDP_CKSUM | (v4 ? RTE_MBUF_F_TX_IPV4 : RTE_MBUF_F_TX_IPV6);
}

// All of the frame in one buffer. Null: there is none.
rte_mbuf* DpdkPort::build_whole(const TxFrame& frame) {
  rte_mbuf* const mbuf = rte_pktmbuf_alloc(pool_);
  if (mbuf == nullptr) return nullptr;
  char* const out =
      rte_pktmbuf_append(mbuf, static_cast<std::uint16_t>(frame.header_bytes + frame.bytes));
  memcpy(out, frame.headers.data(), frame.header_bytes);
  std::size_t at = frame.header_bytes;
  for (const IoSlice& slice : frame.slices) {
    memcpy(out + at, slice.data, slice.bytes);
    at += slice.bytes;
  }
  const bool has_header = frame.slices.size() > 1;
  add(send_copied_, frame.bytes - (has_header ? frame.slices.front().bytes : 0));
  return mbuf;
}

bool DpdkPort::append_attached(rte_mbuf* head, rte_mbuf* last, const IoSlice& slice,
                               TxReference* reference) {
  rte_mbuf* const mbuf = rte_pktmbuf_alloc(pool_);
  if (mbuf == nullptr) return false;
  lent_.attach(*mbuf, slice, reference);
  last->next = mbuf;
  ++head->nb_segs;
  head->pkt_len += mbuf->data_len;
  return true;
}

// The headers, and slices that are short, in a buffer of ours; longer ones are left where they are.
rte_mbuf* DpdkPort::build_attached(const TxFrame& frame) {
  rte_mbuf* const head = rte_pktmbuf_alloc(pool_);
  if (head == nullptr) return nullptr;
  memcpy(rte_pktmbuf_append(head, frame.header_bytes), frame.headers.data(), frame.header_bytes);
  rte_mbuf* last = head;
  for (std::size_t i = 0; i < frame.slices.size(); ++i) {
    const IoSlice& slice = frame.slices[i];
    const bool is_header = i == 0 && frame.slices.size() > 1;
    if (is_header || (last == head && slice.bytes < kWorthAttaching)) {
      memcpy(rte_pktmbuf_append(head, static_cast<std::uint16_t>(slice.bytes)), slice.data,
             slice.bytes);
      if (!is_header) add(send_copied_, slice.bytes);
    } else if (append_attached(head, last, slice, frame.reference)) {
      last = last->next;
    } else {
      rte_pktmbuf_free(head);
      return nullptr;
    }
  }
  return head;
}

rte_mbuf* DpdkPort::build(const TxFrame& frame) {
  const bool stays = info_.payload == FramePayload::kAttached ||
                     (info_.payload == FramePayload::kLent && frame.reference != nullptr);
  rte_mbuf* const mbuf =
      stays && frame.bytes >= kWorthAttaching ? build_attached(frame) : build_whole(frame);
  if (mbuf != nullptr) ask_for_checksum(*mbuf, frame);
  return mbuf;
}

// The number of them, from the front, that the device takes. Some drivers have to change headers
// before hardware goes on from them, and refuse what it could not do.
std::uint16_t DpdkPort::prepare(rte_mbuf** mbufs, std::uint16_t count) const {
  return info_.checksums ? rte_eth_tx_prepare(port_, 0, mbufs, count) : count;
}

void DpdkPort::recall_st(const TxReference* reference) { lent_.recall(reference); }

std::size_t DpdkPort::send_st(std::span<const TxFrame> frames) {
  const RingUse use(rings_.get());
  if (!started_ || !use) return 0;
  const AsLcore as_lcore;
  std::size_t done = 0;
  while (done < frames.size()) {
    std::array<rte_mbuf*, kBurst> mbufs;
    std::uint16_t built = 0;
    const std::size_t most = std::min<std::size_t>(frames.size() - done, kBurst);
    while (built < most && (mbufs[built] = build(frames[done + built])) != nullptr) ++built;
    if (built < most) add(no_memory_, 1);
    const std::uint16_t good = prepare(mbufs.data(), built);
    const std::uint16_t sent = good == 0 ? 0 : rte_eth_tx_burst(port_, 0, mbufs.data(), good);
    rte_pktmbuf_free_bulk(mbufs.data() + sent, built - sent);
    add(frames_sent_, sent);
    done += sent;
    if (sent == good && good < built) {
      add(damaged_, 1);  // the next one, which is lost
      ++done;
    } else if (sent < most) {
      break;
    }
  }
  return done;
}

// The first so many.
void DpdkPort::free_received(std::uint16_t count) {
  rte_pktmbuf_free_bulk(received_.data(), count);
  std::copy(received_.begin() + count, received_.begin() + received_count_, received_.begin());
  received_count_ = static_cast<std::uint16_t>(received_count_ - count);
  handed_out_ = static_cast<std::uint16_t>(handed_out_ - std::min(handed_out_, count));
}

void DpdkPort::release_st() {
  if (handed_out_ == 0) return;
  const RingUse use(rings_.get());
  if (!use) return;
  const AsLcore as_lcore;
  free_received(handed_out_);
}

// False: nothing has come.
bool DpdkPort::receive_burst() {
  if (received_count_ + kBurst > kMaxReceived) return false;
  const std::uint16_t got = rte_eth_rx_burst(port_, 0, received_.data() + received_count_, kBurst);
  received_count_ = static_cast<std::uint16_t>(received_count_ + got);
  add(frames_received_, got);
  return got > 0;
}

// False: it is of no use.
bool DpdkPort::hand_out(rte_mbuf& mbuf, RxFrame& frame) {
  if (mbuf.nb_segs > 1) {
    add(receive_copied_, mbuf.pkt_len - mbuf.data_len);
    if (rte_pktmbuf_linearize(&mbuf) != 0) {
      add(too_large_, 1);
      return false;
    }
  }
  const std::uint64_t checksum = mbuf.ol_flags & RTE_MBUF_F_RX_L4_CKSUM_MASK;
  if (checksum == RTE_MBUF_F_RX_L4_CKSUM_BAD) {
    add(damaged_, 1);
    return false;
  }
  frame = {{rte_pktmbuf_mtod(&mbuf, std::byte*), mbuf.data_len},
           checksum == RTE_MBUF_F_RX_L4_CKSUM_GOOD,
           is_of_vlan(mbuf)};
  return true;
}

std::size_t DpdkPort::receive_st(std::span<RxFrame> frames) {
  const RingUse use(rings_.get());
  if (!started_ || !use) return 0;
  const AsLcore as_lcore;
  std::size_t filled = 0;
  while (filled < frames.size() && (handed_out_ < received_count_ || receive_burst())) {
    if (hand_out(*received_[handed_out_++], frames[filled])) ++filled;
  }
  return filled;
}

FramePortCounters DpdkPort::counters() const {
  const auto now = [](const std::atomic<std::uint64_t>& counter) {
    return counter.load(std::memory_order_relaxed);
  };
  FramePortCounters all;
  all.frames_sent = now(frames_sent_);
  all.frames_received = now(frames_received_);
  all.send_copied = now(send_copied_);
  all.receive_copied = now(receive_copied_);
  all.no_memory = now(no_memory_);
  all.damaged = now(damaged_);
  all.too_large = now(too_large_);
  rte_eth_stats stats{};
  if (rte_eth_stats_get(port_, &stats) == 0) {
    all.no_memory += stats.rx_nombuf;
    all.overflows = stats.imissed;
    all.damaged += stats.ierrors + stats.oerrors;
  }
  return all;
}

}  // namespace taco::harp
