#include "harp/matching/completion_queue.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace taco::harp {
namespace {

template <class Requests, class Request>
void append(Requests& requests, Request& request, const Status& status) {
  request.failure = status.ok() ? nullptr : new Status(status);
  requests.push_back(request);
}

template <class Requests>
bool is_queued(const Requests& requests, PeerId peer) {
  return std::any_of(requests.begin(), requests.end(),
                     [&](const auto& request) { return request.peer == peer; });
}

// The request may be gone after this.
template <class Request>
void complete(Request& request) {
  const std::unique_ptr<const Status> failure(std::exchange(request.failure, nullptr));
  request.on_done(request, failure ? *failure : Status());
}

template <class Requests>
void forget(Requests& requests) {
  while (auto* const request = requests.pop_front()) {
    delete std::exchange(request->failure, nullptr);
  }
}

}  // namespace

CompletionQueue::~CompletionQueue() {
  forget(sends_);
  forget(recvs_);
}

void CompletionQueue::push(SendRequest& request, const Status& status) {
  request.stage.go(SendStage::kFinished);
  append(sends_, request, status);
}

void CompletionQueue::push(RecvRequest& request, const Status& status) {
  append(recvs_, request, status);
}

bool CompletionQueue::concerns(PeerId peer) const {
  return is_queued(sends_, peer) || is_queued(recvs_, peer) ||
         std::any_of(ends_.begin(), ends_.end(),
                     [&](const PeerEnd& end) { return end.peer == peer; });
}

void CompletionQueue::push_peer_end(PeerId peer, const Status& why) {
  ends_.push_back({peer, why});
}

std::size_t CompletionQueue::run(Observer* observer) {
  const std::size_t recvs = recvs_.size(), sends = sends_.size();
  for (std::size_t i = 0; i < recvs; ++i) complete(*recvs_.pop_front());
  for (std::size_t i = 0; i < sends; ++i) {
    SendRequest& request = *sends_.pop_front();
    request.stage.go(SendStage::kIdle);
    complete(request);
  }
  std::size_t count = recvs + sends;
  if (ends_.empty()) return count;
  const std::vector<PeerEnd> ends = std::exchange(ends_, {});
  for (const PeerEnd& end : ends) {
    if (is_queued(sends_, end.peer) || is_queued(recvs_, end.peer)) {
      ends_.push_back(end);
      continue;
    }
    ++count;
    if (observer == nullptr) continue;
    if (end.why.ok()) {
      observer->on_peer_left_st(end.peer);
    } else {
      observer->on_peer_lost_st(end.peer, end.why);
    }
  }
  return count;
}

}  // namespace taco::harp
