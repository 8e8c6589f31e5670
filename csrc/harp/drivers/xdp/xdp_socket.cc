#include "harp/drivers/xdp/xdp_socket.h"

#include <errno.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <string>
#include <utility>

#include "base/assert.h"
#include "base/descriptors.h"

namespace taco::harp {

namespace {

// Newer than the headers of the systems that this is built on: since Linux 6.6.
constexpr std::uint16_t kUseSeveralPieces = 1 << 4;  // XDP_USE_SG
constexpr std::uint32_t kMorePieces = 1 << 0;        // XDP_PKT_CONTD

constexpr std::uint64_t kSmallChunk = 2048, kLargeChunk = 4096;  // a page is the most
constexpr std::uint64_t kHeadroom = 256;  // that the kernel keeps before a frame that arrives
constexpr std::uint32_t kRingEntries = 2048;
constexpr std::size_t kSendSlots = 512;
constexpr std::size_t kReceiveBurstFrames = 16;
constexpr int kXdpSendBuffer = 4 << 20;
// One call sends at most 32 frames.
constexpr int kFlushCalls = 2 * kRingEntries / 32;

std::uint32_t load_index(std::uint32_t* index) {
  return std::atomic_ref(*index).load(std::memory_order_acquire);
}

void store_index(std::uint32_t* index, std::uint32_t value) {
  std::atomic_ref(*index).store(value, std::memory_order_release);
}

Status xdp_failure(const std::string& what) {
  const int error = errno;
  std::string text = what + ": " + system_error_text(error);
  if (error == EPERM || error == EACCES) text += " (needs CAP_NET_RAW, or root)";
  if (error == EAFNOSUPPORT) text += " (this kernel is built without AF_XDP: CONFIG_XDP_SOCKETS)";
  if (error == ENOBUFS) text += " (more locked memory than `ulimit -l` allows)";
  return Status(Code::kResource, text);
}

template <class Value>
bool set_xdp_option(int fd, int name, const Value& value) {
  return setsockopt(fd, SOL_XDP, name, &value, sizeof value) == 0;
}

}  // namespace

template <class Entry>
Status XdpRing<Entry>::map(int fd, std::uint64_t page, const xdp_ring_offset& offsets,
                           std::uint32_t entries) {
  auto memory = Mapping::of_file(fd, offsets.desc + entries * sizeof(Entry),
                                 Mapping::Access::kReadWrite, page);
  if (!memory.ok()) return memory.status().with_prefix("a ring of an AF_XDP socket: ");
  memory_ = std::move(memory).value();
  producer_ = reinterpret_cast<std::uint32_t*>(memory_.data() + offsets.producer);
  consumer_ = reinterpret_cast<std::uint32_t*>(memory_.data() + offsets.consumer);
  flags_ = reinterpret_cast<std::uint32_t*>(memory_.data() + offsets.flags);
  entries_ = reinterpret_cast<Entry*>(memory_.data() + offsets.desc);
  mask_ = entries - 1;
  return {};
}

template <class Entry>
std::uint32_t XdpRing<Entry>::available() const {
  return load_index(producer_) - consumed_;
}

template <class Entry>
void XdpRing<Entry>::take(std::uint32_t count) {
  consumed_ += count;
  store_index(consumer_, consumed_);
}

template <class Entry>
void XdpRing<Entry>::publish() {
  store_index(producer_, produced_);
}

template <class Entry>
bool XdpRing<Entry>::is_all_consumed() const {
  return load_index(consumer_) == produced_;
}

template <class Entry>
std::uint32_t XdpRing<Entry>::consumed_by_kernel() const {
  return load_index(consumer_);
}

template <class Entry>
bool XdpRing<Entry>::needs_wakeup() const {
  return (load_index(flags_) & XDP_RING_NEED_WAKEUP) != 0;
}

Result<std::unique_ptr<XdpSocket>> XdpSocket::make(const XdpSocketOptions& options) {
  std::unique_ptr<XdpSocket> made(new XdpSocket(options));
  TACO_RETURN_IF_ERROR(made->create());
  TACO_RETURN_IF_ERROR(made->make_rings());
  return made;
}

Status XdpSocket::create() {
  const bool is_small = options_.frame_bytes + kHeadroom <= kSmallChunk;
  chunk_bytes_ = is_small ? kSmallChunk : kLargeChunk;
  chunks_a_slot_ = (options_.frame_bytes + chunk_bytes_ - 1) / chunk_bytes_;
  fd_ = OwnFd(socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0));
  if (!fd_) return xdp_failure("cannot open an AF_XDP socket");
  if (setsockopt(fd_.get(), SOL_SOCKET, SO_SNDBUFFORCE, &kXdpSendBuffer, sizeof kXdpSendBuffer) !=
      0) {
    setsockopt(fd_.get(), SOL_SOCKET, SO_SNDBUF, &kXdpSendBuffer, sizeof kXdpSendBuffer);
  }
  const std::size_t chunks = kReceiveFrames + kSendSlots * chunks_a_slot_;
  auto frames = Mapping::anonymous(chunks * chunk_bytes_);
  if (!frames.ok()) return frames.status().with_prefix("frames of an AF_XDP socket: ");
  frames_ = std::move(frames).value();
  xdp_umem_reg memory{};
  memory.addr = reinterpret_cast<std::uint64_t>(frames_.data());
  memory.len = frames_.size();
  memory.chunk_size = static_cast<std::uint32_t>(chunk_bytes_);
  if (!set_xdp_option(fd_.get(), XDP_UMEM_REG, memory)) {
    return xdp_failure("the kernel takes no memory for an AF_XDP socket");
  }
  return {};
}

