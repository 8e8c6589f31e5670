// A window has stopped once the transport has given back every receive, and not before: until then
// it may write. Over a transport that gives requests back when the test says so.
#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <functional>

#include "pg/window/window.h"

namespace taco::pg {
namespace {

class SlowTransport final : public harp::Transport {
 public:
  void send_st(harp::PeerId, harp::SendRequest&) override {}
  void recv_st(harp::PeerId, harp::RecvRequest& request) override { open.push_back(&request); }
  void cancel_st(harp::SendRequest&, const Status&) override {}
  void cancel_st(harp::RecvRequest& request, const Status& why) override {
    std::erase(open, &request);
    ended.push_back([&request, why] { request.on_done(request, why); });
  }
  void release_st(harp::Staging&) override {}
  bool has_unmatched_st(harp::PeerId, const harp::MessageKey&) const override { return is_here; }
  void solicit_st(harp::PeerId, const harp::MessageKey&) override {}
  void forget_group_st(std::uint64_t) override {}
  void notify_st(harp::PeerId, std::span<const std::byte>) override {}
  bool is_idle_st(harp::PeerId) const override { return true; }
  Time now_st() const override { return 0; }
  void arm_st(harp::Timer&, Time) override {}
  void disarm_st(harp::Timer&) override {}
  bool is_local_st(harp::PeerId) const override { return true; }
  Status loss_st(harp::PeerId) const override { return Status(); }

  // The peer's next head is `message`.
  void deliver(const WindowMessage& message) {
    harp::RecvRequest& request = *open.front();
    open.pop_front();
    std::array<std::byte, kMaxWindowMessageBytes> text;
    request.bytes = write_window_message(message, text.data());
    request.sink.consume(request.sink, 0, text.data(), request.bytes);
    request.on_done(request, Status());
  }

  bool is_here = true;
  std::deque<harp::RecvRequest*> open;
  std::deque<std::function<void()>> ended;
};

class Listener final : public WindowOwner {
 public:
  void one_sided_done_st(OperationState&, const Status&) override {}
  void one_sided_broken_st(OperationState&, int, const Status&) override {}
  void incoming_broken_st(int, const Status& why) override { broken = why; }
  void introduce_st(int) override {}
  void window_stopped_st() override { ++stopped; }
  Status broken;
  int stopped = 0;
};

TEST(WindowStop, ItHasStoppedOnceTheLastReceiveIsGivenBack) {
  std::array<std::byte, 4096> memory{};
  const std::vector<harp::PeerId> peers = {0, 1};
  GroupView group{.rank = 0, .world = 2, .peers = &peers, .gone = std::vector<Status>(2)};
  Listener owner;
  SlowTransport transport;
  Window window(owner, group, {{memory.data(), memory.size()}, kernels::Dtype::kU8});
  window.heard_st(1, transport);
  transport.deliver({.type = WindowMessage::Type::kPut, .signals = true, .bytes = 4096});
  EXPECT_EQ(transport.open.size(), 2u) << "of the bytes, and of the next head";
  window.stop_st(Status(Code::kAborted, "enough"));
  EXPECT_TRUE(transport.open.empty()) << "all are cancelled";
  ASSERT_EQ(transport.ended.size(), 2u);
  transport.ended[0]();
  EXPECT_EQ(owner.stopped, 0);
  EXPECT_FALSE(window.has_stopped_st());
  transport.ended[1]();
  EXPECT_EQ(owner.stopped, 1);
  EXPECT_TRUE(window.has_stopped_st());
  window.heard_st(1, transport);
  window.stop_st(Status(Code::kAborted, "again"));
  EXPECT_TRUE(transport.open.empty()) << "it takes nothing more";
  EXPECT_EQ(owner.stopped, 1);
  EXPECT_TRUE(owner.broken.ok()) << owner.broken.message();
}

TEST(WindowStop, ItStopsAtOnceWhereNothingIsOpen) {
  const std::vector<harp::PeerId> peers = {0, 1};
  GroupView group{.rank = 0, .world = 2, .peers = &peers, .gone = std::vector<Status>(2)};
  Listener owner;
  Window window(owner, group, {});
  window.stop_st(Status(Code::kAborted, "enough"));
  EXPECT_EQ(owner.stopped, 1);
}

}  // namespace
}  // namespace taco::pg
