// Ranks of the page store as threads of a test, that reach each other through memory. Test support.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "zerocache/collectives.h"

namespace taco::testing {

class GatheringThreads {
 public:
  explicit GatheringThreads(int size) : size_(size) {}

  // Calls `body` for every rank on a thread of its own, and joins them.
  void run(const std::function<void(zerocache::Collectives&)>& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size_; ++rank) {
      threads.emplace_back([this, rank, &body] {
        Rank own(*this, rank);
        body(own);
        EXPECT_EQ(own.open, 0) << "of rank " << rank;
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  // The group fails at this call of each rank and at all later ones; counted from 0.
  void fail_at(std::size_t call) { fail_at_ = call; }
  // The longest `all` that a call has had.
  std::size_t most_bytes() const { return most_bytes_; }
  // That were begun, by one rank.
  std::size_t calls() const { return calls_.size(); }

 private:
  struct Call {
    std::vector<std::vector<std::byte>> given;
    int arrived = 0;
  };

  struct Rank : zerocache::Collectives {
    Rank(GatheringThreads& group, int number) : group(group), number(number) {}
    int rank() const override { return number; }
    int size() const override { return group.size_; }
    Result<std::unique_ptr<Work>> all_gather(std::span<const std::byte> own,
                                             std::span<std::byte> all) override;
    GatheringThreads& group;
    const int number;
    std::size_t next = 0;
    int open = 0;
  };

  struct Arrival : zerocache::Collectives::Work {
    Arrival(Rank& rank, std::size_t call, std::span<const std::byte> own, std::span<std::byte> all)
        : rank(rank), call(call), own(own), all(all) {
      ++rank.open;
    }
    ~Arrival() override {
      if (!waited) static_cast<void>(wait());
      --rank.open;
    }
    Status wait() override {
      waited = true;
      return rank.group.finish(call, rank.number, own, all);
    }
    Rank& rank;
    const std::size_t call;
    const std::span<const std::byte> own;
    const std::span<std::byte> all;
    bool waited = false;
  };

  void give(std::size_t call, int rank, std::span<const std::byte> own, std::size_t all) {
    std::lock_guard lock(mutex_);
    Call& here = calls_[call];
    here.given.resize(static_cast<std::size_t>(size_));
    here.given[static_cast<std::size_t>(rank)].assign(own.begin(), own.end());
    ++here.arrived;
    most_bytes_ = std::max(most_bytes_, all);
    changed_.notify_all();
  }

  // What is sent must not have changed meanwhile.
  Status finish(std::size_t call, int rank, std::span<const std::byte> own,
                std::span<std::byte> all) {
    std::unique_lock lock(mutex_);
    const Call& here = calls_[call];
    const bool complete =
        changed_.wait_for(lock, std::chrono::seconds(60), [&] { return here.arrived == size_; });
    if (!complete) return Status(Code::kTimeout, "call " + std::to_string(call));
    std::size_t place = 0;
    for (const std::vector<std::byte>& given : here.given) {
      EXPECT_EQ(given.size(), own.size()) << "call " << call;
      std::copy_n(given.begin(), std::min(given.size(), all.size() - place),
                  all.begin() + static_cast<std::ptrdiff_t>(place));
      place += given.size();
    }
    EXPECT_EQ(place, all.size());
    EXPECT_TRUE(
        std::equal(own.begin(), own.end(), here.given[static_cast<std::size_t>(rank)].begin()))
        << "changed while call " << call << " was under way";
    return {};
  }

  const int size_;
  std::size_t fail_at_ = static_cast<std::size_t>(-1);
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::size_t, Call> calls_;
  std::size_t most_bytes_ = 0;
};

inline Result<std::unique_ptr<zerocache::Collectives::Work>> GatheringThreads::Rank::all_gather(
    std::span<const std::byte> own, std::span<std::byte> all) {
  const std::size_t call = next++;
  if (call >= group.fail_at_) return Status(Code::kPeerLost, "rank 1 is gone");
  group.give(call, number, own, all.size());
  return std::unique_ptr<Work>(std::make_unique<Arrival>(*this, call, own, all));
}

}  // namespace taco::testing
