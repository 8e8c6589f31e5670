#include "harp/matching/completion_queue.h"

#include <algorithm>
#include <utility>

namespace taco::harp {
namespace {

// A failure's status waits in `state`, which belongs to the transport while the request is open.
template <class Request>
void append(Request*& head, Request*& last, Request& request, const Status& status) {
  request.state = status.ok() ? nullptr : new Status(status);
  request.previous = nullptr;
  request.next = nullptr;
  (head == nullptr ? head : last->next) = &request;
  last = &request;
}

template <class Request>
bool is_queued(const Request* list, PeerId peer) {
  while (list != nullptr && list->peer != peer) list = list->next;
  return list != nullptr;
}

}  // namespace

void CompletionQueue::push(SendRequest& request, const Status& status) {
  append(sends_, last_send_, request, status);
}

void CompletionQueue::push(RecvRequest& request, const Status& status) {
  append(recvs_, last_recv_, request, status);
}

bool CompletionQueue::concerns(PeerId peer) const {
  return is_queued(sends_, peer) || is_queued(recvs_, peer) ||
         std::any_of(ends_.begin(), ends_.end(),
                     [&](const PeerEnd& end) { return end.peer == peer; });
}

void CompletionQueue::push_peer_end(PeerId peer, const Status& why) {
  ends_.push_back({peer, why});
}

template <class Request>
std::size_t CompletionQueue::run_list(Request* head) {
  std::size_t count = 0;
  while (head != nullptr) {
    Request& request = *head;
    head = request.next;
    request.next = nullptr;
    const std::unique_ptr<Status> failure(
        static_cast<Status*>(std::exchange(request.state, nullptr)));
    ++count;
    request.on_done(request, failure ? *failure : Status());  // the request may be gone after this
  }
  return count;
}

std::size_t CompletionQueue::run(Observer* observer) {
  RecvRequest* recvs = std::exchange(recvs_, nullptr);
  SendRequest* sends = std::exchange(sends_, nullptr);
  std::size_t count = run_list(recvs) + run_list(sends);
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
