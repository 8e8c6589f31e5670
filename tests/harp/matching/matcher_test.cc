// How the Matcher pairs sends with receives, ends them and tells.
#include "harp/matching/matcher_fixture.h"

namespace taco::harp {
namespace {

TEST_F(MatcherTest, SmallSendsGoAtOnceUntilTheQuotaAndThenWaitToBeWanted) {
  for (std::uint64_t tag = 0; tag < kEagerQuotaMessages; ++tag) send(tag, 8);
  EXPECT_EQ(link_.eagers.size(), kEagerQuotaMessages);
  EXPECT_EQ(link_.count<Blocked>(), 0u);
  SendRequest& kept = send(1000, 8);
  send(1001, 8);
  EXPECT_EQ(link_.eagers.size(), kEagerQuotaMessages);
  EXPECT_EQ(link_.count<Blocked>(), 1u) << "said once";
  matcher_.on_want({{9, 1000}, 1, 8, {4, 4}});
  ASSERT_EQ(link_.bulks.size(), 1u);
  EXPECT_EQ(link_.bulks[0].first, &kept);
  matcher_.on_control(EagerConsumed{9, 32, 32 * 8});
  EXPECT_EQ(link_.eagers.size(), kEagerQuotaMessages + 1) << "the other one goes eagerly now";
  EXPECT_FALSE(link_.last<Blocked>().blocked) << "and the group is free again";
}

// As when a process ends: nobody asks for what became of them any more.
TEST(CompletionQueue, KeepsNothingOfWhatNobodyTakes) {
  SendRequest send;
  RecvRequest recv;
  {
    CompletionQueue queue;
    queue.push(send, Status(Code::kAborted, "withdrawn"));
    queue.push(recv, Status(Code::kAborted, "withdrawn"));
    ASSERT_NE(recv.failure, nullptr);
  }
  EXPECT_EQ(send.failure, nullptr);
  EXPECT_EQ(recv.failure, nullptr);
}

TEST_F(MatcherTest, QuotaCountsBytesToo) {
  for (std::uint64_t tag = 0; tag < 70; ++tag) send(tag, 1000);
  EXPECT_EQ(link_.eagers.size(), 64u);
  for (std::uint64_t tag = 0; tag < 70; ++tag) {
    send(tag, 1000, 1, 10);
  }
  EXPECT_EQ(link_.eagers.size(), 128u) << "another group has a quota of its own";
}

TEST_F(MatcherTest, ABlockedPeerMakesEveryPostedReceiveWanted) {
  recv(1, 8);
  recv(2, 8);
  EXPECT_TRUE(link_.wants.empty());
  matcher_.on_control(Blocked{9, true});
  EXPECT_EQ(link_.wants.size(), 2u);
  recv(3, 8);
  EXPECT_EQ(link_.wants.size(), 3u);
  matcher_.on_control(Blocked{9, false});
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
  EXPECT_EQ(link_.count<EagerConsumed>(), 0u);
  arrive(31, 8);
  recv(31, 8);
  ASSERT_EQ(link_.count<EagerConsumed>(), 1u);
  EXPECT_EQ(link_.last<EagerConsumed>().messages, 32u);
  EXPECT_EQ(link_.last<EagerConsumed>().bytes, 32u * 8);
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
  EXPECT_EQ(link_.count<VoidWant>(), 1u);
  EXPECT_EQ(link_.forgotten.size(), 1u);
  run();
  EXPECT_TRUE(outcome(request).status.ok());
  // The other side of it: the want is forgotten.
  matcher_.on_want({{9, 50}, 1, 5000, {7, 7}});
  matcher_.on_control(VoidWant{{9, 50}, {7, 7}});
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
  EXPECT_EQ(link_.count<MismatchAtSend>(), 1u);

  SendRequest& second = send(2, 5000, 21);
  matcher_.on_want({{9, 2}, 22, 5000, {1, 1}});
  run();
  EXPECT_EQ(outcome(second).status.code(), Code::kMismatch);
  EXPECT_TRUE(link_.bulks.empty());
  EXPECT_EQ(observer_.mismatches.back(), (std::pair<std::uint64_t, std::uint64_t>{21, 22}));

  RecvRequest& third = recv(3, 5000, 31);
  matcher_.on_control(MismatchAtReceive{{9, 3}, link_.wants.back().slot, 32});
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
  EXPECT_EQ(link_.count<CancelReceive>(), 1u);
  SendRequest& offered = send(2, 5000);
  matcher_.cancel(offered, why);
  SendRequest& bulk = send(3, 5000);
  matcher_.on_want({{9, 3}, 1, 5000, {1, 1}});
  matcher_.cancel(bulk, why);
  matcher_.cancel(bulk, why);  // its completion is on its way: no second one
  EXPECT_EQ(link_.withdrawn.size(), 1u);
  EXPECT_EQ(link_.count<CancelOffer>(), 2u);
  EXPECT_EQ(link_.count<CancelSend>(), 1u) << "the bulk transfer";
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
  matcher_.on_control(CancelReceive{{9, 1}, {1, 1}});
  RecvRequest& receive = recv(2, 5000);
  matcher_.on_control(CancelSend{{9, 2}, link_.wants.back().slot});
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
  matcher_.on_control(Solicit{{9, kEagerQuotaMessages}});
  EXPECT_EQ(link_.offers.size(), kEagerQuotaMessages + 1);
  matcher_.on_control(Solicit{{9, 500}});
  send(500, 8);
  EXPECT_EQ(link_.offers.back().key.tag, 500u);
}

// The message was on its way when it was asked for: its sender must not keep the question for ever.
TEST_F(MatcherTest, ASolicitationThatCrossesItsMessageIsTakenBack) {
  matcher_.solicit({9, 7});
  ASSERT_EQ(link_.count<Solicit>(), 1u);
  arrive(7, 8);
  ASSERT_EQ(link_.controls.size(), 2u);
  EXPECT_EQ(link_.last<VoidSolicit>().key.tag, 7u);
  // The other side of it.
  matcher_.on_control(Solicit{{9, 500}});
  EXPECT_EQ(matcher_.unserved(), 1u);
  matcher_.on_control(VoidSolicit{{9, 500}});
  EXPECT_EQ(matcher_.unserved(), 0u);
  send(500, 8);
  EXPECT_EQ(link_.eagers.size(), 1u);
  EXPECT_TRUE(link_.offers.empty());
}

TEST_F(MatcherTest, ASolicitationThatWasAnsweredIsNotTakenBack) {
  matcher_.solicit({9, 7});
  matcher_.on_offer({{9, 7}, 1, 8});
  recv(7, 8);
  EXPECT_EQ(link_.count<Solicit>(), 1u);
  EXPECT_EQ(link_.wants.size(), 1u);
  EXPECT_EQ(matcher_.unmatched(), 0u);
}

// An offer that its own message overtook would wait for a receive for ever.
TEST_F(MatcherTest, AnOfferedSendWaitsToBeWantedEvenWhenQuotaComesBack) {
  for (std::uint64_t tag = 0; tag < kEagerQuotaMessages; ++tag) send(tag, 8);
  send(1000, 8);
  matcher_.on_control(Solicit{{9, 1000}});
  ASSERT_EQ(link_.offers.size(), 1u);
  matcher_.on_control(EagerConsumed{9, 32, 32 * 8});
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

// The message that it sent last may be asked for by the callback of the one before.
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
    matcher_.on_control(EagerConsumed{group, 1, 0});
    run();
    link_.eagers.clear();
  }
  EXPECT_LE(matcher_.groups_remembered(), 128u);
}

TEST_F(MatcherTest, OffersThatTheirMessagesHaveOvertakenAreCountedByKeyAndStandForNothing) {
  for (int round = 0; round < 2; ++round) {
    RecvRequest& request = recv(1, 5000);
    matcher_.on_offered(link_.wants.back().slot);
    matcher_.receive_finished(link_.wants.back().slot, Status());
    run();
    EXPECT_EQ(outcome(request).calls, 1);
  }
  EXPECT_EQ(matcher_.kept_for_peer(), 0u);
  for (int round = 0; round < 2; ++round) {
    matcher_.on_offer({{9, 1}, 1, 5000});
    EXPECT_FALSE(matcher_.has_unmatched({9, 1}));
  }
  EXPECT_TRUE(observer_.unmatched.empty());
  matcher_.on_offer({{9, 1}, 1, 5000});
  EXPECT_TRUE(matcher_.has_unmatched({9, 1})) << "the next message's";
  // An offer that came in time is not waited for again.
  recv(1, 5000);
  matcher_.on_offered(link_.wants.back().slot);
  matcher_.receive_finished(link_.wants.back().slot, Status());
  matcher_.on_offer({{9, 1}, 1, 5000});
  EXPECT_TRUE(matcher_.has_unmatched({9, 1}));
}

TEST_F(MatcherTest, TheLinkIsToldWhichMessagesWereOffered) {
  SendRequest& offered = send(1, 5000);
  matcher_.on_want({{9, 1}, 1, 5000, {0, 1}});
  matcher_.on_want({{9, 2}, 1, 5000, {1, 1}});
  send(2, 5000);
  EXPECT_EQ(link_.bulks.size(), 2u);
  EXPECT_EQ(link_.offered_bulks, std::vector<SendRequest*>{&offered});
}

TEST_F(MatcherTest, APeerThatBeginsAnewIsHeldToNothingThatWasBetweenUsBefore) {
  arrive(1, 100);
  matcher_.on_offer({{9, 2}, 1, 5000});
  matcher_.on_want({{9, 3}, 1, 5000, {0, 1}});
  matcher_.on_control(Blocked{9, true});
  for (std::uint64_t tag = 100; tag < 100 + kEagerQuotaMessages; ++tag) send(tag, 10);
  SendRequest& beyond = send(4, 10);
  for (SendRequest* eager : link_.eagers) matcher_.send_finished(*eager, Status());
  EXPECT_TRUE(matcher_.is_waiting());
  matcher_.cancel(beyond, Status(Code::kAborted, "not needed"));
  run();
  ASSERT_FALSE(matcher_.is_waiting());
  FakeLink next;
  matcher_.begin_anew(next);
  EXPECT_EQ(matcher_.kept_for_peer(), 1u) << "what has come whole";
  RecvRequest& first = recv(1, 100);
  run();
  EXPECT_EQ(outcome(first).calls, 1);
  // The slot of the want may be another receive's now.
  send(3, 5000);
  EXPECT_TRUE(next.bulks.empty());
  EXPECT_EQ(next.offers.size(), 1u);
  // The offer's send is no more; nor does the peer want small messages by name.
  recv(2, 500);
  EXPECT_TRUE(next.wants.empty());
  // The quota is whole again.
  send(5, 10);
  EXPECT_EQ(next.eagers.size(), 1u);
  EXPECT_EQ(next.count<Blocked>(), 0u);
}

}  // namespace
}  // namespace taco::harp
