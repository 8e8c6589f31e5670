#include "pg/execution/executor.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/timeline.h"
#include "pg/execution/trace.h"

namespace taco::pg {

using harp::RecvRequest;
using harp::SendRequest;

// Whether the outputs are larger than a processor's own caches.
static bool has_cold_output(const OperationSpec& spec) {
  constexpr std::size_t kOwnCaches = std::size_t{4} << 20;
  std::size_t bytes = 0;
  for (const Piece& piece : spec.outputs) bytes += piece.bytes;
  return bytes >= kOwnCaches;
}

void Execution::start_st(harp::Engine& engine, ExecutionOwner& owner, GroupView& group,
                         OperationState& operation, std::shared_ptr<const Schedule> schedule,
                         ScratchBlock scratch) {
  engine_ = &engine;
  transport_ = &engine.transport();
  owner_ = &owner;
  group_ = &group;
  operation_ = &operation;
  schedule_ = std::move(schedule);
  scratch_ = scratch;
  sequence_ = operation.sequence();
  stage_ = operation.stage;
  signature_ = operation.signature;
  element_bytes_ = kernels::size_of(operation.spec.dtype);
  reduce_ = kernels::reduce_function(operation.spec.op, operation.spec.dtype);
  failing_ = finished_ = false;
  cold_output_ = has_cold_output(operation.spec);
  prepare();
  busy_ = true;
  for (std::uint32_t i = 0; i < schedule_->steps.size() && !failing_; ++i)
    if (schedule_->steps[i].dependencies == 0) make_ready(i);
  busy_ = false;
  pump();
  finish_if_done();
}

void Execution::prepare() {
  const auto& steps = schedule_->steps;
  const auto count = static_cast<std::uint32_t>(steps.size());
  remaining_.resize(count);
  position_.resize(count);
  state_.assign(count, State::kWaiting);
  if (slots_.size() < schedule_->transfers.size()) slots_.resize(schedule_->transfers.size());
  sends_ = Lane{std::move(sends_.steps)};
  receives_ = Lane{std::move(receives_.steps)};
  sends_.steps.clear();
  receives_.steps.clear();
  local_.clear();
  local_head_ = local_offset_ = 0;
  coding_.reset();
  lengths_.assign(schedule_->lengths.size(), {0, group_->rank});
  steps_left_ = callers_steps_left_ = count;
  std::uint32_t families = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    const Step& step = steps[i];
    remaining_[i] = step.dependencies;
    if (step.outlives_operation()) --callers_steps_left_;
    if (step.transfers == 0) continue;
    Lane& lane = step.is_receive() ? receives_ : sends_;
    position_[i] = static_cast<std::uint32_t>(lane.steps.size());
    lane.steps.push_back(i);
    if (step.transfers > 1) ++families;
  }
  sends_.limit = schedule_->send_window;
  receives_.limit = schedule_->receive_window;
  if (families > 0) {
    families_.assign(families, {});
    family_of_.resize(count);
    families = 0;
    for (std::uint32_t i = 0; i < count; ++i)
      if (steps[i].transfers > 1) family_of_[i] = families++;
  }
}

void Execution::make_ready(std::uint32_t index) {
  const Step& step = schedule_->steps[index];
  if (step.transfers == 0) {
    local_.push_back(index);
    return;
  }
  state_[index] = State::kReady;
  const Lane& lane = step.is_receive() ? receives_ : sends_;
  if (position_[index] < lane.limit) post(index);
}

bool Execution::post(std::uint32_t index) {
  state_[index] = State::kPosted;
  return schedule_->steps[index].is_receive() ? post_receive(index) : post_send(index);
}

// A peer that is gone sends nothing more, but what it sent before may wait here.
bool Execution::refuses(int rank, const harp::MessageKey& key, bool is_send) {
  if (group_->gone[rank].ok()) [[likely]]
    return false;
  if (!is_send && transport_->has_unmatched_st((*group_->peers)[rank], key)) return false;
  owner_->broken_st(*this, rank, group_->gone[rank]);
  return true;
}

