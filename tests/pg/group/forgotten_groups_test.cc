// Two processes that live long and see thousands of groups fail: what the groups left unmatched
// ends with them, and neither process is taken for one that goes beyond its quotas.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "harp/engine/stack.h"
#include "harp/quotas.h"
#include "pg/communicator.h"
#include "support/eventually.h"
#include "support/processes.h"

namespace taco::pg {
namespace {

using harp::Stack;
using harp::StackOptions;
using testing::Fellowship;
using testing::run_processes;

constexpr int kSmallSends = 32;  // of every group, unmatched at rank 1
// More than the peer may keep here, were it all to stay.
constexpr std::uint64_t kGroups = harp::kMaxUnmatched / kSmallSends + 100;

struct Way {
  const char* name;
  StackOptions::Force force;
  bool is_closed;  // or only aborted, and kept until the end
};

class Member {
 public:
  Member(Fellowship& fellowship, const Way& way) : fellowship_(fellowship) {
    StackOptions options;
    options.transport = way.force;
    auto made = Stack::acquire(options);
    EXPECT_TRUE(made.ok()) << made.status().message();
    stack_ = std::move(made).value();
    const auto addresses = fellowship.all_gather(stack_->address());
    peers_.assign(2, 0);
    const auto added = stack_->add_peer(addresses[1 - rank()]);
    EXPECT_TRUE(added.ok()) << added.status().message();
    peers_[1 - rank()] = added.value();
  }
  ~Member() { stack_->close(); }

  int rank() const { return fellowship_.rank(); }
  Stack& stack() { return *stack_; }
  std::shared_ptr<Communicator> make(std::uint64_t id) {
    GroupOptions options;
    options.id = id;
    options.name = "short-lived";
    options.rank = rank();
    options.world = 2;
    options.peers = peers_;
    options.host_of_rank = {0, 0};
    options.host_gbits = {0};
    options.timeout = 60 * kSecond;
    auto created = Communicator::create(stack_, options);
    EXPECT_TRUE(created.ok()) << created.status().message();
    return created.ok() ? created.value() : nullptr;
  }

 private:
  Fellowship& fellowship_;
  std::shared_ptr<Stack> stack_;
  std::vector<harp::PeerId> peers_;
};

Result<OperationPtr> start(Communicator& group, Kind kind, std::vector<float>& data, int peer,
                           std::uint32_t tag) {
  OperationSpec spec{.kind = kind, .dtype = kernels::Dtype::kF32, .root = peer};
  spec.tag = tag;
  const Piece piece{reinterpret_cast<std::byte*>(data.data()), data.size() * sizeof(float)};
  (kind == Kind::kSend ? spec.inputs : spec.outputs) = {piece};
  return group.start(spec);
}

// Rank 0 sends what rank 1 never receives, before rank 1 has made the group, but for one message.
void fail_as_sender(Member& member, Fellowship& fellowship, std::uint64_t id,
                    std::vector<std::shared_ptr<Communicator>>& kept, bool is_closed) {
  std::vector<float> small(2, 1.0f), large(100'000, 2.0f);
  auto group = member.make(id);
  std::vector<OperationPtr> open;
  for (std::uint32_t tag = 0; tag < kSmallSends; ++tag) {
    auto sent = start(*group, Kind::kSend, small, 1, tag);
    ASSERT_TRUE(sent.ok()) << sent.status().message();
    open.push_back(std::move(sent).value());
  }
  auto offered = start(*group, Kind::kSend, large, 1, 1000);
  ASSERT_TRUE(offered.ok()) << offered.status().message();
  open.push_back(std::move(offered).value());
  if (id % 64 == 0) fellowship.barrier();
  fellowship.barrier();
  group->abort(Status(Code::kAborted, "enough"));
  for (const OperationPtr& each : open) (void)each->wait(0);
  if (is_closed)
    (void)group->close(0);
  else
    kept.push_back(std::move(group));
}

// Rank 1 receives one message that came before the group was made, asks for one that never comes,
// and leaves the rest.
void fail_as_receiver(Member& member, Fellowship& fellowship, std::uint64_t id,
                      std::vector<std::shared_ptr<Communicator>>& kept, bool is_closed) {
  if (id % 64 == 0) fellowship.barrier();
  std::vector<float> small(2), never(2);
  auto group = member.make(id);
  auto received = start(*group, Kind::kRecv, small, 0, 0);
  ASSERT_TRUE(received.ok()) << received.status().message();
  const Status status = (*received)->wait(0);
  ASSERT_TRUE(status.ok()) << "group " << id << ": " << status.message();
  EXPECT_EQ(small[0], 1.0f);
  auto asked = start(*group, Kind::kRecv, never, -1, 2000);
  ASSERT_TRUE(asked.ok()) << asked.status().message();
  fellowship.barrier();
  group->abort(Status(Code::kAborted, "enough"));
  (void)(*asked)->wait(0);
  if (is_closed)
    (void)group->close(0);
  else
    kept.push_back(std::move(group));
}

void live_long(Fellowship& fellowship, const Way& way) {
  set_log_level(LogLevel::kWarning);  // every group says that it has failed
  Member member(fellowship, way);
  std::vector<std::shared_ptr<Communicator>> kept;
  const auto fail = member.rank() == 0 ? fail_as_sender : fail_as_receiver;
  for (std::uint64_t id = 1; id <= kGroups && !::testing::Test::HasFailure(); ++id)
    fail(member, fellowship, id, kept, way.is_closed);
  fellowship.barrier();
  // Messages that were under way come and are dropped.
  testing::eventually([&] { return member.stack().stats().unmatched == 0; }, 20 * kSecond);
  EXPECT_EQ(member.stack().stats().unmatched, 0u) << "rank " << member.rank();
  fellowship.barrier();
  auto last = member.make(kGroups + 1);
  auto barrier = last->start({.kind = Kind::kBarrier});
  ASSERT_TRUE(barrier.ok()) << barrier.status().message();
  const Status status = (*barrier)->wait(0);
  EXPECT_TRUE(status.ok()) << status.message();
  (void)last->close(kSecond);
  for (auto& group : kept) (void)group->close(0);
  fellowship.barrier();
}

class ForgottenGroups : public ::testing::TestWithParam<Way> {};

TEST_P(ForgottenGroups, ThousandsThatFailedLeaveNothingBehind) {
  const auto statuses =
      run_processes({.count = 2, .deadline = 120 * kSecond},
                    [&](Fellowship& fellowship) { live_long(fellowship, GetParam()); });
  for (const int status : statuses) EXPECT_EQ(status, 0);
}

INSTANTIATE_TEST_SUITE_P(Ways, ForgottenGroups,
                         ::testing::Values(Way{"ShmClosed", StackOptions::Force::kShm, true},
                                           Way{"ShmAborted", StackOptions::Force::kShm, false},
                                           Way{"UdpClosed", StackOptions::Force::kUdp, true},
                                           Way{"UdpAborted", StackOptions::Force::kUdp, false}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace taco::pg
