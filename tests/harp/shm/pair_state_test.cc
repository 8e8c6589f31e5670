#include "harp/shm/pair_state.h"

#include "support/machine_table.h"

namespace taco::harp {
namespace {

TEST(PairState, ConnectionsFollowTheirTable) {
  using enum PairConnection;
  expect_table<PairConnection>({{kIdle, {kConnecting, kLost}},
                                {kConnecting, {kGreeted, kUp, kLost}},
                                {kGreeted, {kUp, kLost}},
                                {kUp, {kLost}},
                                {kLost, {}}});
}

TEST(PairState, AVerdictOnlyGetsWorse) {
  using enum PairVerdict;
  expect_table<PairVerdict>({{kNone, {kMissed, kEnded, kBroken}},
                             {kMissed, {kBroken}},
                             {kEnded, {kBroken}},
                             {kBroken, {}}});
}

TEST(PairState, GoodbyesAreSaidOnce) {
  expect_table<OwnGoodbye>({{OwnGoodbye::kUnsaid, {OwnGoodbye::kSaid}},
                            {OwnGoodbye::kSaid, {OwnGoodbye::kSeen}},
                            {OwnGoodbye::kSeen, {}}});
  expect_table<PeerGoodbye>({{PeerGoodbye::kUnsaid, {PeerGoodbye::kRead}},
                             {PeerGoodbye::kRead, {PeerGoodbye::kTold}},
                             {PeerGoodbye::kTold, {}}});
}

TEST(PairState, SendsFollowTheirTable) {
  using enum PairSendStage;
  expect_table<PairSendStage>({{kFree, {kQueued, kPulled}},
                               {kQueued, {kCopied, kFree}},
                               {kPulled, {kQueued, kFree}},
                               {kCopied, {kFree}}});
}

}  // namespace
}  // namespace taco::harp
