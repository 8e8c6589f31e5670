// The Matcher alone, over a link that only writes down what it is told.
#include "harp/matching/matcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

namespace taco::harp {
namespace {

class FakeLink final : public Link {
 public:
  struct ControlCall {
    Control kind;
    MessageKey key;
    SlotId slot;
    std::uint64_t value;
  };
  std::size_t eager_limit() const override { return 1000; }
  void eager(SendRequest& request) override { eagers.push_back(&request); }
  void bulk(SendRequest& request, SlotId slot) override { bulks.push_back({&request, slot}); }
  void withdraw(SendRequest& request) override { withdrawn.push_back(&request); }
  void forget(SlotId slot) override { forgotten.push_back(slot); }
  void want(const Want& want) override { wants.push_back(want); }
  void offer(const Offer& offer) override { offers.push_back(offer); }
  void control(Control kind, const MessageKey& key, SlotId slot, std::uint64_t value) override {
    controls.push_back({kind, key, slot, value});
  }
  void notice(std::span<const std::byte>) override {}
  void release(Staging&) override {}
  bool busy() const override { return false; }
  void break_off(const std::string& how) override { broken.push_back(how); }
  void leave() override {}

  std::size_t count(Control kind) const {
    return static_cast<std::size_t>(
        std::count_if(controls.begin(), controls.end(),
                      [&](const ControlCall& call) { return call.kind == kind; }));
  }

