// One Matcher and the link that leads back to it; a turn is a call.
#include "harp/self/self_link.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "harp/matching/requests_fixture.h"

namespace taco::harp {
namespace {

constexpr std::size_t kLong = 5'000'003;  // several pieces, and an odd end

class Notes final : public Observer {
 public:
  void on_unmatched_st(PeerId, const MessageKey& key, std::uint64_t, bool is_send) override {
    unmatched.push_back({key.tag, is_send});
    if (to_cancel != nullptr) matcher->cancel(*to_cancel, Status(Code::kAborted, "changed mind"));
    to_cancel = nullptr;
  }
  void on_mismatch_st(PeerId, const MessageKey&, std::uint64_t, std::uint64_t) override {
    ++mismatches;
  }
  void on_peer_lost_st(PeerId, const Status&) override { ++ends; }
  void on_peer_left_st(PeerId) override { ++ends; }
  void on_notice_st(PeerId, std::span<const std::byte> bytes) override {
    notices.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  std::vector<std::pair<std::uint64_t, bool>> unmatched;
  std::vector<std::string> notices;
  int mismatches = 0, ends = 0;
  Matcher* matcher = nullptr;
  SendRequest* to_cancel = nullptr;
};

class SelfLinkTest : public RequestsTest {
 protected:
  SelfLinkTest() : RequestsTest(0, kLong), link_(matcher_) {
    for (std::size_t i = 0; i < data_.size(); ++i) data_[i] = static_cast<std::byte>(i * 31 + 7);
    host_.observer = &notes_;
    notes_.matcher = &matcher_;
    matcher_.attach(link_);
  }
  bool turn() {
    const bool worked = link_.progress();
    host_.completions.run(&notes_);
    return worked;
  }
  int run_until_idle() {  // turns until nothing happens any more
    int turns = 0;
    while (turn()) ++turns;
    host_.completions.run(&notes_);
    EXPECT_FALSE(link_.busy());
    return turns;
  }
  template <class Request>
  void expect_done(Request& request, Code code = Code::kOk) {
    EXPECT_EQ(outcome(request).calls, 1);
    EXPECT_EQ(outcome(request).status.code(), code) << outcome(request).status.message();
  }
  void expect_arrived(const RecvRequest& request, std::size_t bytes) {
    EXPECT_EQ(request.bytes, bytes);
    EXPECT_EQ(std::memcmp(target_.data(), data_.data(), bytes), 0);
  }
  // One message, to a receive that takes `most` bytes and is posted before or after it.
  void exchange(std::size_t bytes, std::size_t most, bool receive_first) {
    SCOPED_TRACE(std::to_string(bytes) + (receive_first ? " received" : " sent") + " first");
    const std::uint64_t tag = bytes * 2 + (receive_first ? 1 : 0);
    std::fill(target_.begin(), target_.end(), std::byte{0});
    RecvRequest* in = receive_first ? &recv(tag, most) : nullptr;
    if (in != nullptr) run_until_idle();
    SendRequest& out = send(tag, bytes);
    if (in == nullptr) {
      run_until_idle();
      in = &recv(tag, most);
    }
    run_until_idle();
    expect_done(out);
    expect_done(*in);
    expect_arrived(*in, bytes);
  }