bool Execution::post_send(std::uint32_t index) {
  const Step& step = schedule_->steps[index];
  harp::Staging* staging = nullptr;
  if (step.transfers > 1) {
    int local = 0;
    for (const Transfer& transfer : schedule_->transfers_of(step))
      local += transport_->is_local_st((*group_->peers)[transfer.peer]);
    if (local > 1) {
      families_[family_of_[index]].used = true;
      staging = &families_[family_of_[index]].staging;
    }
  }
  const std::uint64_t bytes =
      step.length == Step::kWhole ? step.source.bytes : lengths_[step.length].bytes;
  const std::byte* data = bytes > 0 ? address(step.source) : nullptr;
  remaining_[index] = step.transfers;
  for (std::uint32_t i = 0; i < step.transfers; ++i) {
    const Transfer& transfer = schedule_->transfers[step.first_transfer + i];
    Slot& slot = slots_[step.first_transfer + i];
    const harp::PeerId peer = (*group_->peers)[transfer.peer];
    const harp::MessageKey key{group_->id, collective_tag(sequence_, transfer.channel, stage_)};
    if (refuses(transfer.peer, key, true)) return false;
    slot.execution = this;
    slot.step = index;
    slot.rank = transfer.peer;
    slot.is_send = slot.open = true;
    new (&slot.send) SendRequest;
    slot.send.key = key;
    slot.send.signature = signature_;
    slot.send.data = data;
    slot.send.bytes = bytes;
    slot.send.staging = staging != nullptr && transport_->is_local_st(peer) ? staging : nullptr;
    slot.send.on_done = &Execution::on_sent;
    slot.send.context = &slot;
    ++open_;
    transport_->send_st(peer, slot.send);
  }
  return true;
}

bool Execution::post_receive(std::uint32_t index) {
  const Step& step = schedule_->steps[index];
  const Transfer& transfer = schedule_->transfers[step.first_transfer];
  Slot& slot = slots_[step.first_transfer];
  const harp::MessageKey key{group_->id, collective_tag(sequence_, transfer.channel, stage_)};
  if (refuses(transfer.peer, key, false)) return false;
  slot.execution = this;
  slot.step = index;
  slot.rank = transfer.peer;
  slot.is_send = false;
  slot.open = true;
  slot.posted = transport_->now_st();
  new (&slot.recv) RecvRequest;
  slot.recv.key = key;
  slot.recv.signature = signature_;
  fill_sink(step, slot.recv.sink);
  slot.recv.max_bytes =
      step.is_coded_arrival() ? schedule_->message_bytes(step) : step.destination.bytes;
  slot.recv.on_done = &Execution::on_received;
  slot.recv.context = &slot;
  remaining_[index] = 1;
  ++open_;
  transport_->recv_st((*group_->peers)[transfer.peer], slot.recv);
  return true;
}

static void consume_cold(const harp::Sink& sink, std::size_t offset, const void* data,
                         std::size_t bytes) {
  kernels::copy_cold(sink.destination + offset, data, bytes);
}

// Coded elements, each by itself, into float32.
static void consume_coded(const harp::Sink& sink, std::size_t offset, const void* data,
                          std::size_t bytes) {
  std::byte* sum = sink.destination + offset / sink.element_bytes * sizeof(float);
  sink.reduce(sum, sum, data, bytes / sink.element_bytes);
}

void Execution::fill_sink(const Step& step, harp::Sink& sink) {
  if (step.destination.bytes == 0) {
    sink = harp::Sink::discard();
  } else if (step.is_coded_arrival()) {
    const Arrival arrival = operation_->spec.codec->arrival();
    sink.consume = consume_coded;
    sink.destination = address(step.destination);
    sink.reduce = arrival.add;
    sink.element_bytes = static_cast<std::uint32_t>(arrival.coded_bytes);
  } else if (step.kind == StepKind::kRecvReduce) {
    sink = harp::Sink::reduce_into(address(step.destination), address(step.source), reduce_,
                                   static_cast<std::uint32_t>(element_bytes_));
  } else {
    sink = harp::Sink::place(address(step.destination));
    if (writes_cold(step)) sink.consume = consume_cold;
  }
}

void Execution::on_sent(SendRequest& request, const Status& status) {
  Slot& slot = *static_cast<Slot*>(request.context);
  Execution& self = *slot.execution;
  slot.open = false;
  --self.open_;
  if (self.failing_) return self.finish_if_done();
  if (!status.ok()) return self.owner_->broken_st(self, slot.rank, status);
  std::uint32_t& sent = self.group_->sent[slot.rank];
  sent = std::max(sent, static_cast<std::uint32_t>(self.sequence_));
  if (--self.remaining_[slot.step] > 0) return;
  if (self.schedule_->steps[slot.step].transfers > 1)
    self.release(self.families_[self.family_of_[slot.step]]);
  self.complete_step(slot.step);
}

void Execution::on_received(RecvRequest& request, const Status& status) {
  Slot& slot = *static_cast<Slot*>(request.context);
  Execution& self = *slot.execution;
  slot.open = false;
  --self.open_;
  if (self.failing_) return self.finish_if_done();
  if (!status.ok()) return self.owner_->broken_st(self, slot.rank, status);
  const Step& step = self.schedule_->steps[slot.step];
  const std::uint64_t expected = self.schedule_->message_bytes(step);
  if (step.length != Step::kWhole && !step.is_coded_arrival()) {
    self.lengths_[step.length] = {request.bytes, slot.rank};
  } else if (request.bytes != expected) {
    return self.owner_->broken_st(
        self, slot.rank,
        Status(Code::kMismatch, "sent " + std::to_string(request.bytes) + " bytes where " +
                                    std::to_string(expected) + " are expected"));
  }
  GroupView& group = *self.group_;
  group.arrived[slot.rank] =
      std::max(group.arrived[slot.rank], static_cast<std::uint32_t>(self.sequence_));
  if (self.operation_ != nullptr) self.operation_->bytes_done += request.bytes;
  if (timeline::enabled()) {
    trace::add_wait({group.name, self.sequence_, request.bytes, slot.posted,
                     self.transport_->now_st(), group.rank, slot.rank});
  }
  self.complete_step(slot.step);
}

