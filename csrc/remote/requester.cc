#include "remote/requester.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace taco::remote {

struct Requester::Open {
  Requester* owner = nullptr;
  Operation* operation = nullptr;  // null: free
  Action action = Action::kRead;
  std::uint64_t bytes = 0;
  bool answer_open = false, bytes_open = false;
  Status refusal, trouble;  // by the owner's word, and of the bytes
  harp::RecvRequest answer, read;
  harp::SendRequest written;
  AnswerBytes text;
};

Requester::Requester(std::uint64_t own, std::uint64_t part_bytes)
    : own_(own), part_bytes_(part_bytes) {}
Requester::~Requester() = default;

void Requester::connect_st(harp::PeerId peer, std::uint64_t endpoint, std::string name) {
  peer_ = peer;
  peer_endpoint_ = endpoint;
  peer_name_ = std::move(name);
}

// With the peer's name, which the transport does not put into every loss.
Status Requester::named(const Status& status) const {
  if (status.ok()) return status;
  const std::string prefix = "the peer of this endpoint, " + peer_name_ + ": ";
  if (const PeerLoss* loss = status.peer_loss()) {
    PeerLoss whose = *loss;
    if (whose.address.empty()) whose.address = peer_name_;
    return Status(prefix + status.message(), std::move(whose));
  }
  return status.with_prefix(prefix);
}

void Requester::start_st(Operation& operation, harp::Transport& transport) {
  transport_ = &transport;
  operation.begun = 0;
  operation.open = 0;
  operation.status = failure_;
  if (operation.bytes == 0 || !failure_.ok()) return finish_if_over(operation);
  queue_.push_back(&operation);
  go_on();
}

void Requester::go_on() {
  while (!queue_.empty() && open_ < kMaxRequests) {
    Operation& first = *queue_.front();
    // After one part is refused the next is not tried.
    const bool is_last = first.bytes - first.begun <= part_bytes_;
    if (is_last || !first.status.ok()) queue_.pop_front();
    if (first.status.ok()) {
      begin(first);
    } else {
      first.begun = first.bytes;
      finish_if_over(first);
    }
  }
}

void Requester::begin(Operation& operation) {
  if (free_.empty()) {
    all_.push_back(std::make_unique<Open>());
    free_.push_back(all_.back().get());
  }
  Open& request = *free_.back();
  free_.pop_back();
  ++open_;
  ++operation.open;
  const std::uint64_t from = operation.begun;
  const std::uint64_t bytes = std::min(part_bytes_, operation.bytes - from);
  operation.begun += bytes;
  const Request told{.endpoint = peer_endpoint_,
                     .from = own_,
                     .number = ++last_number_,
                     .action = operation.action,
                     .region = operation.remote.region,
                     .offset = operation.remote.offset + from,
                     .bytes = bytes,
                     .carried = {}};
  request.owner = this;
  request.operation = &operation;
  request.action = operation.action;
  request.bytes = bytes;
  request.refusal = request.trouble = Status();
  request.answer_open = true;
  request.answer = harp::RecvRequest{};
  request.answer.key = key_of_answer(own_, told.number);
  request.answer.signature = signature_of_answer();
  request.answer.sink = harp::Sink::place(request.text.data());
  request.answer.max_bytes = request.text.size();
  request.answer.context = &request;
  request.answer.on_done = [](harp::RecvRequest& done, const Status& status) {
    Open& which = *static_cast<Open*>(done.context);
    which.owner->answered(which, status);
  };
  transport_->recv_st(peer_, request.answer);
  post(request, told, operation.memory + from);
}

// Tells the owner, and offers the bytes, or asks for them.
void Requester::post(Open& request, Request told, std::byte* memory) {
  MessageBytes notice;
  const bool writes = told.action == Action::kWrite;
  if (writes && told.bytes <= kMaxCarried) told.carried = {memory, told.bytes};
  transport_->notify_st(peer_, {notice.data(), write_message(told, notice)});
  if (!told.carried.empty()) return;
  request.bytes_open = true;
  if (writes) {
    request.written = harp::SendRequest{};
    request.written.key = key_of_written(peer_endpoint_, told.number);
    request.written.signature = signature_of_transfer(told.bytes);
    request.written.data = memory;
    request.written.bytes = told.bytes;
    request.written.context = &request;
    request.written.on_done = [](harp::SendRequest& done, const Status& status) {
      Open& which = *static_cast<Open*>(done.context);
      which.owner->moved(which, status, which.bytes);
    };
    transport_->send_st(peer_, request.written);
    return;
  }
  request.read = harp::RecvRequest{};
  request.read.key = key_of_read(own_, told.number);
  request.read.signature = signature_of_transfer(told.bytes);
  request.read.sink = harp::Sink::place(memory);
  request.read.max_bytes = told.bytes;
  request.read.context = &request;
  request.read.on_done = [](harp::RecvRequest& done, const Status& status) {
    Open& which = *static_cast<Open*>(done.context);
    which.owner->moved(which, status, done.bytes);
  };
  transport_->recv_st(peer_, request.read);
}

void Requester::answered(Open& request, const Status& status) {
  request.answer_open = false;
  request.refusal = status.ok() ? read_answer({request.text.data(), request.answer.bytes}) : status;
  if (!request.refusal.ok()) cancel_bytes(request, request.refusal);
  finish_if_over(request);
}

// An owner that takes or sends no more of the bytes says why in its answer.
void Requester::moved(Open& request, const Status& status, std::uint64_t bytes) {
  request.bytes_open = false;
  request.trouble = status;
  if (status.ok() && bytes != request.bytes) {
    request.trouble =
        Status(Code::kMismatch, "it sent " + std::to_string(bytes) + " bytes of the " +
                                    std::to_string(request.bytes) + " that were to be read");
  }
  finish_if_over(request);
}

void Requester::cancel_bytes(Open& request, const Status& why) {
  if (!request.bytes_open) return;
  if (request.action == Action::kWrite) {
    transport_->cancel_st(request.written, why);
  } else {
    transport_->cancel_st(request.read, why);
  }
}

void Requester::finish_if_over(Open& request) {
  if (request.answer_open || request.bytes_open) return;
  Operation& operation = *request.operation;
  const Status& failed = request.refusal.ok() ? request.trouble : request.refusal;
  if (operation.status.ok()) operation.status = failure_.ok() ? named(failed) : failure_;
  request.operation = nullptr;
  free_.push_back(&request);
  TACO_ASSERT(open_ > 0 && operation.open > 0);
  --open_;
  --operation.open;
  finish_if_over(operation);
  go_on();
}

void Requester::finish_if_over(Operation& operation) {
  const bool is_begun = operation.begun == operation.bytes || !failure_.ok();
  if (is_begun && operation.open == 0) operation.on_done(operation, operation.status);
}

void Requester::fail_st(const Status& why) {
  if (!failure_.ok()) return;
  failure_ = why;
  const std::deque<Operation*> queued = std::exchange(queue_, {});
  for (const auto& request : all_) {
    if (request->operation == nullptr) continue;
    if (request->answer_open) transport_->cancel_st(request->answer, why);
    cancel_bytes(*request, why);
  }
  for (Operation* operation : queued) {
    operation->status = why;
    finish_if_over(*operation);
  }
}

}  // namespace taco::remote