  Notes notes_;
  SelfLink link_;
};

TEST_F(SelfLinkTest, messages_arrive_whichever_side_comes_first) {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{4096}, kLong}) {
    for (const bool receive_first : {false, true}) exchange(bytes, bytes, receive_first);
  }
  EXPECT_EQ(host_.bytes_copied, 4097u) << "short messages that came before their receive, no other";
}

TEST_F(SelfLinkTest, a_receive_takes_a_shorter_message_and_tells_its_length) {
  for (const std::size_t bytes : {0, 1, 4096, 2'000'000}) {
    for (const bool receive_first : {false, true}) {
      exchange(bytes, kLong, receive_first);
      EXPECT_EQ(target_[bytes], std::byte{0}) << "written beyond the end";
    }
  }
}

TEST_F(SelfLinkTest, nothing_happens_inside_the_call_that_asks_for_it) {
  RecvRequest& in = recv(1, 100);
  SendRequest& out = send(1, 100);
  EXPECT_EQ(outcome(out).calls + outcome(in).calls, 0);
  EXPECT_TRUE(link_.busy());
  run_until_idle();
  expect_done(out);
  expect_done(in);
}

TEST_F(SelfLinkTest, a_long_message_gives_way_to_others_between_its_pieces) {
  RecvRequest& long_in = recv(1, kLong);
  SendRequest& long_out = send(1, kLong);
  while (link_.progress() && target_[0] != data_[0]) {
  }
  char other = 0;
  RecvRequest& short_in = recv(2, 1);
  short_in.sink = Sink::place(&other);
  send(2, 1);
  turn();
  expect_done(short_in);
  EXPECT_EQ(outcome(long_in).calls, 0);
  run_until_idle();
  expect_done(long_out);
  expect_arrived(long_in, kLong);
}

TEST_F(SelfLinkTest, long_messages_share_the_turns) {
  std::vector<std::byte> second(kLong);
  recv(1, kLong);
  RecvRequest& in = recv(2, kLong);
  in.sink = Sink::place(second.data());
  send(1, kLong);
  send(2, kLong);
  for (int i = 0; i < 6; ++i) turn();
  EXPECT_EQ(target_[0], data_[0]);
  EXPECT_EQ(second[1], data_[1]);
  run_until_idle();
  EXPECT_EQ(second, data_);
  EXPECT_EQ(target_, data_);
}

TEST_F(SelfLinkTest, many_more_messages_than_may_lie_unmatched_all_arrive) {
  constexpr int kMany = 3 * kEagerQuotaMessages;
  for (int i = 0; i < kMany; ++i) send(100 + i, 64);
  run_until_idle();
  EXPECT_LE(matcher_.unmatched(), kEagerQuotaMessages);
  for (int i = kMany - 1; i >= 0; --i) recv(100 + i, 64);
  run_until_idle();
  for (SendRequest& out : sends_) expect_done(out);
  for (RecvRequest& in : recvs_) expect_arrived(in, 64);
}

TEST_F(SelfLinkTest, a_cancelled_request_ends_and_the_other_side_hears_of_it) {
  for (const int turns : {0, 1, 2, 3}) {
    SCOPED_TRACE(turns);
    for (const bool cancel_send : {false, true}) {
      const std::uint64_t tag = 10 + turns * 2 + (cancel_send ? 1 : 0);
      RecvRequest& in = recv(tag, kLong);
      SendRequest& out = send(tag, kLong);
      for (int i = 0; i < turns; ++i) turn();
      const Status why(Code::kTimeout, "too slow");
      if (cancel_send) {
        matcher_.cancel(out, why);
      } else {
        matcher_.cancel(in, why);
      }
      run_until_idle();
      if (cancel_send && outcome(in).calls == 0) matcher_.cancel(in, why);
      if (!cancel_send && outcome(out).calls == 0) matcher_.cancel(out, why);
      run_until_idle();
      EXPECT_EQ(outcome(in).calls, 1);
      EXPECT_EQ(outcome(out).calls, 1);
      EXPECT_EQ((cancel_send ? outcome(out) : outcome(in)).status.code(), Code::kTimeout);
      EXPECT_FALSE((cancel_send ? outcome(in) : outcome(out)).status.ok());
      EXPECT_FALSE(matcher_.expecting());
    }
  }
}

TEST_F(SelfLinkTest, whoever_hears_of_a_message_may_withdraw_it_there_and_then) {
  SendRequest& first = send(1, 8);
  notes_.to_cancel = &first;
  SendRequest& second = send(2, 8);
  run_until_idle();
  expect_done(first, Code::kAborted);
  expect_done(second);
  SendRequest& third = send(3, 8);
  SendRequest& fourth = send(4, 8);
  notes_.to_cancel = &fourth;
  run_until_idle();
  expect_done(third);
  expect_done(fourth, Code::kAborted);
  EXPECT_FALSE(matcher_.has_unmatched({9, 4})) << "it was withdrawn before its turn";
}

TEST_F(SelfLinkTest, requests_that_differ_fail_on_both_sides_and_nothing_is_written) {
  for (const std::size_t bytes : {std::size_t{8}, kLong}) {
    SCOPED_TRACE(bytes);
    RecvRequest& other = recv(bytes, bytes, 2);
    SendRequest& out = send(bytes, bytes, 1);
    run_until_idle();
    expect_done(other, Code::kMismatch);
    if (bytes == kLong) expect_done(out, Code::kMismatch);
    RecvRequest& small = recv(bytes + 1, bytes / 2);
    send(bytes + 1, bytes);
    run_until_idle();
    expect_done(small, Code::kMismatch);
  }
  EXPECT_GE(notes_.mismatches, 2);
  EXPECT_EQ(target_[0], std::byte{0});
}

TEST_F(SelfLinkTest, notices_come_in_order_and_unmatched_messages_are_told) {
  for (const char* text : {"one", "two", "three"}) {
    matcher_.notify(std::as_bytes(std::span(text, std::strlen(text))));
  }
  send(5, 8);
  send(6, kLong);
  run_until_idle();
  EXPECT_EQ(notes_.notices, (std::vector<std::string>{"one", "two", "three"}));
  EXPECT_EQ(notes_.unmatched, (std::vector<std::pair<std::uint64_t, bool>>{{5, true}, {6, true}}));
}

TEST_F(SelfLinkTest, a_solicited_message_offers_itself) {
  matcher_.solicit({9, 7});
  run_until_idle();
  SendRequest& out = send(7, 8);
  run_until_idle();
  EXPECT_TRUE(matcher_.has_unmatched({9, 7}));
  RecvRequest& in = recv(7, 8);
  run_until_idle();
  expect_done(out);
  expect_arrived(in, 8);
}

TEST_F(SelfLinkTest, the_end_of_the_engine_ends_what_is_open) {
  RecvRequest& in = recv(1, kLong);
  SendRequest& out = send(1, kLong);
  RecvRequest& alone = recv(2, 8);
  turn();
  turn();
  matcher_.on_lost(Status(Code::kAborted, "the transport was closed"));
  run_until_idle();
  expect_done(in, Code::kAborted);
  expect_done(out, Code::kAborted);
  expect_done(alone, Code::kAborted);
}

}  // namespace
}  // namespace taco::harp