  std::vector<SendRequest*> eagers, withdrawn;
  std::vector<std::pair<SendRequest*, SlotId>> bulks;
  std::vector<SlotId> forgotten;
  std::vector<Want> wants;
  std::vector<Offer> offers;
  std::vector<ControlCall> controls;
  std::vector<std::string> broken;
};

class FakeObserver final : public Observer {
 public:
  void on_unmatched_st(PeerId, const MessageKey& key, std::uint64_t, bool) override {
    unmatched.push_back(key.tag);
  }
  void on_mismatch_st(PeerId, const MessageKey&, std::uint64_t ours,
                      std::uint64_t theirs) override {
    mismatches.push_back({ours, theirs});
  }
  void on_peer_lost_st(PeerId, const Status&) override { ++lost; }
  void on_peer_left_st(PeerId) override { ++left; }
  void on_notice_st(PeerId, std::span<const std::byte>) override {}
  std::vector<std::uint64_t> unmatched;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> mismatches;
  int lost = 0, left = 0;
};

struct Outcome {
  int calls = 0;
  Status status;
};

template <class Request>
void note(Request& request, const Status& status) {
  auto& outcome = *static_cast<Outcome*>(request.context);
  ++outcome.calls;
  outcome.status = status;
}

class MatcherTest : public ::testing::Test {
 protected:
  MatcherTest() : matcher_(3, host_) {
    host_.observer = &observer_;
    matcher_.attach(link_);
  }
  SendRequest& send(std::uint64_t tag, std::size_t bytes, std::uint64_t signature = 1) {
    SendRequest& request = sends_.emplace_back();
    request.key = {9, tag};
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
  void arrive(std::uint64_t tag, std::size_t bytes, std::uint64_t signature = 1) {
    matcher_.on_eager({9, tag}, signature, std::span(data_).first(bytes));
  }
  template <class Request>
  Outcome& outcome(Request& request) {
    return *static_cast<Outcome*>(request.context);
  }
  void run() { host_.completions.run(&observer_); }

  MatcherHost host_;
  FakeObserver observer_;
  FakeLink link_;
  Matcher matcher_;
  std::deque<SendRequest> sends_;
  std::deque<RecvRequest> recvs_;
  std::deque<Outcome> outcomes_;
  std::vector<std::byte> data_ = std::vector<std::byte>(1 << 20, std::byte{5});
  std::vector<std::byte> target_ = std::vector<std::byte>(1 << 20);
};

TEST_F(MatcherTest, SmallSendsGoAtOnceUntilTheQuotaAndThenWaitToBeWanted) {
  for (std::uint64_t tag = 0; tag < kEagerQuotaMessages; ++tag) send(tag, 8);
  EXPECT_EQ(link_.eagers.size(), kEagerQuotaMessages);
  EXPECT_EQ(link_.count(Control::kBlocked), 0u);
  SendRequest& kept = send(1000, 8);
  send(1001, 8);
  EXPECT_EQ(link_.eagers.size(), kEagerQuotaMessages);
  EXPECT_EQ(link_.count(Control::kBlocked), 1u) << "said once";
  matcher_.on_want({{9, 1000}, 1, 8, {4, 4}});
  ASSERT_EQ(link_.bulks.size(), 1u);
  EXPECT_EQ(link_.bulks[0].first, &kept);
  matcher_.on_control(Control::kEagerConsumed, {9, 32}, {}, 32 * 8);
  EXPECT_EQ(link_.eagers.size(), kEagerQuotaMessages + 1) << "the other one goes eagerly now";
  EXPECT_EQ(link_.controls.back().kind, Control::kBlocked);
  EXPECT_EQ(link_.controls.back().key.tag, 0u) << "and the group is free again";
}

TEST_F(MatcherTest, QuotaCountsBytesToo) {
  for (std::uint64_t tag = 0; tag < 70; ++tag) send(tag, 1000);
  EXPECT_EQ(link_.eagers.size(), 64u);
  for (std::uint64_t tag = 0; tag < 70; ++tag) {
    SendRequest& other = sends_.emplace_back(sends_.front());
    other.key = {10, tag};
    other.context = &outcomes_.emplace_back();
    matcher_.send(other);
  }
  EXPECT_EQ(link_.eagers.size(), 128u) << "another group has a quota of its own";
}

TEST_F(MatcherTest, ABlockedPeerMakesEveryPostedReceiveWanted) {
  recv(1, 8);
  recv(2, 8);
  EXPECT_TRUE(link_.wants.empty());
  matcher_.on_control(Control::kBlocked, {9, 1}, {}, 0);
  EXPECT_EQ(link_.wants.size(), 2u);
  recv(3, 8);
  EXPECT_EQ(link_.wants.size(), 3u);
  matcher_.on_control(Control::kBlocked, {9, 0}, {}, 0);
  recv(4, 8);
  EXPECT_EQ(link_.wants.size(), 3u);
}

TEST_F(MatcherTest, EagerDataThatComesFirstIsKeptAndCounted) {
  arrive(7, 100);
  EXPECT_EQ(observer_.unmatched, (std::vector<std::uint64_t>{7}));
  EXPECT_TRUE(matcher_.has_unmatched({9, 7}));
  RecvRequest& request = recv(7, 100);
  run();
  EXPECT_TRUE(outcome(request).status.ok());
  EXPECT_EQ(request.bytes, 100u);
  EXPECT_EQ(target_[99], std::byte{5});
  EXPECT_EQ(host_.bytes_copied, 100u);
  EXPECT_EQ(host_.buffers.bytes_in_use(), 0u);
  EXPECT_FALSE(matcher_.has_unmatched({9, 7}));
}

TEST_F(MatcherTest, EagerDataForAPostedReceiveIsNotStaged) {
  RecvRequest& request = recv(7, 100);
  arrive(7, 60);
  EXPECT_EQ(outcome(request).calls, 0) << "never from inside";
  run();
  EXPECT_EQ(outcome(request).calls, 1);
  EXPECT_EQ(request.bytes, 60u);
  EXPECT_EQ(host_.bytes_copied, 0u);
}

TEST_F(MatcherTest, ConsumptionIsReportedByTheHalfQuota) {
  for (std::uint64_t tag = 0; tag < 31; ++tag) {
    recv(tag, 8);
    arrive(tag, 8);
  }
  EXPECT_EQ(link_.count(Control::kEagerConsumed), 0u);
  arrive(31, 8);
  recv(31, 8);
  ASSERT_EQ(link_.count(Control::kEagerConsumed), 1u);
  EXPECT_EQ(link_.controls.back().key.tag, 32u);
  EXPECT_EQ(link_.controls.back().value, 32u * 8);
}

TEST_F(MatcherTest, LargeSendsAreOfferedOnceAndReleasedByTheWant) {
  SendRequest& request = send(1, 5000);
  ASSERT_EQ(link_.offers.size(), 1u);
  EXPECT_EQ(link_.offers[0].bytes, 5000u);
  matcher_.on_want({{9, 1}, 1, 5000, {2, 3}});
  ASSERT_EQ(link_.bulks.size(), 1u);
  EXPECT_EQ(link_.bulks[0].second, (SlotId{2, 3}));
  matcher_.send_finished(request, Status());
  run();
  EXPECT_EQ(outcome(request).calls, 1);
  EXPECT_FALSE(matcher_.expecting());
}

TEST_F(MatcherTest, AWantThatComesFirstIsServedAtOnce) {
  matcher_.on_want({{9, 1}, 1, 5000, {2, 3}});
  EXPECT_EQ(observer_.unmatched.size(), 1u);
  send(1, 5000);
  EXPECT_EQ(link_.bulks.size(), 1u);
  EXPECT_TRUE(link_.offers.empty());
}

TEST_F(MatcherTest, AnEagerMessageThatMeetsAWantedReceiveVoidsTheWant) {
  RecvRequest& request = recv(1, 5000);
  ASSERT_EQ(link_.wants.size(), 1u);
  arrive(1, 10);
  EXPECT_EQ(link_.count(Control::kVoidWant), 1u);
  EXPECT_EQ(link_.forgotten.size(), 1u);
  run();
  EXPECT_TRUE(outcome(request).status.ok());
  // The other side of it: the want is forgotten.
  matcher_.on_want({{9, 50}, 1, 5000, {7, 7}});
  matcher_.on_control(Control::kVoidWant, {9, 50}, {7, 7}, 0);
  send(50, 5000);
  EXPECT_TRUE(link_.bulks.empty());
}

TEST_F(MatcherTest, DifferentSignaturesFailBothSidesBeforeAByteMoves) {
  RecvRequest& first = recv(1, 100, 11);
  arrive(1, 100, 12);
  run();
  EXPECT_EQ(outcome(first).status.code(), Code::kMismatch);
  EXPECT_EQ(observer_.mismatches.back(), (std::pair<std::uint64_t, std::uint64_t>{11, 12}));
  EXPECT_EQ(target_[0], std::byte{0});
  EXPECT_EQ(link_.count(Control::kMismatch), 1u);

  SendRequest& second = send(2, 5000, 21);
  matcher_.on_want({{9, 2}, 22, 5000, {1, 1}});
  run();
  EXPECT_EQ(outcome(second).status.code(), Code::kMismatch);
  EXPECT_TRUE(link_.bulks.empty());
  EXPECT_EQ(observer_.mismatches.back(), (std::pair<std::uint64_t, std::uint64_t>{21, 22}));

  RecvRequest& third = recv(3, 5000, 31);
  matcher_.on_control(Control::kMismatch, {9, 3}, link_.wants.back().slot, 32);
  run();
  EXPECT_EQ(outcome(third).status.code(), Code::kMismatch);
  EXPECT_EQ(observer_.mismatches.back(), (std::pair<std::uint64_t, std::uint64_t>{31, 32}));
}

TEST_F(MatcherTest, AMessageLongerThanItsReceiveFailsBothSides) {
  RecvRequest& request = recv(1, 10);
  arrive(1, 11);
  run();
  EXPECT_EQ(outcome(request).status.code(), Code::kMismatch);
  SendRequest& large = send(2, 6000);
  matcher_.on_want({{9, 2}, 1, 5999, {1, 1}});
  run();
  EXPECT_EQ(outcome(large).status.code(), Code::kMismatch);
  EXPECT_TRUE(link_.bulks.empty());
}

TEST_F(MatcherTest, CancelledRequestsEndOnceAndTheirPeersAreTold) {
  const Status why(Code::kAborted, "test");
  RecvRequest& wanted = recv(1, 5000);
  matcher_.cancel(wanted, why);
  EXPECT_EQ(link_.count(Control::kCancelReceive), 1u);
  SendRequest& offered = send(2, 5000);
  matcher_.cancel(offered, why);
  SendRequest& bulk = send(3, 5000);
  matcher_.on_want({{9, 3}, 1, 5000, {1, 1}});
  matcher_.cancel(bulk, why);
  matcher_.cancel(bulk, why);  // its completion is on its way: no second one
  EXPECT_EQ(link_.withdrawn.size(), 1u);
  EXPECT_EQ(link_.count(Control::kCancelSend), 2u);
  run();
  for (const Outcome& each : outcomes_) {
    EXPECT_EQ(each.calls, 1);
    EXPECT_EQ(each.status.code(), Code::kAborted);
  }
  EXPECT_FALSE(matcher_.expecting());
}

TEST_F(MatcherTest, ThePeersCancelsEndOurRequests) {
  SendRequest& bulk = send(1, 5000);
  matcher_.on_want({{9, 1}, 1, 5000, {1, 1}});
  matcher_.on_control(Control::kCancelReceive, {9, 1}, {1, 1}, 0);
  RecvRequest& receive = recv(2, 5000);
  matcher_.on_control(Control::kCancelSend, {9, 2}, link_.wants.back().slot, 0);
  run();
  EXPECT_EQ(outcome(bulk).status.code(), Code::kAborted);
  EXPECT_EQ(outcome(receive).status.code(), Code::kAborted);
  EXPECT_EQ(link_.withdrawn.size(), 1u);
}

TEST_F(MatcherTest, ASlotsNameIsNotUsedTwice) {
  recv(1, 5000);
  const SlotId first = link_.wants.back().slot;
  matcher_.receive_finished(first, Status());
  recv(2, 5000);
  EXPECT_EQ(matcher_.receive_of(first), nullptr);
  EXPECT_NE(matcher_.receive_of(link_.wants.back().slot), nullptr);
}

TEST_F(MatcherTest, ASolicitedSendIsOfferedNowOrWhenItComes) {
  for (std::uint64_t tag = 0; tag < kEagerQuotaMessages + 1; ++tag) send(tag, 5000);
  EXPECT_EQ(link_.offers.size(), kEagerQuotaMessages) << "offers have a quota too";
  matcher_.on_control(Control::kSolicit, {9, kEagerQuotaMessages}, {}, 0);
  EXPECT_EQ(link_.offers.size(), kEagerQuotaMessages + 1);
  matcher_.on_control(Control::kSolicit, {9, 500}, {}, 0);
  send(500, 8);
  EXPECT_EQ(link_.offers.back().key.tag, 500u);
}

// The message was on its way when it was asked for: its sender must not keep the question for ever.
TEST_F(MatcherTest, ASolicitationThatCrossesItsMessageIsTakenBack) {
  matcher_.solicit({9, 7});
  ASSERT_EQ(link_.count(Control::kSolicit), 1u);
  arrive(7, 8);
  ASSERT_EQ(link_.count(Control::kSolicit), 2u);
  EXPECT_EQ(link_.controls.back().key.tag, 7u);
  EXPECT_EQ(link_.controls.back().value, 1u);
  // The other side of it.
  matcher_.on_control(Control::kSolicit, {9, 500}, {}, 0);
  EXPECT_EQ(matcher_.unserved(), 1u);
  matcher_.on_control(Control::kSolicit, {9, 500}, {}, 1);
  EXPECT_EQ(matcher_.unserved(), 0u);
  send(500, 8);
  EXPECT_EQ(link_.eagers.size(), 1u);
  EXPECT_TRUE(link_.offers.empty());
}

TEST_F(MatcherTest, ASolicitationThatWasAnsweredIsNotTakenBack) {
  matcher_.solicit({9, 7});
  matcher_.on_offer({{9, 7}, 1, 8});
  recv(7, 8);
  EXPECT_EQ(link_.count(Control::kSolicit), 1u);
  EXPECT_EQ(link_.wants.size(), 1u);
  EXPECT_EQ(matcher_.unmatched(), 0u);
}

// An offer that its own message overtook would wait for a receive for ever.
TEST_F(MatcherTest, AnOfferedSendWaitsToBeWantedEvenWhenQuotaComesBack) {
  for (std::uint64_t tag = 0; tag < kEagerQuotaMessages; ++tag) send(tag, 8);
  send(1000, 8);
  matcher_.on_control(Control::kSolicit, {9, 1000}, {}, 0);
  ASSERT_EQ(link_.offers.size(), 1u);
  matcher_.on_control(Control::kEagerConsumed, {9, 32}, {}, 32 * 8);
  EXPECT_EQ(link_.eagers.size(), kEagerQuotaMessages);
  matcher_.on_want({{9, 1000}, 1, 8, {4, 4}});
  EXPECT_EQ(link_.bulks.size(), 1u);
}

TEST_F(MatcherTest, LosingThePeerEndsEverythingOnceAndThenTellsTheObserver) {
  RecvRequest& receive = recv(1, 5000);
  SendRequest& kept = send(2, 5000);
  send(3, 8);
  matcher_.on_lost(Status("gone", PeerLoss{}));
  matcher_.on_lost(Status("gone again", PeerLoss{}));
  EXPECT_EQ(observer_.lost, 0);
  run();
  EXPECT_EQ(observer_.lost, 1);
  for (const Outcome& each : outcomes_) {
    EXPECT_EQ(each.calls, 1);
    EXPECT_EQ(each.status.code(), Code::kPeerLost);
  }
  RecvRequest& late = recv(4, 8);
  run();
  EXPECT_EQ(outcome(late).status.code(), Code::kPeerLost);
  EXPECT_EQ(outcome(receive).calls + outcome(kept).calls, 2);
}

TEST_F(MatcherTest, WhatALeavingPeerHadSentCanStillBeReceived) {
  arrive(1, 10);
  matcher_.on_left();
  run();
  EXPECT_EQ(observer_.left, 1);
  EXPECT_EQ(observer_.lost, 0);
  RecvRequest& request = recv(1, 10);
  run();
  EXPECT_TRUE(outcome(request).status.ok());
}

// What it sent last may be asked for by the callback of what it sent before.
TEST_F(MatcherTest, APeerHasLeftOnlyWhenWhatItSentBeforeIsCompleted) {
  arrive(1, 8);
  arrive(2, 8);
  bool second_is_done = false, left_before = false;
  const auto on_second = [&](const Status& status) {
    EXPECT_TRUE(status.ok()) << status.message();
    second_is_done = true;
    left_before = observer_.left > 0;
  };
  const auto on_first = [&] {
    RecvRequest& second = recv(2, 8);
    second.context = const_cast<void*>(static_cast<const void*>(&on_second));
    second.on_done = [](RecvRequest& request, const Status& status) {
      (*static_cast<decltype(&on_second)>(request.context))(status);
    };
  };
  RecvRequest& first = recv(1, 8);
  first.context = const_cast<void*>(static_cast<const void*>(&on_first));
  first.on_done = [](RecvRequest& request, const Status&) {
    (*static_cast<decltype(&on_first)>(request.context))();
  };
  matcher_.on_left();
  for (int turn = 0; turn < 4; ++turn) run();
  EXPECT_TRUE(second_is_done);
  EXPECT_FALSE(left_before);
  EXPECT_EQ(observer_.left, 1);
}

TEST_F(MatcherTest, GroupsThatSayNothingAreForgotten) {
  for (std::uint64_t group = 1; group <= 100'000; ++group) {
    SendRequest request;
    Outcome done;
    request.key = {group, 1};
    request.bytes = 0;
    request.on_done = note<SendRequest>;
    request.context = &done;
    matcher_.send(request);
    matcher_.send_finished(request, Status());
    matcher_.on_control(Control::kEagerConsumed, {group, 1}, {}, 0);
    run();
    link_.eagers.clear();
  }
  EXPECT_LE(matcher_.groups_remembered(), 128u);
}

// What a peer that breaks the rules can make this process keep, and that an honest one is never
// taken for one.
class MatcherLimitsTest : public MatcherTest {
 protected:
  void arrive_in(std::uint64_t group, std::uint64_t tag, std::size_t bytes) {
    matcher_.on_eager({group, tag}, 1, std::span(data_).first(bytes));
  }
  void expect_end(const std::string& of_what) {
    ASSERT_EQ(link_.broken.size(), 1u);
    EXPECT_NE(link_.broken[0].find(of_what), std::string::npos) << link_.broken[0];
  }
};

TEST_F(MatcherLimitsTest, MoreMessagesOfAGroupThanItsQuotaEndThePeer) {
  for (std::uint64_t tag = 0; tag < kEagerQuotaMessages; ++tag) arrive(tag, 8);
  EXPECT_TRUE(link_.broken.empty());
  arrive(1000, 8);
  expect_end("small messages of one group");
  EXPECT_EQ(matcher_.unmatched(), kEagerQuotaMessages);
}

TEST_F(MatcherLimitsTest, MoreBytesOfAGroupThanItsQuotaEndThePeer) {
  for (std::uint64_t tag = 0; tag < 8; ++tag) arrive(tag, kEagerQuotaBytes / 8);
  EXPECT_TRUE(link_.broken.empty());
  arrive(1000, 1);
  expect_end("small messages of one group");
}

TEST_F(MatcherLimitsTest, MessagesThatAreReceivedMakeRoomForOthers) {
  for (std::uint64_t tag = 0; tag < 10'000; ++tag) {
    arrive(tag, 8);
    if (tag >= 31) recv(tag - 31, 8);
    run();
  }
  EXPECT_TRUE(link_.broken.empty());
  EXPECT_EQ(matcher_.unmatched(), 31u);
}

TEST_F(MatcherLimitsTest, MoreOffersOfAGroupThanItsQuotaEndThePeerUnlessWeAskedForThem) {
  for (std::uint64_t tag = 0; tag < kEagerQuotaMessages; ++tag) {
    matcher_.on_offer({{9, tag}, 1, 5000});
  }
  matcher_.solicit({9, 500});
  matcher_.on_offer({{9, 500}, 1, 5000});
  recv(501, 5000);
  matcher_.on_offer({{9, 501}, 1, 5000});
  EXPECT_TRUE(link_.broken.empty());
  recv(0, 5000);  // makes room for one
  matcher_.on_control(Control::kCancelSend, {9, 1}, {UINT32_MAX, 0}, 0);
  matcher_.on_offer({{9, 600}, 1, 5000});
  matcher_.on_offer({{9, 601}, 1, 5000});
  EXPECT_TRUE(link_.broken.empty());
  matcher_.on_offer({{9, 1000}, 1, 5000});
  expect_end("offers of one group");
  EXPECT_EQ(matcher_.unmatched(), kEagerQuotaMessages + 1);
}

TEST_F(MatcherLimitsTest, ManyGroupsTogetherAreBoundedToo) {
  host_.observer = nullptr;
  for (std::uint64_t group = 0; group < kGroupsAtQuota; ++group) {
    for (std::uint64_t tag = 0; tag < kEagerQuotaMessages; ++tag) arrive_in(group, tag, 0);
  }
  EXPECT_TRUE(link_.broken.empty());
  arrive_in(kGroupsAtQuota, 0, 0);
  expect_end("offers and small messages");
  link_.broken.clear();
  matcher_.on_offer({{kGroupsAtQuota, 1}, 1, 5000});
  expect_end("offers and small messages");
  EXPECT_EQ(matcher_.unmatched(), kMostUnmatched);
}

TEST_F(MatcherLimitsTest, BytesOfManyGroupsAreBoundedToo) {
  for (std::uint64_t group = 0; group < kGroupsAtQuota; ++group) {
    for (std::uint64_t tag = 0; tag < 16; ++tag) arrive_in(group, tag, kEagerQuotaBytes / 16);
  }
  EXPECT_TRUE(link_.broken.empty());
  arrive_in(kGroupsAtQuota, 0, 1);
  expect_end("offers and small messages");
  EXPECT_LE(host_.buffers.bytes_in_use(), kMostUnmatchedBytes);
}

TEST_F(MatcherLimitsTest, WantsAndSolicitationsWithoutASendAreBounded) {
  host_.observer = nullptr;
  const std::uint64_t most = kMostReceives + kMostUnmatched;
  for (std::uint64_t tag = 0; tag < most; ++tag) {
    if (tag % 2 == 0) {
      matcher_.on_want({{9, tag}, 1, 5000, {static_cast<std::uint32_t>(tag), 1}});
    } else {
      matcher_.on_control(Control::kSolicit, {9, tag}, {}, 0);
    }
  }
  EXPECT_TRUE(link_.broken.empty());
  send(0, 5000);  // served: one place is free again
  matcher_.on_want({{9, most}, 1, 5000, {1, 1}});
  EXPECT_TRUE(link_.broken.empty());
  matcher_.on_want({{9, most + 1}, 1, 5000, {1, 1}});
  expect_end("wants");
  link_.broken.clear();
  matcher_.on_control(Control::kSolicit, {9, most + 2}, {}, 0);
  expect_end("wants");
  EXPECT_EQ(matcher_.unserved(), most);
}

TEST_F(MatcherLimitsTest, GroupsThatThePeerBlocksAreBounded) {
  for (std::uint64_t group = 0; group < kMostUnmatched; ++group) {
    matcher_.on_control(Control::kBlocked, {group, 1}, {}, 0);
    matcher_.on_control(Control::kBlocked, {group, 1}, {}, 0);  // says nothing new
  }
  matcher_.on_control(Control::kBlocked, {0, 0}, {}, 0);
  matcher_.on_control(Control::kBlocked, {1'000'000, 1}, {}, 0);
  EXPECT_TRUE(link_.broken.empty());
  matcher_.on_control(Control::kBlocked, {1'000'001, 1}, {}, 0);
  expect_end("groups");
}

TEST_F(MatcherLimitsTest, ReportsAboutUnknownGroupsLeaveNothingBehind) {
  for (std::uint64_t group = 0; group < 10'000; ++group) {
    matcher_.on_control(Control::kEagerConsumed, {group, 1}, {}, 8);
    matcher_.on_control(Control::kBlocked, {group, 0}, {}, 0);
  }
  EXPECT_EQ(matcher_.groups_remembered(), 0u);
}

TEST_F(MatcherLimitsTest, OurOwnReceivesKeepToTheBoundThatThePeerHoldsUsTo) {
  for (std::uint64_t tag = 0; tag < kMostReceives; ++tag) recv(tag, 8);
  run();
  for (const Outcome& each : outcomes_) ASSERT_EQ(each.calls, 0);
  RecvRequest& beyond = recv(kMostReceives, 8);
  run();
  EXPECT_EQ(outcome(beyond).status.code(), Code::kResource);
  EXPECT_EQ(matcher_.open_receives(), kMostReceives);
}

TEST_F(MatcherLimitsTest, ALostPeerLeavesNothingBehind) {
  matcher_.solicit({9, 1});
  matcher_.on_lost(Status("gone", PeerLoss{}));
  arrive(2, 8);
  matcher_.on_offer({{9, 3}, 1, 5000});
  matcher_.on_want({{9, 4}, 1, 5000, {1, 1}});
  matcher_.on_control(Control::kSolicit, {9, 5}, {}, 0);
  matcher_.on_control(Control::kBlocked, {9, 1}, {}, 0);
  EXPECT_EQ(matcher_.unmatched() + matcher_.unserved() + matcher_.groups_remembered(), 0u);
}

}  // namespace
}  // namespace taco::harp
