#include "harp/drivers/frames/frame_nic.h"

#include <errno.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include <algorithm>

#include "base/descriptors.h"
#include "base/log.h"
#include "base/random.h"
#include "harp/address.h"
#include "harp/drivers/frames/icmp_refusal.h"
#include "harp/drivers/frames/take_datagram.h"

namespace taco::harp {

namespace {

// The charge for a datagram beside its bytes is so much that short ones, too, are counted by the
// slots that they take, of which a device has only so many.
constexpr std::size_t kSlotCharge = 4096;
constexpr std::uint16_t kFirstPort = 49152;  // of those that nobody registers
constexpr int kPortChoices = 64;
constexpr std::size_t kMaxNicPaths = 24;  // a bit each, of 32

Status no_such_address(const Endpoint& address) {
  return Status(Code::kResource, to_string(address) + " is not an address of any device (" +
                                     "TACO_HARP_DPDK says which there are)");
}

// Takes nothing in: what arrives at it is for us, and comes by the device.
void drop_all(int fd) {
  sock_filter none{BPF_RET | BPF_K, 0, 0, 0};
  const sock_fprog program{1, &none};
  setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
}

}  // namespace

Result<std::unique_ptr<FrameNic>> FrameNic::create(const FrameNicOptions& options,
                                                   std::vector<FrameLink> links) {
  std::unique_ptr<FrameNic> nic(new FrameNic(options));
  nic->wires_.reserve(links.size());
  for (FrameLink& link : links) nic->wires_.push_back({std::move(link), {}});
  nic->now_ = options.clock();
  for (const NicOptions::Local& local : options.locals) {
    TACO_RETURN_IF_ERROR(nic->open_address(local));
  }
  nic->size_credit();
  nic->capabilities_.asynchronous_return = std::ranges::any_of(nic->wires_, [](const Wire& wire) {
    return wire.link.port->info().payload == FramePayload::kLent;
  });
  TACO_RETURN_IF_ERROR(nic->alarm_.start(options.poll_always));
  nic->alarm_fd_ = {nic->alarm_.fd(), NicDescriptor::kNoAddress};
  nic->look_at_links();
  return nic;
}

Status FrameNic::open_address(const NicOptions::Local& local) {
  if (paths_.size() == kMaxNicPaths) {
    return Status(Code::kResource, "more than " + std::to_string(kMaxNicPaths) +
                                       " ports at addresses of devices (TACO_PATHS)");
  }
  for (std::size_t wire = 0; wire < wires_.size(); ++wire) {
    for (const FrameLink::Own& own : wires_[wire].link.addresses) {
      if (!same_host_address(own.address, local.address)) continue;
      Place place{wire, {}};
      Endpoint endpoint = local.address;
      TACO_RETURN_IF_ERROR(choose_port(endpoint, &place.kernel_socket));
      const std::size_t mtu = std::min(local.mtu, wires_[wire].link.port->info().mtu);
      addresses_.push_back({endpoint, max_datagram(endpoint, mtu), local.spare});
      paths_.push_back(std::move(place));
      return {};
    }
  }
  return no_such_address(local.address);
}

bool FrameNic::has_address(const Endpoint& endpoint) const {
  return std::ranges::any_of(addresses_,
                             [&](const NicAddress& each) { return each.endpoint == endpoint; });
}

// The kernel chooses where it has the address as well: others use its ports. A port that is given
// is taken or refused.
Status FrameNic::choose_port(Endpoint& endpoint, OwnFd* socket) {
  const int family = sockaddr_of(endpoint)->sa_family;
  OwnFd fd(::socket(family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd && is_shortage(errno)) {
    return Status(Code::kResource, "cannot open a UDP socket beside " + to_string(endpoint) + ": " +
                                       system_error_text(errno));
  }
  if (fd && bind(fd.get(), sockaddr_of(endpoint), endpoint.size) == 0) {
    drop_all(fd.get());
    socklen_t length = sizeof endpoint.bytes;
    getsockname(fd.get(), reinterpret_cast<sockaddr*>(endpoint.bytes.data()), &length);
    *socket = std::move(fd);
    return {};
  }
  const bool is_taken = (fd && errno == EADDRINUSE) || has_address(endpoint);
  if (!is_taken && port_of(endpoint) != 0) return {};
  for (int i = 0; !is_taken && i < kPortChoices; ++i) {
    set_port(endpoint, static_cast<std::uint16_t>(kFirstPort | random_value<std::uint16_t>()));
    if (!has_address(endpoint)) return {};
  }
  return Status(Code::kResource, "the port of " + to_string(endpoint) + " is taken");
}

void FrameNic::size_credit() {
  std::size_t slots = SIZE_MAX;
  for (const Wire& wire : wires_) slots = std::min(slots, wire.link.port->info().receive_slots);
  if (options_.receive_buffer != 0) slots = std::min(slots, options_.receive_buffer / kSlotCharge);
  capabilities_.receive_buffer = std::max<std::size_t>(slots, 1) * kSlotCharge;
  capabilities_.packet_overhead = kSlotCharge;
}

std::size_t FrameNic::receive_st(std::span<RxPacket> packets) {
  if (closed_) return 0;
  now_ = options_.clock();
  if (now_ - links_looked_at_ >= kLookAtLinks) look_at_links();
  packets = packets.first(std::min(packets.size(), kReceiveBurst));
  for (const Wire& wire : wires_) wire.link.port->release_st();
  std::size_t filled = 0;
  // Behind the one that filled the last burst, so that none can keep the others from being heard.
  for (std::size_t i = 0, first = next_receive_; i < wires_.size() && filled < packets.size();
       ++i) {
    const std::size_t index = (first + i) % wires_.size();
    filled = receive_from(index, packets, filled);
    if (filled == packets.size()) next_receive_ = (index + 1) % wires_.size();
    ask_neighbours(wires_[index]);
  }
  if (filled < packets.size()) alarm_.set(now_);
  return filled;
}

// Goes on until the device has nothing more: frames for others may lie before some for us. A flood
// of them does not keep the engine from its other work; the alarm goes off soon after traffic.
// Returns how many packets are filled then.
std::size_t FrameNic::receive_from(std::size_t wire, std::span<RxPacket> packets,
                                   std::size_t filled) {
  FramePort& port = *wires_[wire].link.port;
  std::size_t seen = 0;
  while (filled < packets.size() && seen < FramePort::kMaxHeld) {
    std::array<RxFrame, kReceiveBurst> frames;
    const std::size_t asked = std::min(packets.size() - filled, FramePort::kMaxHeld - seen);
    const std::size_t got = port.receive_st(std::span(frames).first(asked));
    for (const RxFrame& frame : std::span(frames).first(got)) {
      if (accept(wire, frame, packets[filled], sources_[filled])) ++filled;
    }
    seen += got;
    if (got < asked) break;
  }
  if (seen > 0) alarm_.on_traffic(now_);
  return filled;
}

// True: a datagram for one of our ports.
bool FrameNic::accept(std::size_t wire, const RxFrame& frame, RxPacket& packet, Endpoint& source) {
  const auto path_at = [&](const Endpoint& destination) -> std::optional<std::uint32_t> {
    for (std::uint32_t path = 0; path < paths_.size(); ++path) {
      if (paths_[path].wire == wire && addresses_[path].endpoint == destination) return path;
    }
    return std::nullopt;
  };
  const std::span own(&wires_[wire].link.port->info().mac, 1);
  switch (take_datagram(frame, own, path_at, packet, source)) {
    case TakenFrame::kDatagram:
      return true;
    case TakenFrame::kForOthers:
      ++drops_.for_others;
      return false;
    case TakenFrame::kDamaged:
      ++drops_.damaged;
      return false;
    case TakenFrame::kOther:
      on_other(wires_[wire], frame.bytes);
      return false;
  }
  return false;
}

void FrameNic::on_other(Wire& wire, std::span<const std::byte> frame) {
  if (const auto message = parse_neighbour_message(frame)) {
    if (message->kind == NeighbourMessage::Kind::kSolicitation) {
      on_solicitation(wire, *message);
    } else {
      wire.neighbours.on_answer(message->subject, message->mac, now_);
      send_waiting(wire);
    }
    return;
  }
  auto refused = parse_icmp_refusal(frame);
  if (refused && has_address(refused->source)) {
    refusals_.push_back(std::move(refused->refusal));
  } else {
    ++drops_.for_others;
  }
}

void FrameNic::on_solicitation(Wire& wire, const NeighbourMessage& message) {
  const auto& ours = wire.link.addresses;
  const auto is_senders_network = [&](const FrameLink::Own& each) {
    return !is_nobodys(message.sender) && same_network(each.address, message.sender, each.prefix);
  };
  // RFC 826: a known host's question says where it is now, whatever it is about. A router that
  // takes over from another asks about itself, and so does a host whose interface was exchanged.
  // Over IPv6 they advertise instead, and a question about others is not to be heard (RFC 4861).
  if (!is_ipv6(message.sender) && std::ranges::any_of(ours, is_senders_network)) {
    wire.neighbours.on_answer(message.sender, message.mac, now_);
    send_waiting(wire);
  }
  const auto own = std::ranges::find_if(ours, [&](const FrameLink::Own& each) {
    return same_host_address(each.address, message.subject);
  });
  if (own == ours.end()) {
    ++drops_.for_others;
    return;
  }
  std::array<std::byte, kMaxNeighbourFrame> answer;
  const std::size_t bytes =
      write_advertisement(wire.link.port->info().mac, own->address, message, answer);
  send_message(wire, std::span(answer).first(bytes));
  if (is_senders_network(*own)) {
    wire.neighbours.on_question_from(message.sender, message.mac, now_);
    send_waiting(wire);
  }
}

void FrameNic::ask_neighbours(Wire& wire) {
  for (const Endpoint& host : wire.neighbours.take_questions(now_)) {
    for (const FrameLink::Own& own : wire.link.addresses) {
      if (!same_network(own.address, host, own.prefix)) continue;
      std::array<std::byte, kMaxNeighbourFrame> question;
      const std::size_t bytes =
          write_solicitation(wire.link.port->info().mac, own.address, host, question);
      send_message(wire, std::span(question).first(bytes));
      break;
    }
  }
}

void FrameNic::look_at_links() {
  links_looked_at_ = now_;
  missing_ = 0;
  for (std::size_t i = 0; i < wires_.size(); ++i) {
    Wire& wire = wires_[i];
    wire.is_up = wire.link.port->is_up_st();
    wire.was_up |= wire.is_up;
    if (wire.is_up || !wire.was_up) continue;
    for (std::size_t path = 0; path < paths_.size(); ++path) {
      if (paths_[path].wire == i) missing_ |= 1u << path;
    }
  }
  std::erase_if(waiting_, [&](const Waiting& each) {
    const bool is_late = now_ - each.since > kMaxWait;
    drops_.no_neighbour += is_late ? 1 : 0;
    return is_late;
  });
}

void FrameNic::close_st() {
  if (std::exchange(closed_, true)) return;
  report();
  for (const Wire& wire : wires_) wire.link.port->recall_st(nullptr);
  paths_.clear();
  waiting_.clear();
  wires_.clear();
}

void FrameNic::report() const {
  for (const Wire& wire : wires_) {
    const FramePortCounters all = wire.link.port->counters();
    if (all == FramePortCounters{}) continue;
    TACO_LOG_INFO("harp",
                  "%s: %llu frames sent, %llu received; bytes copied before they left %llu, after "
                  "they arrived %llu; frames lost: no buffer %llu, no slot %llu, damaged %llu",
                  wire.link.name.c_str(), static_cast<unsigned long long>(all.frames_sent),
                  static_cast<unsigned long long>(all.frames_received),
                  static_cast<unsigned long long>(all.send_copied),
                  static_cast<unsigned long long>(all.receive_copied),
                  static_cast<unsigned long long>(all.no_memory),
                  static_cast<unsigned long long>(all.overflows),
                  static_cast<unsigned long long>(all.damaged));
  }
  if (drops_ == FrameDrops{}) return;
  TACO_LOG_INFO("harp",
                "datagrams dropped: damaged %llu, for others %llu, link down %llu, no route %llu, "
                "no answer from the neighbour %llu, no slot after it %llu, too large %llu",
                static_cast<unsigned long long>(drops_.damaged),
                static_cast<unsigned long long>(drops_.for_others),
                static_cast<unsigned long long>(drops_.link_down),
                static_cast<unsigned long long>(drops_.no_route),
                static_cast<unsigned long long>(drops_.no_neighbour),
                static_cast<unsigned long long>(drops_.ring_full),
                static_cast<unsigned long long>(drops_.too_large));
}

std::uint64_t FrameNic::overflows() const {
  return overflows_.get(options_.clock(), [this] {
    std::uint64_t total = 0;
    for (const Wire& wire : wires_) {
      const FramePortCounters all = wire.link.port->counters();
      total += all.overflows + all.no_memory;
    }
    return total;
  });
}

}  // namespace taco::harp