void Execution::complete_step(std::uint32_t step) {
  busy_ = true;
  finish_step(step);
  busy_ = false;
  pump();
  finish_if_done();
}

void Execution::release(Family& family) {
  if (std::exchange(family.used, false)) transport_->release_st(family.staging);
}

void Execution::finish_step(std::uint32_t index) {
  const Step& step = schedule_->steps[index];
  state_[index] = State::kDone;
  --steps_left_;
  if (!step.outlives_operation()) --callers_steps_left_;
  if (step.transfers > 0) advance(step.is_receive() ? receives_ : sends_);
  for (const std::uint32_t dependent : schedule_->dependents_of(step)) {
    if (failing_) return;
    if (--remaining_[dependent] == 0) make_ready(dependent);
  }
}

void Execution::advance(Lane& lane) {
  const auto count = static_cast<std::uint32_t>(lane.steps.size());
  const std::uint32_t window = lane.limit - lane.low;
  while (lane.low < count && state_[lane.steps[lane.low]] == State::kDone) ++lane.low;
  while (lane.limit < lane.low + window) {
    const std::uint32_t position = lane.limit++;
    if (position >= count) continue;
    if (state_[lane.steps[position]] == State::kReady && !post(lane.steps[position])) return;
  }
}

void Execution::fail_st(const Status& why) {
  if (failing_) return;
  failing_ = true;
  for (std::size_t i = 0; i < schedule_->transfers.size() && open_ > 0; ++i) {
    Slot& slot = slots_[i];
    if (!slot.open || slot.execution != this) continue;
    if (slot.is_send) {
      transport_->cancel_st(slot.send, why);
    } else {
      transport_->cancel_st(slot.recv, why);
    }
  }
  finish_if_done();
}

bool Execution::has_open_st(int rank) const {
  for (std::size_t i = 0; i < schedule_->transfers.size(); ++i) {
    const Slot& slot = slots_[i];
    if (slot.open && slot.execution == this && slot.rank == rank) return true;
  }
  return false;
}

// The last thing every entry does: after drained_st this object may belong to somebody else.
void Execution::finish_if_done() {
  if (busy_) return;
  if (!finished_ && (callers_steps_left_ == 0 || (failing_ && open_ == 0))) {
    finished_ = true;
    busy_ = true;  // the owner may fail the whole group, this execution included
    owner_->finished_st(*this, *std::exchange(operation_, nullptr));
    busy_ = false;
  }
  if (!finished_ || open_ > 0 || continuing_) return;
  if (!failing_ && steps_left_ > 0) return;
  for (Family& family : families_) release(family);
  families_.clear();
  schedule_.reset();
  owner_->drained_st(*this);
}

std::vector<int> Execution::waiting_for() const {
  std::vector<int> ranks;
  if (schedule_ == nullptr) return ranks;
  for (std::size_t i = 0; i < schedule_->transfers.size(); ++i) {
    if (slots_[i].open && slots_[i].execution == this && !slots_[i].is_send)
      ranks.push_back(slots_[i].rank);
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

std::string Execution::describe_progress() const {
  if (schedule_ == nullptr) return "idle";
  std::string text = std::string(schedule_->algorithm) + ", step " +
                     std::to_string(schedule_->steps.size() - steps_left_) + " of " +
                     std::to_string(schedule_->steps.size());
  const std::vector<int> ranks = waiting_for();
  if (ranks.empty()) return text + (open_ > 0 ? ", waiting for acknowledgements" : "");
  text += ranks.size() == 1 ? ", waiting for rank" : ", waiting for ranks";
  for (const int rank : ranks) text += " " + std::to_string(rank);
  return text;
}

ExecutionPool::~ExecutionPool() {
  for (Execution* execution : free_) delete execution;
}

Execution& ExecutionPool::take() {
  if (free_.empty()) return *new Execution;
  Execution* execution = free_.back();
  free_.pop_back();
  return *execution;
}

void ExecutionPool::give(Execution& execution) {
  scratch_.give(execution.take_scratch());
  if (free_.size() < kKept && execution.memory_bytes() <= kKeptBytes) {
    free_.push_back(&execution);
  } else {
    delete &execution;
  }
}

}  // namespace taco::pg
