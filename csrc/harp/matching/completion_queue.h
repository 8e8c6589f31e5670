// Finished requests on their way back to their owners. Matchers push, the engine runs the queue
// once a turn: so on_done is never called from inside send_st, recv_st or cancel_st. One queue per
// engine, owner thread only, no allocation for successes.
#pragma once

#include <vector>

#include "base/list.h"
#include "base/status.h"
#include "harp/transport.h"

namespace taco::harp {

class CompletionQueue {
 public:
  CompletionQueue() = default;
  // Nobody takes what is still queued. Their owners have kept those requests until now, as they
  // must until on_done.
  ~CompletionQueue();
  CompletionQueue(const CompletionQueue&) = delete;
  CompletionQueue& operator=(const CompletionQueue&) = delete;

  void push(SendRequest& request, const Status& status);
  void push(RecvRequest& request, const Status& status);
  // A peer's end, told to the observer after every completion with that peer, those included which
  // callbacks bring about by asking for what it had sent before. `why` ok means the peer said
  // goodbye.
  void push_peer_end(PeerId peer, const Status& why);

  // Is anything queued that has to do with the peer?
  bool concerns(PeerId peer) const;
  bool empty() const { return sends_.empty() && recvs_.empty() && ends_.empty(); }
  // Runs what is queued now; what callbacks push in the meantime waits for the next run. Returns
  // how many callbacks ran.
  std::size_t run(Observer* observer);

 private:
  struct PeerEnd {
    PeerId peer;
    Status why;
  };

  List<SendRequest, &SendRequest::links> sends_;
  List<RecvRequest, &RecvRequest::links> recvs_;
  std::vector<PeerEnd> ends_;
};

}  // namespace taco::harp
