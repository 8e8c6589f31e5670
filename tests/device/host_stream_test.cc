#include "device/host_stream.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "support/eventually.h"

namespace taco::device {
namespace {

std::unique_ptr<Stream> start(std::function<void()> before_each = nullptr) {
  auto stream = HostStream::start("taco-test", std::move(before_each));
  EXPECT_TRUE(stream.ok()) << stream.status().message();
  return std::move(*stream);
}

// Closed at first; whoever passes waits until it is opened.
class Gate {
 public:
  void pass() {
    EXPECT_TRUE(testing::eventually([&] { return open_.load(); }));
  }
  void open() { open_ = true; }

 private:
  std::atomic<bool> open_{false};
};

TEST(HostStream, WhatItIsGivenIsDoneInOrder) {
  auto stream = start();
  std::vector<int> order;
  for (int i = 0; i < 1000; ++i) stream->run([&order, i] { order.push_back(i); });
  stream->synchronize();
  std::vector<int> expected(1000);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
}

TEST(HostStream, ACopyIsMadeBesideItsCaller) {
  std::vector<char> from(1 << 20, 'x'), to(1 << 20);
  Gate gate;
  auto stream = start([&] { gate.pass(); });
  HostEvent copied;
  stream->copy(to.data(), from.data(), from.size());
  stream->record(copied);
  EXPECT_FALSE(copied.done());
  gate.open();
  copied.synchronize();
  EXPECT_TRUE(copied.done());
  EXPECT_EQ(to, from);
}

// The first stream holds back until the second has run ahead, which it must not; it gives up
// waiting for that after a while.
TEST(HostStream, AnEventHoldsAnotherStreamBack) {
  auto first = start(), second = start();
  std::atomic<bool> ran_ahead{false};
  std::string from = "fresh", middle = "stale", to = "-----";
  HostEvent copied;
  first->run([&] { testing::eventually([&] { return ran_ahead.load(); }, 100 * kMillisecond); });
  first->copy(middle.data(), from.data(), from.size());
  first->record(copied);
  second->wait(copied);
  second->copy(to.data(), middle.data(), middle.size());
  second->run([&] { ran_ahead = true; });
  second->synchronize();
  EXPECT_EQ(to, "fresh");
}

TEST(HostStream, WaitingMeansTheRecordsMadeBefore) {
  auto stream = start(), other = start();
  HostEvent event;
  EXPECT_TRUE(event.done()) << "nothing was recorded";
  other->wait(event);
  other->synchronize();
  Gate first, second;
  stream->run([&] { first.pass(); });
  stream->record(event);
  other->wait(event);
  stream->run([&] { second.pass(); });
  stream->record(event);
  first.open();
  other->synchronize();  // does not wait for the second gate
  EXPECT_FALSE(event.done());
  second.open();
  event.synchronize();
  EXPECT_TRUE(event.done());
}

TEST(HostStream, ManyStreamsHandAroundOneBuffer) {
  constexpr int kStreams = 4, kRounds = 200;
  std::mutex mutex;
  std::mt19937 random(7);
  const auto delay = [&] {
    std::uint32_t microseconds;
    {
      std::lock_guard lock(mutex);
      microseconds = random() % 200;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
  };
  std::vector<std::unique_ptr<Stream>> streams;
  for (int i = 0; i < kStreams; ++i) streams.push_back(start(delay));
  std::vector<int> buffer(256), scratch(256);
  HostEvent turn;
  for (int round = 0; round < kRounds; ++round) {
    Stream& stream = *streams[round % kStreams];
    stream.wait(turn);
    stream.copy(scratch.data(), buffer.data(), buffer.size() * sizeof(int));
    stream.run([&] {
      for (int& value : scratch) ++value;
    });
    stream.copy(buffer.data(), scratch.data(), buffer.size() * sizeof(int));
    stream.record(turn);
  }
  turn.synchronize();
  EXPECT_EQ(buffer, std::vector<int>(256, kRounds));
}

TEST(HostStream, ItsEndWaitsForAllThatItWasGiven) {
  std::atomic<int> done{0};
  Gate gate;
  auto stream = start();
  stream->run([&] { gate.pass(); });
  for (int i = 0; i < 100; ++i) stream->run([&] { ++done; });
  gate.open();
  stream.reset();
  EXPECT_EQ(done, 100);
}

TEST(HostStream, AnEventMayGoBeforeThoseWhoWaitForIt) {
  Gate gate;
  std::atomic<bool> reached{false};
  auto first = start(), second = start();
  {
    HostEvent event;
    first->run([&] { gate.pass(); });
    first->record(event);
    second->wait(event);
    second->run([&] { reached = true; });
  }
  EXPECT_FALSE(reached);
  gate.open();
  second->synchronize();
  EXPECT_TRUE(reached);
}

TEST(HostStream, ItsThreadHasItsName) {
  std::string name(16, '\0');
  auto stream = start();
  stream->run([&] { pthread_getname_np(pthread_self(), name.data(), name.size()); });
  stream->synchronize();
  EXPECT_STREQ(name.c_str(), "taco-test");
}

TEST(HostStream, AForkedChildCanLetGoOfIt) {
  Gate gate;
  auto busy = start(), asleep = start(), held = start();
  HostEvent event;
  busy->run([&] { gate.pass(); });
  busy->record(event);
  held->wait(event);
  asleep->synchronize();
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    busy.reset();
    asleep.reset();
    held.reset();
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  gate.open();
  held->synchronize();
}

}  // namespace
}  // namespace taco::device