Status XdpSocket::make_rings() {
  const int fd = fd_.get();
  for (const int ring : {XDP_UMEM_FILL_RING, XDP_UMEM_COMPLETION_RING, XDP_RX_RING, XDP_TX_RING}) {
    if (!set_xdp_option(fd, ring, kRingEntries)) return xdp_failure("no ring of an AF_XDP socket");
  }
  xdp_mmap_offsets offsets{};
  socklen_t length = sizeof offsets;
  if (getsockopt(fd, SOL_XDP, XDP_MMAP_OFFSETS, &offsets, &length) != 0 ||
      length != sizeof offsets) {
    return xdp_failure("rings of an AF_XDP socket lie elsewhere (Linux 5.4 or newer is needed)");
  }
  TACO_RETURN_IF_ERROR(fill_ring_.map(fd, XDP_UMEM_PGOFF_FILL_RING, offsets.fr, kRingEntries));
  TACO_RETURN_IF_ERROR(
      completion_ring_.map(fd, XDP_UMEM_PGOFF_COMPLETION_RING, offsets.cr, kRingEntries));
  TACO_RETURN_IF_ERROR(receive_ring_.map(fd, XDP_PGOFF_RX_RING, offsets.rx, kRingEntries));
  TACO_RETURN_IF_ERROR(send_ring_.map(fd, XDP_PGOFF_TX_RING, offsets.tx, kRingEntries));
  static_assert(kReceiveFrames <= kRingEntries);
  for (std::uint64_t chunk = 0; chunk < kReceiveFrames; ++chunk) {
    fill_ring_.put(chunk * chunk_bytes_);
  }
  fill_ring_.publish();
  // Frames of several pieces take several entries.
  const std::uint64_t slots = std::min<std::uint64_t>(kSendSlots, kRingEntries / chunks_a_slot_);
  for (std::uint64_t slot = slots; slot-- > 0;) {
    free_slots_.push_back((kReceiveFrames + slot * chunks_a_slot_) * chunk_bytes_);
  }
  gathered_.resize(kReceiveBurstFrames);
  return {};
}

