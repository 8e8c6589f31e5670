// One AF_XDP socket: frames of one queue of one interface, by four rings, in memory that the
// interface writes them to and reads them from where its driver can (zero copy), and the kernel
// copies them into and out of elsewhere. Frames have several pieces where the MTU needs them.
//
// Owner thread only, but for dropped().
#pragma once

#include <linux/if_xdp.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mapping.h"
#include "base/own_fd.h"
#include "base/status.h"

namespace taco::harp {

// One of the four rings. The kernel is the other end.
template <class Entry>
class XdpRing {
 public:
  Status map(int fd, std::uint64_t page, const xdp_ring_offset& offsets, std::uint32_t entries);

  // The consumer's side: how many there are, what the i-th of them is, and that some were taken.
  std::uint32_t available() const;
  Entry& at_front(std::uint32_t i) const { return entries_[(consumed_ + i) & mask_]; }
  void take(std::uint32_t count);
  // The producer's side. The owner puts no more into a ring than it has frames for.
  void put(const Entry& entry) { entries_[produced_++ & mask_] = entry; }
  void publish();
  bool is_all_consumed() const;
  std::uint32_t consumed_by_kernel() const;
  bool needs_wakeup() const;

 private:
  Mapping memory_;
  std::uint32_t* producer_ = nullptr;
  std::uint32_t* consumer_ = nullptr;
  std::uint32_t* flags_ = nullptr;
  Entry* entries_ = nullptr;
  std::uint32_t mask_ = 0;
  std::uint32_t produced_ = 0, consumed_ = 0;
};

struct XdpSocketOptions {
  std::uint32_t interface = 0;  // index
  std::uint32_t queue = 0;
  std::size_t frame_bytes = 1514;  // the longest frame, its Ethernet header included
};

class XdpSocket {
 public:
  // With all that it needs but its queue.
  static Result<std::unique_ptr<XdpSocket>> make(const XdpSocketOptions& options);
  // False: somebody has the queue, and it may be asked for again. A former owner may have ended
  // already: the kernel gives a queue up behind the back of who closes its socket.
  Result<bool> take_queue();

  int fd() const { return fd_.get(); }
  bool copies() const { return copies_; }  // the kernel does, for want of zero copy
  // Frames that the kernel keeps for us until they are received: as many datagrams, if no frame
  // takes several pieces.
  static constexpr std::size_t kReceiveFrames = 2048;

  // Frames that can be sent now.
  std::size_t room();
  // Memory for the next one, while there is room. commit() says how long it is.
  std::span<std::byte> next_frame();
  void commit(std::size_t bytes);
  // Has the kernel send what was committed. False: the interface has no room for all of it yet, and
  // wants to be asked again.
  bool flush();

  // The next frame that has arrived; it is valid, and may be written, until give_back(). Frames
  // longer than this socket's are dropped.
  std::optional<std::span<std::byte>> receive();
  void give_back();

  // Frames that found no room, since the start. Any thread.
  std::uint64_t dropped() const;

 private:
  explicit XdpSocket(const XdpSocketOptions& options) : options_(options) {}
  Status create();
  Status make_rings();
  void note_mode();
  bool wants_wakeup() const;
  void reap();
  std::uint64_t chunk_of(std::uint64_t address) const { return address & ~(chunk_bytes_ - 1); }
  std::span<std::byte> gathered(std::uint32_t pieces, std::size_t bytes);

  const XdpSocketOptions options_;
  OwnFd fd_;
  Mapping frames_;
  std::uint64_t chunk_bytes_ = 0;    // of the kernel's pieces
  std::uint64_t chunks_a_slot_ = 0;  // a frame to be sent lies in so many of them, without a gap
  bool copies_ = true;
  XdpRing<std::uint64_t> fill_ring_, completion_ring_;
  XdpRing<xdp_desc> receive_ring_, send_ring_;
  std::vector<std::uint64_t> free_slots_;  // the one used last is used next, while it is warm
  std::vector<std::uint64_t> lent_;        // pieces that the owner reads
  std::vector<std::vector<std::byte>> gathered_;  // frames that came in several pieces
  std::size_t gathered_count_ = 0;
};

}  // namespace taco::harp
