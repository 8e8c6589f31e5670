// A transport that completes nothing by itself: its test does, when it likes. Test support.
#pragma once

#include <vector>

#include "harp/transport.h"

namespace taco::remote {

struct StillTransport final : harp::Transport {
  using PeerId = harp::PeerId;

  void send_st(PeerId, harp::SendRequest& request) override { sends.push_back(&request); }
  void recv_st(PeerId, harp::RecvRequest& request) override { recvs.push_back(&request); }
  void cancel_st(harp::SendRequest&, const Status&) override {}
  void cancel_st(harp::RecvRequest&, const Status&) override {}
  void release_st(harp::Staging&) override {}
  bool has_unmatched_st(PeerId, const harp::MessageKey&) const override { return false; }
  void solicit_st(PeerId, const harp::MessageKey&) override {}
  void forget_group_st(std::uint64_t) override {}
  void notify_st(PeerId, std::span<const std::byte>) override { ++notices; }
  bool is_idle_st(PeerId) const override { return true; }
  Time now_st() const override { return 0; }
  void arm_st(harp::Timer&, Time) override {}
  void disarm_st(harp::Timer&) override {}
  bool is_local_st(PeerId) const override { return false; }
  Status loss_st(PeerId) const override { return {}; }

  std::vector<harp::SendRequest*> sends;
  std::vector<harp::RecvRequest*> recvs;
  int notices = 0;
};

}  // namespace taco::remote
