// A Matcher, and requests to it with what came of them. Included by the tests of the Matcher and of
// links that need no network.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <vector>

#include "harp/matching/matcher.h"

namespace taco::harp {

struct Outcome {
  int calls = 0;
  Status status;
};

template <class Request>
inline void note(Request& request, const Status& status) {
  auto& outcome = *static_cast<Outcome*>(request.context);
  ++outcome.calls;
  outcome.status = status;
}

class RequestsTest : public ::testing::Test {
 protected:
  // Sends begin where `data_` does, receives write where `target_` does.
  RequestsTest(PeerId peer, std::size_t longest)
      : matcher_(peer, host_), data_(longest, std::byte{5}), target_(longest) {}
  SendRequest& send(std::uint64_t tag, std::size_t bytes, std::uint64_t signature = 1,
                    std::uint64_t group = 9) {
    SendRequest& request = sends_.emplace_back();
    request.key = {group, tag};
    request.signature = signature;
    request.data = data_.data();
    request.bytes = bytes;
    request.on_done = note<SendRequest>;
    request.context = &outcomes_.emplace_back();
    matcher_.send(request);
    return request;
  }
  RecvRequest& recv(std::uint64_t tag, std::size_t bytes, std::uint64_t signature = 1) {
    RecvRequest& request = recvs_.emplace_back();
    request.key = {9, tag};
    request.signature = signature;
    request.max_bytes = bytes;
    request.sink = Sink::place(target_.data());
    request.on_done = note<RecvRequest>;
    request.context = &outcomes_.emplace_back();
    matcher_.recv(request);
    return request;
  }
  template <class Request>
  Outcome& outcome(Request& request) {
    return *static_cast<Outcome*>(request.context);
  }

  std::deque<SendRequest> sends_;  // outlive the queue that some may still be in
  std::deque<RecvRequest> recvs_;
  std::deque<Outcome> outcomes_;
  MatcherHost host_;
  Matcher matcher_;
  std::vector<std::byte> data_, target_;
};

}  // namespace taco::harp
