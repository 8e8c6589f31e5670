// Large messages that come.
#include <errno.h>
#include <poll.h>
#include <string.h>

#include <algorithm>

#include "base/log.h"
#include "harp/shm/pair_link.h"
#include "harp/shm/pull.h"

namespace taco::harp {
namespace {

constexpr std::size_t kPullStep = kShmScratchBytes;

bool has_ended(const OwnFd& process) {
  pollfd ended{process.get(), POLLIN, 0};
  return poll(&ended, 1, 0) != 0;
}

}  // namespace

void PairLink::on_inline(const ShmSlotRecord& record, std::span<const std::byte> data) {
  RecvRequest* request = events_->receive_of(record.slot);
  if (request == nullptr) return;
  if (data.size() > request->max_bytes) {
    return events_->receive_finished(record.slot, too_long_for_receive());
  }
  shm_count(host_.stats.messages_received);
  shm_count(host_.stats.bytes_received, data.size());
  if (!data.empty()) request->sink.consume(request->sink, 0, data.data(), data.size());
  request->bytes = data.size();
  events_->receive_finished(record.slot, Status());
}

// Queued rather than copied at once, so that the small records behind it do not wait.
void PairLink::on_piece(const ShmPieceRecord& record) {
  const bool pull = record.head.type == ShmRecordType::kPull;
  const std::size_t blocks = (peer_arena_.size() - kShmFirstBlock) / kShmBlockBytes;
  if (record.bytes == 0 || record.total > kMaxMessageBytes || record.bytes > record.total ||
      record.offset > record.total - record.bytes || (pull && record.send.index >= kShmPulls) ||
      (!pull && (record.bytes > kShmBlockBytes || record.address >= blocks)))
    return damaged();
  // A new pull under an old number: the older one was withdrawn. And no more pieces can wait here
  // than a sender has blocks out.
  const auto is_same = [&](const Incoming& one) {
    return one.record.head.type == ShmRecordType::kPull &&
           one.record.send.index == record.send.index;
  };
  const auto is_piece = [](const Incoming& one) {
    return one.record.head.type == ShmRecordType::kPiece;
  };
  if (pull) {
    std::erase_if(incoming_, is_same);
  } else if (std::count_if(incoming_.begin(), incoming_.end(), is_piece) >=
             static_cast<std::ptrdiff_t>(kBlocksOut)) {
    return damaged();
  }
  incoming_.push_back({record, 0});
  work_waits_ = true;
}

void PairLink::give_back(const ShmPieceRecord& record, bool refused) {
  if (record.head.type == ShmRecordType::kPull)
    push_slot(ShmRecordType::kPulled, {}, record.send, 0, refused);
  else
    push_slot(ShmRecordType::kReturned, {}, record.send, record.address, refused);
}

void PairLink::forget(SlotId slot) {
  std::erase_if(incoming_, [&](const Incoming& incoming) {
    if (!(incoming.record.slot == slot)) return false;
    give_back(incoming.record, false);
    return true;
  });
}

// The open receive a piece belongs to. Null when there is none that can take it; the piece has
// been given back then.
RecvRequest* PairLink::receive_for(const ShmPieceRecord& record) {
  RecvRequest* request = events_->receive_of(record.slot);
  if (request != nullptr && record.total <= request->max_bytes) return request;
  give_back(record, request != nullptr);
  if (request != nullptr) {
    events_->receive_finished(record.slot, too_long_for_receive());
  }
  return nullptr;
}

// Before a byte reaches the sink of an open receive: no message has more bytes than it says.
bool PairLink::may_advance(const ShmPieceRecord& record, std::size_t bytes) {
  if (record.slot.index >= progress_.size()) progress_.resize(record.slot.index + 1);
  Progress& progress = progress_[record.slot.index];
  if (progress.generation != record.slot.generation) progress = {record.slot.generation, 0};
  if (progress.bytes <= record.total && bytes <= record.total - progress.bytes) return true;
  damaged();
  return false;
}

// Counts bytes of a message that have reached the sink.
void PairLink::advance(const ShmPieceRecord& record, RecvRequest& request, std::size_t bytes) {
  Progress& progress = progress_[record.slot.index];
  progress.bytes += bytes;
  shm_count(host_.stats.bytes_received, bytes);
  if (progress.bytes != record.total) return;
  shm_count(host_.stats.messages_received);
  request.bytes = record.total;
  events_->receive_finished(record.slot, Status());
}

std::size_t PairLink::take_piece(const ShmPieceRecord& record) {
  RecvRequest* request = receive_for(record);
  if (request == nullptr || !may_advance(record, record.bytes)) return 1;
  const std::byte* data = peer_arena_.data() + kShmFirstBlock + record.address * kShmBlockBytes;
  request->sink.consume(request->sink, record.offset, data, record.bytes);
  give_back(record, false);
  advance(record, *request, record.bytes);
  return record.bytes;
}

bool PairLink::still_valid(const ShmPieceRecord& record) const {
  std::atomic_thread_fence(std::memory_order_acquire);
  return peer_half_->validity[record.send.index].load(std::memory_order_relaxed) ==
         record.send.generation;
}

// Pulls a bounded part of a message, so that small messages can overtake it. Nothing reaches a
// reducing sink before it is certain that the sender still stood by it.
std::size_t PairLink::pull_step(Incoming& incoming, bool* over) {
  const ShmPieceRecord& record = incoming.record;
  *over = true;
  RecvRequest* request = receive_for(record);
  if (request == nullptr || !still_valid(record)) return 1;
  const std::size_t wanted = std::min(kPullStep, record.total - incoming.done);
  if (!may_advance(record, wanted)) return 1;
  const Sink& sink = request->sink;
  std::byte* to = sink.contiguous ? sink.destination + incoming.done : host_.scratch.data();
  std::ptrdiff_t got = shm_pull(process_.pid, to, record.address + incoming.done, wanted);
  // A withdrawn send ends the receive by its own record, which is behind this one in the ring.
  if (!still_valid(record)) return 1;
  if (!process_.watch || has_ended(process_.watch)) {
    // The bytes that were read may be those of another process that got the same number. The
    // verdict comes soon.
    *over = false;
    return 0;
  }
  constexpr auto kLine = static_cast<std::ptrdiff_t>(kLineBytes);
  if (got >= 0 && static_cast<std::size_t>(got) < wanted) got -= got % kLine;
  if (got <= 0) {
    // No such process: it is ending, its memory went first. Harmless to ask it for the rest. And
    // EFAULT is said of this memory alone: a device's, or one kept from the kernel itself.
    const bool never_again = got != -EFAULT;
    if (never_again && got != -ESRCH) {
      host_.why_no_pull = std::string("process_vm_readv: ") + strerror(static_cast<int>(-got));
      TACO_LOG_WARNING("harp", "shared memory: pulling from %s failed, staging instead: %s",
                       describe().c_str(), host_.why_no_pull.c_str());
    }
    push_slot(ShmRecordType::kCannotPull, {}, record.send, incoming.done, never_again);
    return 1;
  }
  const std::size_t bytes = static_cast<std::size_t>(got);
  if (!sink.contiguous) sink.consume(sink, incoming.done, to, bytes);
  shm_count(host_.stats.bytes_pulled, bytes);
  incoming.done += bytes;
  *over = incoming.done == record.total;
  if (*over) give_back(record, false);
  advance(record, *request, bytes);
  return bytes;
}

// One step of one transfer.
std::size_t PairLink::work_in() {
  if (incoming_.empty()) return 0;
  const auto chosen = whose_turn(incoming_, in_turn_,
                                 [](const Incoming& one) { return one.record.bytes - one.done; });
  Incoming incoming = *chosen;
  const bool piece = incoming.record.head.type == ShmRecordType::kPiece;
  if (!piece && has_verdict()) {
    incoming_.erase(chosen);
    return 0;
  }
  bool over = true;
  const std::size_t moved = piece ? take_piece(incoming.record) : pull_step(incoming, &over);
  // A step tells the Matcher, but adds and removes no transfer: `chosen` is still good.
  if (over)
    incoming_.erase(chosen);
  else
    *chosen = incoming;
  return moved;
}

// Pieces that arrived come first: they free the peer's blocks.
std::size_t PairLink::work() {
  if (!reads()) return 0;
  std::size_t moved = work_in();
  if (!has_verdict()) moved += work_out();
  work_waits_ = moved != 0;
  return moved;
}

}  // namespace taco::harp
