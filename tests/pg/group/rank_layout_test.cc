// Ranks that are threads of one process, beside ranks in processes of their own, on real
// transports: to each other they are peers like any.
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "harp/engine/stacks.h"
#include "support/collective_checks.h"
#include "support/processes.h"
#include "support/rank_threads.h"

namespace taco::pg {
namespace {

using harp::Stack;
using harp::StackOptions;
using testing::everything;
using testing::Fellowship;
using testing::on_threads;
using testing::run_processes;
using Force = StackOptions::Force;

constexpr std::uint64_t kGroupId = 0x5eaf;

// Elements of the largest collective, which goes in several chunks. Under a sanitizer what the
// plain computation takes for so many is most of the test's time: there it is one that a receiver
// asks for.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::size_t kMany = 20'000;
#else
constexpr std::size_t kMany = 200'000;
#endif

// The ranks of this process: a Stack and a group each. Each process holds `layout[process]`
// consecutive ranks.
class LocalRanks {
 public:
  LocalRanks(Fellowship& fellowship, const std::vector<int>& layout, Force transport)
      : mine_(layout[fellowship.rank()]) {
    StackOptions options;
    options.transport = transport;
    std::vector<const Stack*> occupied;
    std::string addresses;
    for (int i = 0; i < mine_; ++i) {
      auto made = harp::acquire_beside(occupied, options);
      EXPECT_TRUE(made.ok()) << made.status().message();
      stacks_.push_back(std::move(made).value());
      occupied.push_back(stacks_.back().get());
      addresses += text_of(stacks_.back()->address());
    }
    for (int process = 0; process < fellowship.rank(); ++process) first_ += layout[process];
    std::string all;
    for (const std::string& some : fellowship.all_gather(addresses)) all += some;
    for (int i = 0; i < mine_; ++i) groups_.push_back(join(i, all));
    fellowship.barrier();
  }
  ~LocalRanks() {
    on_threads(mine_, [this](int i) {
      if (groups_[i] != nullptr) leave(i);
    });
  }

  // One of them leaves, with all that is its own.
  void leave(int i) {
    (void)groups_[i]->close(kSecond);
    groups_[i].reset();
    stacks_[i]->close();
  }
  void run(const std::function<void(Communicator&)>& body) {
    on_threads(mine_, [&](int i) {
      if (groups_[i] != nullptr) body(*groups_[i]);
    });
  }

 private:
  // Addresses hold any byte: each goes after its length.
  static std::string text_of(const std::string& address) {
    const auto length = static_cast<std::uint32_t>(address.size());
    return std::string(reinterpret_cast<const char*>(&length), sizeof length) + address;
  }
  std::shared_ptr<Communicator> join(int i, std::string_view all) const {
    GroupOptions options;
    options.id = kGroupId;
    options.name = "layout";
    options.rank = first_ + i;
    options.world = 0;
    options.timeout = 60 * kSecond;
    options.host_gbits = {0};
    while (!all.empty()) {
      std::uint32_t length = 0;
      __builtin_memcpy(&length, all.data(), sizeof length);
      const std::string_view address = all.substr(sizeof length, length);
      all.remove_prefix(sizeof length + length);
      harp::PeerId peer = 0;
      if (options.world != options.rank) {
        auto added = stacks_[i]->add_peer(address);
        EXPECT_TRUE(added.ok()) << added.status().message();
        if (added.ok()) peer = *added;
      }
      options.peers.push_back(peer);
      options.global_ranks.push_back(options.world++);
      options.host_of_rank.push_back(0);
    }
    auto made = Communicator::create(stacks_[i], options);
    EXPECT_TRUE(made.ok()) << made.status().message();
    return std::move(made).value();
  }

