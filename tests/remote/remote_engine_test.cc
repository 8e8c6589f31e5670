// Endpoints over an engine that hangs for a while, as one of a stopped process does: whatever it
// finds when it goes on is there still, and whatever was told to it is heard.
#include <gtest/gtest.h>
#include <malloc.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "remote/endpoint.h"
#include "support/still_transport.h"

namespace taco::remote {
namespace {

using harp::PeerId;

constexpr PeerId kPeer = 1;
constexpr std::uint64_t kOwn = 100, kTheirs = 200;

// Runs in those who wait, unless it hangs: then they find at once that their time is over. In a
// forked child it does nothing.
struct HangingEngine final : harp::Engine {
  void submit(harp::Task& task, bool) override {
    if (getpid() == process) tasks.push_back(&task);
  }
  bool wait(const harp::Event& event, Time) override {
    if (getpid() != process) return event.is_set();
    while (is_stopped) {
      is_waited_for = true;
      sched_yield();
    }
    if (hanging_waits > 0) {
      --hanging_waits;
    } else {
      turn();
    }
    return event.is_set();
  }
  void wake_waiters() override {}
  bool poll() override { return false; }
  harp::Transport& transport() override { return still; }
  bool in_engine() const override { return is_turning; }
  void turn() {
    is_turning = true;
    for (harp::Task* task : std::exchange(tasks, {})) task->run_st(still);
    is_turning = false;
  }

  const pid_t process = getpid();
  StillTransport still;
  std::vector<harp::Task*> tasks;
  int hanging_waits = 0;
  std::atomic<bool> is_stopped = false, is_waited_for = false;  // who waits then stays there
  bool is_turning = false;
};

struct HangingStack final : harp::Stack {
  std::string address() const override { return "here"; }
  Result<PeerId> add_peer(std::string_view) override { return kPeer; }
  void release_peer(PeerId) override {}
  bool is_local(PeerId) const override { return false; }
  std::string host_of(PeerId) const override { return "host"; }
  std::string describe(PeerId) const override { return "a peer"; }
  std::string host() const override { return "host"; }
  std::uint64_t incarnation() const override { return 1; }
  std::uint64_t incarnation_of(PeerId) const override { return 2; }
  harp::Engine& engine() override { return hanging; }
  void set_observer(harp::Service, harp::Observer* which) override { observer = which; }
  harp::StackStats stats() const override { return {}; }
  std::string transport_summary() const override { return "none"; }
  void close() override {}
  Status usable() const override {
    return getpid() == process ? Status() : Status(Code::kAborted, "it stayed with the parent");
  }

