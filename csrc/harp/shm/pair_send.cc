// Large messages that leave.
#include <algorithm>
#include <cstring>

#include "base/assert.h"
#include "harp/shm/pair_link.h"
#include "kernels/kernels.h"

namespace taco::harp {
namespace {

constexpr std::size_t kShmLeastPull = 64 * 1024;

}  // namespace

PairLink::Send& PairLink::open_send(SendRequest& request, SlotId slot, std::uint32_t* index) {
  if (free_sends_.empty()) {
    free_sends_.push_back(static_cast<std::uint32_t>(sends_.size()));
    sends_.emplace_back();
  }
  *index = free_sends_.back();
  free_sends_.pop_back();
  Send& send = sends_[*index];
  send.request = &request;
  send.slot = slot;
  send.offset = 0;
  send.blocks_out = 0;
  return send;
}

void PairLink::close_send(std::uint32_t index) {
  Send& send = sends_[index];
  send.stage.go(PairSendStage::kFree);
  send.request = nullptr;
  if (++send.generation == 0) send.generation = 1;
  free_sends_.push_back(index);
}

PairLink::Send* PairLink::find_send(ShmSendId id) {
  if (id.index >= sends_.size()) return nullptr;
  Send& send = sends_[id.index];
  return send.generation == id.generation && !send.stage.is(PairSendStage::kFree) ? &send : nullptr;
}

void PairLink::finish(SendRequest& request, const Status& status) {
  finished_.push_back({&request, status});
}

void PairLink::bulk(SendRequest& request, SlotId slot, bool) {
  shm_count(host_.stats.messages_sent);
  shm_count(host_.stats.bytes_sent, request.bytes);
  if (request.bytes <= kShmEagerBytes) {
    ShmSlotRecord record;
    record.head.type = ShmRecordType::kInline;
    record.head.bytes = static_cast<std::uint32_t>(request.bytes);
    record.slot = slot;
    push(&record, sizeof record, {static_cast<const std::byte*>(request.data), request.bytes});
    shm_count(host_.stats.bytes_staged, request.bytes);
    return finish(request, Status());
  }
  std::uint32_t index;
  open_send(request, slot, &index);
  if (index < kShmPulls && prefers_pull(request, slot))
    start_pull(index);
  else
    queue(index);
}

void PairLink::note_want(SlotId slot, bool places) {
  constexpr std::size_t kMaxSlots = 1 << 20;  // beyond, nothing is remembered
  if (slot.index >= kMaxSlots) return;
  if (slot.index >= places_.size()) places_.resize(slot.index + 1);
  places_[slot.index] = places;
}

// Measured on two cores, us of CPU of both sides for a MiB, messages of 64 KiB to 16 MiB:
//                        placed: arena  pull   added: arena  pull
//   tensors on 4 KiB pages      240     285           230    355
//   tensors on huge pages       220     175           200    210
// The kernel looks up every page of a pull, which costs more than the second copy unless pages are
// huge. And three readers of one staged copy cost less than three pulls. So a pull pays where
// tensors are on huge pages by default, for a plain copy to a single peer.
bool PairLink::prefers_pull(const SendRequest& request, SlotId slot) const {
  if (!peer_pulls_) return false;
  if (host_.pull == ShmPull::kAlways) return true;
  return host_.huge_pages && request.staging == nullptr && request.bytes >= kShmLeastPull &&
         slot.index < places_.size() && places_[slot.index];
}

void PairLink::start_pull(std::uint32_t index) {
  Send& send = sends_[index];
  send.stage.go(PairSendStage::kPulled);
  half_->validity[index].store(send.generation, std::memory_order_relaxed);
  ShmPieceRecord record;
  record.head.type = ShmRecordType::kPull;
  record.send = {index, send.generation};
  record.slot = send.slot;
  record.total = record.bytes = send.request->bytes;
  record.address = reinterpret_cast<std::uint64_t>(send.request->data);
  push(&record, sizeof record);
}

void PairLink::queue(std::uint32_t index) {
  sends_[index].stage.go(PairSendStage::kQueued);
  queue_.push_back(index);
  work_waits_ = true;
}

void PairLink::unqueue(std::uint32_t index) {
  const auto queued = std::find(queue_.begin(), queue_.end(), index);
  TACO_ASSERT(queued != queue_.end());
  queue_.erase(queued);
}

// One step of one queued send.
std::size_t PairLink::work_out() {
  if (queue_.empty() || !outbox_.empty() || blocks_out_ == kBlocksOut) return 0;
  return stage_piece(*whose_turn(queue_, out_turn_, [&](std::uint32_t index) {
    return sends_[index].request->bytes - sends_[index].offset;
  }));
}

// Copies the next piece of a send into a block and describes it to the peer.
std::size_t PairLink::stage_piece(std::uint32_t index) {
  Send& send = sends_[index];
  ShmPieceRecord record;
  std::byte* room = reserve(sizeof record);
  if (room == nullptr) return 0;
  const std::uint32_t block = block_for(send);
  if (block == ShmBlocks::kNone) {
    if (host_.blocks->in_use() != 0) return 0;  // some will come back
    unqueue(index);
    finish(*send.request, host_.blocks->shortage());
    close_send(index);
    return 0;
  }
  SendRequest& request = *send.request;
  record.head.type = ShmRecordType::kPiece;
  record.send = {index, send.generation};
  record.slot = send.slot;
  record.total = request.bytes;
  record.offset = send.offset;
  record.bytes = std::min(kShmBlockBytes, request.bytes - send.offset);
  record.address = block;
  std::memcpy(room, &record, sizeof record);
  ring_out_->commit();
  dirty_ = true;
  TACO_ASSERT(blocks_out_ < kBlocksOut);
  send.blocks[send.blocks_out++] = block;
  blocks_out_++;
  send.offset += record.bytes;
  if (send.offset == request.bytes) {
    unqueue(index);
    send.stage.go(PairSendStage::kCopied);
    send.request = nullptr;
    finish(request, Status());
  }
  return record.bytes;
}

// The block that holds the send's next piece, with a reference for the peer. Members of a family
// find it filled when another was here first.
std::uint32_t PairLink::block_for(Send& send) {
  const SendRequest& request = *send.request;
  std::uint32_t* shared = nullptr;
  if (request.staging != nullptr && send.offset % kShmBlockBytes == 0 &&
      request.bytes <= ShmStaged::kMaxBlocks * kShmBlockBytes) {
    Staging& staging = *request.staging;
    if (staging.block == nullptr) staging.block = host_.blocks->stage();
    shared = &static_cast<ShmStaged*>(staging.block)->blocks[send.offset / kShmBlockBytes];
    if (*shared != ShmBlocks::kNone) {
      host_.blocks->add_reference(*shared);
      return *shared;
    }
  }
  const std::uint32_t block = host_.blocks->take();
  if (block == ShmBlocks::kNone) return block;
  const std::size_t bytes = std::min(kShmBlockBytes, request.bytes - send.offset);
  kernels::copy(host_.blocks->data(block),
                static_cast<const std::byte*>(request.data) + send.offset, bytes);
  shm_count(host_.stats.bytes_staged, bytes);
  if (shared != nullptr) {
    host_.blocks->add_reference(block);
    *shared = block;
  }
  return block;
}

void PairLink::release(Staging& staging) { shm_release(host_, staging); }

void PairLink::on_returned(ShmSendId id, std::uint64_t block) {
  Send* send = find_send(id);
  if (send == nullptr) return;
  std::uint32_t* end = send->blocks + send->blocks_out;
  std::uint32_t* found = std::find(send->blocks, end, block);
  if (found == end) return;
  TACO_ASSERT(blocks_out_ >= send->blocks_out);
  host_.blocks->drop(*found);
  *found = send->blocks[--send->blocks_out];
  blocks_out_--;
  if (send->blocks_out == 0 && send->stage.is(PairSendStage::kCopied)) close_send(id.index);
}

void PairLink::on_pulled(ShmSendId id, bool refused) {
  Send* send = find_send(id);
  if (send == nullptr || !send->stage.is(PairSendStage::kPulled)) return;
  half_->validity[id.index].store(0, std::memory_order_relaxed);
  finish(*send->request,
         refused ? Status(Code::kAborted, "the receiver could not take the message") : Status());
  close_send(id.index);
}

// The peer cannot read this memory, or has lost its right to read any of ours: the rest goes
// through the arena.
void PairLink::on_cannot_pull(ShmSendId id, std::uint64_t offset, bool never_again) {
  if (never_again) peer_pulls_ = false;
  Send* send = find_send(id);
  if (send == nullptr || !send->stage.is(PairSendStage::kPulled)) return;
  half_->validity[id.index].store(0, std::memory_order_relaxed);
  if (offset >= send->request->bytes) return damaged();
  send->offset = offset;
  queue(id.index);
}

void PairLink::withdraw(SendRequest& request) {
  std::erase_if(finished_, [&](const Finished& one) { return one.request == &request; });
  for (std::uint32_t index = 0; index < sends_.size(); index++) {
    Send& send = sends_[index];
    if (send.request != &request) continue;
    if (send.stage.is(PairSendStage::kPulled)) {
      // Before the caller may write there: a peer that reads now will look here afterwards.
      half_->validity[index].store(0, std::memory_order_relaxed);
      std::atomic_thread_fence(std::memory_order_seq_cst);
      return close_send(index);
    }
    unqueue(index);
    send.request = nullptr;
    send.stage.go(PairSendStage::kCopied);
    if (send.blocks_out == 0) close_send(index);
    return;
  }
}

// The peer is gone: nobody reads the blocks any more.
void PairLink::drop_sends() {
  for (std::uint32_t index = 0; index < sends_.size(); index++) {
    Send& send = sends_[index];
    if (send.stage.is(PairSendStage::kFree)) continue;
    if (send.stage.is(PairSendStage::kPulled))
      half_->validity[index].store(0, std::memory_order_relaxed);
    for (int i = 0; i < send.blocks_out; i++) host_.blocks->drop(send.blocks[i]);
    blocks_out_ -= send.blocks_out;
    close_send(index);
  }
  queue_.clear();
  TACO_ASSERT(blocks_out_ == 0);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

}  // namespace taco::harp
