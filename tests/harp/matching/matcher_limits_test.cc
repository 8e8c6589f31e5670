// Limits of what a peer can make the Matcher keep, and for how long.
#include "harp/matching/matcher_fixture.h"

namespace taco::harp {
namespace {

// Limits of what a peer that breaks the rules can make this process keep; an honest one is never
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
  matcher_.on_control(CancelOffer{{9, 1}});
  matcher_.on_offer({{9, 600}, 1, 5000});
  matcher_.on_offer({{9, 601}, 1, 5000});
  EXPECT_TRUE(link_.broken.empty());
  matcher_.on_offer({{9, 1000}, 1, 5000});
  expect_end("offers of one group");
  EXPECT_EQ(matcher_.unmatched(), kEagerQuotaMessages + 1);
}

TEST_F(MatcherLimitsTest, AnOfferThatCrossesTheEndOfItsReceiveIsTakenBack) {
  FakeLink theirs;
  Matcher sender(0, host_);
  sender.attach(theirs);
  for (std::uint64_t tag = 0; tag < kEagerQuotaMessages + 6; ++tag) {
    RecvRequest& receive = recv(tag, 5000);
    matcher_.cancel(receive, Status(Code::kAborted, "no longer needed"));
    SendRequest request;
    Outcome sent;
    request.key = {9, tag};
    request.signature = tag % 2 == 0 ? 1 : 2;  // the want is served, or refused
    request.data = data_.data();
    request.bytes = 5000;
    request.on_done = note<SendRequest>;
    request.context = &sent;
    sender.send(request);
    ASSERT_EQ(theirs.offers.size(), tag + 1);
    sender.on_want(link_.wants.back());
    for (const Control& control : link_.controls) {
      sender.on_control(control);
    }
    link_.controls.clear();
    matcher_.on_offer(theirs.offers.back());
    for (const Control& control : theirs.controls) {
      matcher_.on_control(control);
    }
    theirs.controls.clear();
    run();
    ASSERT_EQ(sent.calls, 1);
    ASSERT_FALSE(sent.status.ok());
    ASSERT_EQ(matcher_.unmatched(), 0u) << "round " << tag;
  }
  EXPECT_TRUE(link_.broken.empty());
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
  EXPECT_EQ(matcher_.unmatched(), kMaxUnmatched);
}

TEST_F(MatcherLimitsTest, BytesOfManyGroupsAreBoundedToo) {
  for (std::uint64_t group = 0; group < kGroupsAtQuota; ++group) {
    for (std::uint64_t tag = 0; tag < 16; ++tag) arrive_in(group, tag, kEagerQuotaBytes / 16);
  }
  EXPECT_TRUE(link_.broken.empty());
  arrive_in(kGroupsAtQuota, 0, 1);
  expect_end("offers and small messages");
  EXPECT_LE(host_.buffers.bytes_in_use(), kMaxUnmatchedBytes);
}

TEST_F(MatcherLimitsTest, WantsAndSolicitationsWithoutASendAreBounded) {
  host_.observer = nullptr;
  const std::uint64_t most = kMaxReceives + kMaxUnmatched;
  for (std::uint64_t tag = 0; tag < most; ++tag) {
    if (tag % 2 == 0) {
      matcher_.on_want({{9, tag}, 1, 5000, {static_cast<std::uint32_t>(tag), 1}});
    } else {
      matcher_.on_control(Solicit{{9, tag}});
    }
  }
  EXPECT_TRUE(link_.broken.empty());
  send(0, 5000);  // served: one place is free again
  matcher_.on_want({{9, most}, 1, 5000, {1, 1}});
  EXPECT_TRUE(link_.broken.empty());
  matcher_.on_want({{9, most + 1}, 1, 5000, {1, 1}});
  expect_end("wants");
  link_.broken.clear();
  matcher_.on_control(Solicit{{9, most + 2}});
  expect_end("wants");
  EXPECT_EQ(matcher_.unserved(), most);
}

TEST_F(MatcherLimitsTest, GroupsThatThePeerBlocksAreBounded) {
  for (std::uint64_t group = 0; group < kMaxUnmatched; ++group) {
    matcher_.on_control(Blocked{group, true});
    matcher_.on_control(Blocked{group, true});  // says nothing new
  }
  matcher_.on_control(Blocked{0, false});
  matcher_.on_control(Blocked{1'000'000, true});
  EXPECT_TRUE(link_.broken.empty());
  matcher_.on_control(Blocked{1'000'001, true});
  expect_end("groups");
}

TEST_F(MatcherLimitsTest, ReportsAboutUnknownGroupsLeaveNothingBehind) {
  for (std::uint64_t group = 0; group < 10'000; ++group) {
    matcher_.on_control(EagerConsumed{group, 1, 8});
    matcher_.on_control(Blocked{group, false});
  }
  EXPECT_EQ(matcher_.groups_remembered(), 0u);
}

TEST_F(MatcherLimitsTest, OurOwnReceivesKeepToTheBoundThatThePeerHoldsUsTo) {
  for (std::uint64_t tag = 0; tag < kMaxReceives; ++tag) recv(tag, 8);
  run();
  for (const Outcome& each : outcomes_) ASSERT_EQ(each.calls, 0);
  RecvRequest& beyond = recv(kMaxReceives, 8);
  run();
  EXPECT_EQ(outcome(beyond).status.code(), Code::kResource);
  EXPECT_EQ(matcher_.open_receives(), kMaxReceives);
}

TEST_F(MatcherLimitsTest, ALostPeerLeavesNothingBehind) {
  matcher_.solicit({9, 1});
  matcher_.on_lost(Status("gone", PeerLoss{}));
  arrive(2, 8);
  matcher_.on_offer({{9, 3}, 1, 5000});
  matcher_.on_want({{9, 4}, 1, 5000, {1, 1}});
  matcher_.on_control(Solicit{{9, 5}});
  matcher_.on_control(Blocked{9, true});
  EXPECT_EQ(matcher_.unmatched() + matcher_.unserved() + matcher_.groups_remembered(), 0u);
}

// Groups that are over here: what peers keep here for them ends, and nothing gathers afterwards.
class MatcherOverTest : public MatcherLimitsTest {
 protected:
  void end_group(std::uint64_t group) {
    host_.over.add(group);
    matcher_.forget_group(group);
  }
  std::size_t kept() { return matcher_.kept_for_peer() + host_.buffers.bytes_in_use(); }
  // One of everything that a peer can leave here, and one question of ours.
  void leave_all(std::uint64_t group) {
    arrive_in(group, 1, 100);
    matcher_.on_offer({{group, 2}, 1, 5000});
    matcher_.on_want({{group, 3}, 1, 5000, {1, 1}});
    matcher_.on_control(Solicit{{group, 4}});
    matcher_.on_control(Blocked{group, true});
  }
};

TEST_F(MatcherOverTest, WhatAGroupLeftUnmatchedEndsWithIt) {
  leave_all(9);
  leave_all(10);
  const std::size_t of_one = kept() / 2;
  matcher_.solicit({9, 5});
  end_group(9);
  EXPECT_EQ(kept(), of_one) << "the other group's stays";
  EXPECT_TRUE(matcher_.has_unmatched({10, 1}));
  ASSERT_EQ(link_.count<EagerConsumed>(), 1u) << "its sender may be in the group still";
  const EagerConsumed consumed = link_.first<EagerConsumed>();
  EXPECT_EQ(consumed.group, 9u);
  EXPECT_EQ(consumed.messages, 1u);
  EXPECT_EQ(consumed.bytes, 100u);
  EXPECT_EQ(link_.count<Solicit>(), 1u);
  EXPECT_EQ(link_.count<VoidSolicit>(), 1u) << "our question is taken back";
  EXPECT_EQ(matcher_.groups_remembered(), 1u);
  end_group(10);
  EXPECT_EQ(kept(), 0u);
}

TEST_F(MatcherOverTest, WhatComesForAGroupThatIsOverIsHeardOfAndNotKept) {
  end_group(9);
  leave_all(9);
  EXPECT_EQ(kept(), 0u);
  EXPECT_EQ(observer_.unmatched, (std::vector<std::uint64_t>{1, 2, 3}));
  leave_all(10);  // of which nothing is known here yet
  EXPECT_GT(kept(), 0u);
  RecvRequest& early = recvs_.emplace_back();
  early.key = {10, 1};
  early.signature = 1;
  early.max_bytes = 100;
  early.sink = Sink::place(target_.data());
  early.on_done = note<RecvRequest>;
  early.context = &outcomes_.emplace_back();
  matcher_.recv(early);
  run();
  EXPECT_TRUE(outcome(early).calls == 1 && outcome(early).status.ok());
}

TEST_F(MatcherOverTest, ASenderThatIsInTheGroupStillHasItsQuotaBack) {
  for (std::uint64_t tag = 0; tag < 20; ++tag) arrive(tag, 100);
  end_group(9);
  std::uint64_t unreported = 20, reported_bytes = 0, most = 0;
  std::size_t seen = 0;
  const auto hear = [&] {
    for (; seen < link_.controls.size(); ++seen) {
      const auto* report = std::get_if<EagerConsumed>(&link_.controls[seen]);
      if (report == nullptr) continue;
      unreported -= report->messages;
      reported_bytes += report->bytes;
    }
  };
  hear();
  EXPECT_EQ(unreported, 0u);
  for (std::uint64_t tag = 20; tag < 10'000; ++tag) {
    arrive(tag, 100);
    ++unreported;
    hear();
    most = std::max(most, unreported);
  }
  EXPECT_TRUE(link_.broken.empty());
  EXPECT_LT(most, kEagerQuotaMessages / 2) << "the sender never runs out";
  EXPECT_EQ(reported_bytes, (10'000 - unreported) * 100);
  EXPECT_EQ(kept(), 0u);
}

TEST_F(MatcherOverTest, RequestsThatAreOpenAfterAllStayOpen) {
  RecvRequest& receive = recv(1, 5000);
  SendRequest& large = send(2, 5000);
  end_group(9);
  matcher_.on_want({{9, 2}, 1, 5000, {4, 4}});
  EXPECT_EQ(link_.bulks.size(), 1u);
  arrive(1, 8);
  run();
  EXPECT_TRUE(outcome(receive).status.ok() && outcome(receive).calls == 1);
  matcher_.send_finished(large, Status());
  run();
  EXPECT_EQ(outcome(large).calls, 1);
}

TEST_F(MatcherOverTest, HundredsOfThousandsOfGroupsLeaveNothingBehind) {
  host_.observer = nullptr;
  for (std::uint64_t group = 1; group <= 200'000; ++group) {
    leave_all(group);
    end_group(group);
    arrive_in(group, 11, 100);
    matcher_.on_offer({{group, 12}, 1, 5000});
    matcher_.on_want({{group, 13}, 1, 5000, {1, 1}});
    matcher_.on_control(Blocked{group, true});
    link_.controls.clear();
  }
  EXPECT_TRUE(link_.broken.empty());
  EXPECT_EQ(kept(), 0u);
  EXPECT_LE(matcher_.groups_remembered(), 128u);
  EXPECT_LE(host_.over.size(), OverGroups::kMax);
}

TEST_F(MatcherOverTest, WhatALostPeerLeftEndsToo) {
  leave_all(9);
  matcher_.on_lost(Status("gone", PeerLoss{}));
  const std::size_t said = link_.controls.size();
  end_group(9);
  EXPECT_EQ(kept(), 0u);
  EXPECT_EQ(link_.controls.size(), said) << "there is nobody to tell";
}

// Memory of a busy time is given back; but what the peer may yet say of it means nothing later.
TEST_F(MatcherLimitsTest, TablesShrinkOnceLittleOfThemIsInUse) {
  constexpr std::uint64_t kMany = 16'384;
  recv(kMany, 5000);
  const std::size_t few = matcher_.memory_bytes();
  for (std::uint64_t tag = 0; tag < kMany; ++tag) {
    recv(tag, 5000);
    send(tag, 5000);
  }
  EXPECT_EQ(host_.large, (std::vector<Matcher*>{&matcher_}));
  EXPECT_FALSE(matcher_.trim()) << "all of it is in use";
  const std::vector<Want> wants = std::exchange(link_.wants, {});
  for (std::uint64_t tag = 0; tag < kMany; ++tag) {
    matcher_.cancel(recvs_[tag + 1], Status(Code::kAborted, "enough"));
    matcher_.cancel(sends_[tag], Status(Code::kAborted, "enough"));
  }
  run();
  EXPECT_TRUE(matcher_.trim());
  EXPECT_LE(matcher_.memory_bytes(), 8 * few);
  EXPECT_EQ(matcher_.receive_of(wants.front().slot), &recvs_[0]) << "it is open still";
  for (std::uint64_t tag = 0; tag < 100; ++tag) recv(kMany + 1 + tag, 5000);
  for (const Want& old : std::span(wants).subspan(1)) {
    ASSERT_EQ(matcher_.receive_of(old.slot), nullptr) << "slot " << old.slot.index;
  }
}

}  // namespace
}  // namespace taco::harp