Result<bool> XdpSocket::take_queue() {
  sockaddr_xdp address{};
  address.sxdp_family = AF_XDP;
  address.sxdp_ifindex = options_.interface;
  address.sxdp_queue_id = options_.queue;
  address.sxdp_flags = XDP_USE_NEED_WAKEUP;  // without copies if the driver can
  const bool takes_pieces = options_.frame_bytes + kHeadroom > chunk_bytes_;
  // The kernel gives the pieces of a frame back together when it has copied them.
  if (takes_pieces) address.sxdp_flags |= XDP_COPY | kUseSeveralPieces;
  if (bind(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
    note_mode();
    return true;
  }
  if (errno == EBUSY) return false;
  const std::string queue = "queue " + std::to_string(options_.queue);
  if (errno == EINVAL && takes_pieces) {
    return Status(Code::kResource,
                  queue + " takes no frames of several pieces, as an MTU of " +
                      std::to_string(options_.frame_bytes) + " bytes needs: lower it to " +
                      std::to_string(kLargeChunk - kHeadroom - 18) + ", or use Linux 6.6 or newer");
  }
  return xdp_failure("cannot bind an AF_XDP socket to " + queue);
}

void XdpSocket::note_mode() {
  xdp_options bound{};
  socklen_t length = sizeof bound;
  const bool is_known = getsockopt(fd_.get(), SOL_XDP, XDP_OPTIONS, &bound, &length) == 0;
  copies_ = !is_known || (bound.flags & XDP_OPTIONS_ZEROCOPY) == 0;
}

// A slot is free when its first piece is: all pieces of a frame come back together.
void XdpSocket::reap() {
  const std::uint32_t done = completion_ring_.available();
  if (done == 0) return;
  const std::uint64_t first = kReceiveFrames * chunk_bytes_;
  for (std::uint32_t i = 0; i < done; ++i) {
    const std::uint64_t address = completion_ring_.at_front(i);
    TACO_ASSERT(address >= first);
    if ((address - first) % (chunks_a_slot_ * chunk_bytes_) == 0) free_slots_.push_back(address);
  }
  completion_ring_.take(done);
}

std::size_t XdpSocket::room() {
  reap();
  return free_slots_.size();
}

std::span<std::byte> XdpSocket::next_frame() {
  TACO_ASSERT(!free_slots_.empty());
  return {frames_.data() + free_slots_.back(), options_.frame_bytes};
}

void XdpSocket::commit(std::size_t bytes) {
  TACO_ASSERT(bytes > 0 && bytes <= options_.frame_bytes);
  std::uint64_t address = free_slots_.back();
  free_slots_.pop_back();
  while (bytes > 0) {
    const std::size_t piece = std::min<std::size_t>(bytes, chunk_bytes_);
    bytes -= piece;
    send_ring_.put({address, static_cast<std::uint32_t>(piece), bytes > 0 ? kMorePieces : 0});
    address += piece;
  }
}

bool XdpSocket::wants_wakeup() const {
  return !send_ring_.is_all_consumed() && send_ring_.needs_wakeup();
}

// The kernel says EAGAIN when it has sent as many as it does at once, and when memory for more is
// still on its way: in the second case asking again does not help. An interface that reads frames
// where they lie goes on by itself, unless it says that it does not.
bool XdpSocket::flush() {
  send_ring_.publish();
  for (int calls = 0; calls < kFlushCalls && wants_wakeup(); ++calls) {
    const std::uint32_t before = send_ring_.consumed_by_kernel();
    const ssize_t sent = sendto(fd_.get(), nullptr, 0, MSG_DONTWAIT, nullptr, 0);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) return false;
    if (send_ring_.consumed_by_kernel() == before) return !wants_wakeup();
  }
  return !wants_wakeup();
}

// A frame that came in several pieces becomes one: the kernel keeps room before each piece.
std::span<std::byte> XdpSocket::gathered(std::uint32_t pieces, std::size_t bytes) {
  std::vector<std::byte>& whole = gathered_[gathered_count_++];
  whole.resize(std::max(whole.size(), options_.frame_bytes));
  std::size_t at = 0;
  for (std::uint32_t i = 0; i < pieces; ++i) {
    const xdp_desc& piece = receive_ring_.at_front(i);
    std::ranges::copy(std::span(frames_.data() + piece.addr, piece.len),
                      whole.begin() + static_cast<std::ptrdiff_t>(at));
    at += piece.len;
  }
  return std::span(whole).first(bytes);
}

std::optional<std::span<std::byte>> XdpSocket::receive() {
  for (;;) {
    if (gathered_count_ == gathered_.size()) return std::nullopt;
    const std::uint32_t there = receive_ring_.available();
    std::uint32_t pieces = 0;
    std::size_t bytes = 0;
    bool is_whole = false;
    while (pieces < there && !is_whole) {
      const xdp_desc& piece = receive_ring_.at_front(pieces++);
      bytes += piece.len;
      is_whole = (piece.options & kMorePieces) == 0;
    }
    if (!is_whole) return std::nullopt;
    std::span<std::byte> frame;
    if (pieces == 1) {
      const xdp_desc& only = receive_ring_.at_front(0);
      frame = {frames_.data() + only.addr, only.len};
    } else if (bytes <= options_.frame_bytes) {
      frame = gathered(pieces, bytes);
    }
    for (std::uint32_t i = 0; i < pieces; ++i) {
      lent_.push_back(chunk_of(receive_ring_.at_front(i).addr));
    }
    receive_ring_.take(pieces);
    if (!frame.empty()) return frame;
  }
}

void XdpSocket::give_back() {
  gathered_count_ = 0;
  if (lent_.empty()) return;
  for (const std::uint64_t chunk : lent_) fill_ring_.put(chunk);
  lent_.clear();
  fill_ring_.publish();
  if (fill_ring_.needs_wakeup()) recv(fd_.get(), nullptr, 0, MSG_DONTWAIT);
}

std::uint64_t XdpSocket::dropped() const {
  xdp_statistics seen{};
  socklen_t length = sizeof seen;
  if (getsockopt(fd_.get(), SOL_XDP, XDP_STATISTICS, &seen, &length) != 0) return 0;
  return seen.rx_dropped + seen.rx_ring_full + seen.rx_fill_ring_empty_descs;
}

}  // namespace taco::harp