  int mine_, first_ = 0;
  std::vector<std::shared_ptr<Stack>> stacks_;
  std::vector<std::shared_ptr<Communicator>> groups_;
};

void expect_all_fine(const std::vector<int>& layout, const std::function<void(Fellowship&)>& body) {
  const int processes = static_cast<int>(layout.size());
  EXPECT_EQ(run_processes({processes, 120 * kSecond, {}}, body), std::vector<int>(processes, 0));
}

class RankLayout : public ::testing::TestWithParam<Force> {
 protected:
  const std::vector<std::vector<int>> layouts_ = {{2}, {3}, {1, 2}, {2, 2}, {3, 1, 2}};
};

TEST_P(RankLayout, EveryCollectiveGivesTheBitsOfAPlainComputation) {
  for (const auto& layout : layouts_) {
    SCOPED_TRACE(::testing::PrintToString(layout));
    expect_all_fine(layout, [&](Fellowship& fellowship) {
      LocalRanks ranks(fellowship, layout, GetParam());
      ranks.run([](Communicator& group) {
        for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{3},
                                        std::size_t{1000}, std::size_t{9000}, kMany}) {
          for (const bool uneven : {false, true}) {
            everything(group,
                       {.count = count, .root = group.options().world / 2, .uneven = uneven});
          }
        }
      });
      fellowship.barrier();
    });
  }
}

TEST_P(RankLayout, AnAbortReachesTheOtherThreadsAndTheOtherProcesses) {
  const std::vector<int> layout = {2, 1, 2};
  expect_all_fine(layout, [&](Fellowship& fellowship) {
    LocalRanks ranks(fellowship, layout, GetParam());
    ranks.run([](Communicator& group) { testing::run_operation(group, {.kind = Kind::kBarrier}); });
    fellowship.barrier();  // an abort may end a barrier that others are still in
    ranks.run([&](Communicator& group) {
      if (group.options().rank == 1) return group.abort(Status(Code::kAborted, "rank 1 gives up"));
      Result<OperationPtr> operation = group.start({.kind = Kind::kBarrier});
      const Status status = operation.ok() ? (*operation)->wait(0) : operation.status();
      EXPECT_EQ(status.code(), Code::kAborted) << status.message();
      EXPECT_NE(status.message().find("rank 1"), std::string::npos) << status.message();
    });
    fellowship.barrier();
  });
}

// The others of its process stay, and are heard; only it is gone.
TEST_P(RankLayout, ARankThatLeavesIsTheOneThatIsMissed) {
  const std::vector<int> layout = {2, 2};
  expect_all_fine(layout, [&](Fellowship& fellowship) {
    LocalRanks ranks(fellowship, layout, GetParam());
    ranks.run([](Communicator& group) { testing::run_operation(group, {.kind = Kind::kBarrier}); });
    if (fellowship.rank() == 1) ranks.leave(0);
    ranks.run([](Communicator& group) {
      Result<OperationPtr> operation = group.start({.kind = Kind::kBarrier});
      const Status status = operation.ok() ? (*operation)->wait(0) : operation.status();
      EXPECT_EQ(status.code(), Code::kPeerLost) << status.message();
      ASSERT_NE(status.peer_loss(), nullptr);
      EXPECT_EQ(status.peer_loss()->rank, 2) << status.message();
    });
    fellowship.barrier();
  });
}

TEST_P(RankLayout, AProcessThatDiesTakesAllItsRanks) {
  const std::vector<int> layout = {2, 1};
  const auto statuses = run_processes({2, 60 * kSecond, {}}, [&](Fellowship& fellowship) {
    LocalRanks ranks(fellowship, layout, GetParam());
    ranks.run([](Communicator& group) { testing::run_operation(group, {.kind = Kind::kBarrier}); });
    if (fellowship.rank() == 0) _exit(7);
    ranks.run([](Communicator& group) {
      Result<OperationPtr> operation = group.start({.kind = Kind::kBarrier});
      const Status status = operation.ok() ? (*operation)->wait(0) : operation.status();
      EXPECT_EQ(status.code(), Code::kPeerLost) << status.message();
      ASSERT_NE(status.peer_loss(), nullptr);
      EXPECT_TRUE(status.peer_loss()->rank == 0 || status.peer_loss()->rank == 1);
    });
  });
  EXPECT_NE(statuses[0], 0);
  EXPECT_EQ(statuses[1], 0);
}

INSTANTIATE_TEST_SUITE_P(Transports, RankLayout,
                         ::testing::Values(Force::kAuto, Force::kShm, Force::kUdp),
                         [](const auto& instance) {
                           if (instance.param == Force::kAuto) return "automatic";
                           return instance.param == Force::kUdp ? "udp" : "shm";
                         });

}  // namespace
}  // namespace taco::pg