  const pid_t process = getpid();
  HangingEngine hanging;
  harp::Observer* observer = nullptr;
};

// The peer asks, by a notice as it comes.
void ask(HangingStack& stack, std::uint64_t endpoint, std::uint64_t number) {
  const Request request{.endpoint = endpoint,
                        .from = kTheirs,
                        .number = number,
                        .action = Action::kRead,
                        .region = {1, {}},
                        .offset = 0,
                        .bytes = 1,
                        .carried = {}};
  MessageBytes notice;
  const std::size_t size = write_message(request, notice);
  stack.hanging.is_turning = true;
  stack.observer->on_notice_st(kPeer, {notice.data(), size});
  stack.hanging.is_turning = false;
}

std::shared_ptr<Endpoint> connected_endpoint(const std::shared_ptr<HangingStack>& stack,
                                             std::uint64_t id) {
  auto endpoint = Endpoint::open(stack, id).value();
  EXPECT_TRUE(endpoint->connect("there", kTheirs).ok());
  return endpoint;
}

TEST(RemoteEngine, WhatAnEngineThatHungFindsIsThereStill) {
  const auto stack = std::make_shared<HangingStack>();
  StillTransport& still = stack->hanging.still;
  auto endpoint = connected_endpoint(stack, kOwn);
  ask(*stack, kOwn, 1);
  ASSERT_EQ(still.sends.size(), 1u);  // the refusal, which is never fetched
  stack->hanging.hanging_waits = 1'000'000;
  EXPECT_FALSE(endpoint->drop().ok());
  endpoint.reset();
  stack->hanging.hanging_waits = 0;
  harp::SendRequest& open = *still.sends.front();
  open.on_done(open, Status());
  ask(*stack, kOwn, 2);
  // Others of the same Stack get along beside it.
  auto next = connected_endpoint(stack, kOwn + 1);
  const std::size_t sent = still.sends.size();
  ask(*stack, kOwn + 1, 1);
  ASSERT_EQ(still.sends.size(), sent + 1);
  harp::SendRequest& answer = *still.sends.back();
  answer.on_done(answer, Status());
  EXPECT_TRUE(next->close(monotonic_now()).ok());
}

// Closed in order, but the engine hangs before it can be told to forget whom it tells.
TEST(RemoteEngine, OneThatCannotBeToldToForgetFindsNothingOpenAndAnswersSo) {
  const auto stack = std::make_shared<HangingStack>();
  auto endpoint = connected_endpoint(stack, kOwn);
  EXPECT_TRUE(endpoint->close(monotonic_now()).ok());
  stack->hanging.hanging_waits = 1'000'000;
  endpoint.reset();
  stack->hanging.hanging_waits = 0;
  const int notices = stack->hanging.still.notices;
  ask(*stack, kOwn, 1);
  EXPECT_EQ(stack->hanging.still.notices, notices + 1);
}

TEST(RemoteEngine, AnEndpointThatOpensAfterAHangIsHeard) {
  const auto stack = std::make_shared<HangingStack>();
  stack->hanging.hanging_waits = 1;
  auto opened = Endpoint::open(stack, kOwn);
  if (!opened.ok()) {  // it says so, and the next one is heard
    opened = Endpoint::open(stack, kOwn + 1);
  }
  ASSERT_TRUE(opened.ok());
  ASSERT_NE(stack->observer, nullptr);
}

Handle their_memory(std::uint64_t bytes) {
  return {.endpoint = kTheirs, .region = {1, {}}, .offset = 0, .bytes = bytes};
}

// The child has the locks as they were, and nobody who opens them.
TEST(RemoteEngine, AChildThatIsForkedWhileAnEndpointClosesDropsItToo) {
  const auto stack = std::make_shared<HangingStack>();
  HangingEngine& engine = stack->hanging;
  auto endpoint = connected_endpoint(stack, kOwn);
  std::byte memory[8] = {};
  TransferPtr open = endpoint->start(Action::kRead, memory, 8, their_memory(8)).value();
  engine.turn();
  engine.is_stopped = true;
  std::thread closes([&] { EXPECT_FALSE(endpoint->close(monotonic_now()).ok()); });
  while (!engine.is_waited_for) sched_yield();
  const pid_t child = fork();
  if (child == 0) {
    alarm(10);
    _exit(endpoint->drop().ok() ? 0 : 1);
  }
  int end = 0;
  ASSERT_EQ(waitpid(child, &end, 0), child);
  EXPECT_EQ(end, 0);
  engine.is_stopped = false;
  closes.join();
  for (harp::RecvRequest* each : std::exchange(engine.still.recvs, {}))
    each->on_done(*each, Status(Code::kAborted, "over"));
  EXPECT_TRUE(open->done());
  EXPECT_TRUE(endpoint->close(monotonic_now()).ok());
}

// Makes every call in a child of a process of whose threads one holds the endpoint's lock. 0: each
// has said at once that this is the parent's; else the number of the first that has not.
int calls_in_child(std::shared_ptr<Endpoint> endpoint, Transfer& open) {
  std::byte memory[8] = {};
  const auto is_aborted = [](const Status& status) { return status.code() == Code::kAborted; };
  if (!is_aborted(endpoint->connect("there", kTheirs))) return 1;
  if (!is_aborted(endpoint->add(memory, 8).status())) return 2;
  if (!is_aborted(endpoint->start(Action::kRead, memory, 8, their_memory(8)).status())) return 3;
  if (endpoint->connected()) return 4;
  if (endpoint->describe_peer().find("parent") == std::string::npos) return 5;
  if (!is_aborted(open.wait(kNever))) return 6;
  if (!is_aborted(open.on_complete([] { _exit(7); }))) return 8;
  if (!endpoint->revoke(1, kNever).ok() || !endpoint->close(kNever).ok()) return 9;
  endpoint.reset();
  return 0;
}

TEST(RemoteEngine, AChildThatIsForkedWhileALockIsHeldHearsAtOnceThatAllIsItsParents) {
  const auto stack = std::make_shared<HangingStack>();
  HangingEngine& engine = stack->hanging;
  auto endpoint = connected_endpoint(stack, kOwn);
  std::byte memory[8] = {}, added[8] = {};
  TransferPtr open = endpoint->start(Action::kRead, memory, 8, their_memory(8)).value();
  engine.turn();
  engine.is_stopped = true;
  std::thread adds([&] { EXPECT_TRUE(endpoint->add(added, sizeof added).ok()); });
  while (!engine.is_waited_for) sched_yield();
  const pid_t child = fork();
  if (child == 0) {
    alarm(10);
    _exit(calls_in_child(std::move(endpoint), *open));
  }
  int end = 0;
  ASSERT_EQ(waitpid(child, &end, 0), child);
  EXPECT_EQ(end, 0) << (WIFSIGNALED(end) ? "a call hung" : "call ") << WEXITSTATUS(end);
  engine.is_stopped = false;
  adds.join();
  for (harp::RecvRequest* each : std::exchange(engine.still.recvs, {}))
    each->on_done(*each, Status(Code::kAborted, "over"));
  EXPECT_TRUE(endpoint->close(monotonic_now()).ok());
}

// Programs keep one endpoint for days.
TEST(RemoteEngine, ATransferThatIsLongUnderWayKeepsNoneThatIsDone) {
  const auto stack = std::make_shared<HangingStack>();
  auto endpoint = connected_endpoint(stack, kOwn);
  std::byte memory[8] = {};
  TransferPtr open = endpoint->start(Action::kRead, memory, 8, their_memory(8)).value();
  const std::size_t before = mallinfo2().uordblks;
  for (int i = 0; i < 100'000; ++i) {
    TransferPtr short_one = endpoint->start(Action::kRead, memory, 0, their_memory(8)).value();
    stack->hanging.turn();
    ASSERT_TRUE(short_one->done());
  }
  EXPECT_LT(mallinfo2().uordblks, before + 1'000'000);
  for (harp::RecvRequest* each : std::exchange(stack->hanging.still.recvs, {}))
    each->on_done(*each, Status(Code::kAborted, "over"));
  EXPECT_TRUE(endpoint->close(monotonic_now()).ok());
}

}  // namespace
}  // namespace taco::remote
