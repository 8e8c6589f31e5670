// Ranks of the page store as threads of a test, that reach each other through memory. Test support.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "zerocache/ranks/collectives.h"

namespace taco::testing {

// A deadline must mean a hang: a sanitized program takes several times as long, and a rank may be
// busy with a test's own business meanwhile.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr std::chrono::seconds kArrivalDeadline(240);
#else
inline constexpr std::chrono::seconds kArrivalDeadline(60);
#endif

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
  std::size_t max_bytes() const { return max_bytes_; }
  // That were begun, by one rank.
  std::size_t calls() const {
    std::lock_guard lock(mutex_);
    return calls_.size();
  }
  // By one rank, at a time.
  int max_open() const { return max_open_; }

 private:
  enum class Kind { kGather, kReduce };
  struct Call {
    Kind kind = Kind::kGather;
    std::vector<std::vector<std::byte>> given;
    int arrived = 0;
  };

  struct Rank : zerocache::Collectives {
    Rank(GatheringThreads& group, int number) : group(group), number(number) {}
    int rank() const override { return number; }
    int size() const override { return group.size_; }
    Result<std::unique_ptr<Work>> all_gather(std::span<const std::byte> own,
                                             std::span<std::byte> all) override;
    Result<std::unique_ptr<Work>> reduce_scatter(std::span<const float> all,
                                                 std::span<float> own) override;
    Result<std::unique_ptr<Work>> begin(Kind kind, std::span<const std::byte> given,
                                        std::span<std::byte> to);
    GatheringThreads& group;
    const int number;
    std::size_t next = 0;
    int open = 0;
  };

  struct Arrival : zerocache::Collectives::Work {
    Arrival(Rank& rank, std::size_t call, std::span<const std::byte> given, std::span<std::byte> to)
        : rank(rank), call(call), given(given), to(to) {
      rank.group.note_open(++rank.open);
    }
    ~Arrival() override {
      if (!waited) static_cast<void>(wait());
      --rank.open;
    }
    Status wait() override {
      waited = true;
      return rank.group.finish(call, rank.number, given, to);
    }
    Rank& rank;
    const std::size_t call;
    const std::span<const std::byte> given;
    const std::span<std::byte> to;
    bool waited = false;
  };

  void note_open(int open) {
    std::lock_guard lock(mutex_);
    max_open_ = std::max(max_open_, open);
  }

  void give(Kind kind, std::size_t call, int rank, std::span<const std::byte> given,
            std::size_t to) {
    std::lock_guard lock(mutex_);
    Call& here = calls_[call];
    if (here.arrived == 0) here.kind = kind;
    EXPECT_TRUE(here.kind == kind) << "call " << call << " is another on rank " << rank;
    here.given.resize(static_cast<std::size_t>(size_));
    here.given[static_cast<std::size_t>(rank)].assign(given.begin(), given.end());
    ++here.arrived;
    max_bytes_ = std::max(max_bytes_, to);
    changed_.notify_all();
  }

  // Checks that what is sent has not changed meanwhile.
  Status finish(std::size_t call, int rank, std::span<const std::byte> given,
                std::span<std::byte> to) {
    std::unique_lock lock(mutex_);
    const Call& here = calls_[call];
    const bool complete =
        changed_.wait_for(lock, kArrivalDeadline, [&] { return here.arrived == size_; });
    if (!complete) return Status(Code::kTimeout, "call " + std::to_string(call));
    EXPECT_TRUE(
        std::equal(given.begin(), given.end(), here.given[static_cast<std::size_t>(rank)].begin()))
        << "changed while call " << call << " was under way";
    for (const std::vector<std::byte>& each : here.given) {
      EXPECT_EQ(each.size(), given.size()) << "call " << call;
      if (each.size() != given.size()) return Status(Code::kInternal, "lengths differ");
    }
    if (here.kind == Kind::kGather) {
      std::size_t place = 0;
      for (const std::vector<std::byte>& each : here.given) {
        std::byte* const there = to.data() + place;
        if (there != given.data())  // which is only read
          std::copy_n(each.begin(), std::min(each.size(), to.size() - place), there);
        place += each.size();
      }
      EXPECT_EQ(place, to.size());
      return {};
    }
    EXPECT_EQ(given.size(), to.size() * static_cast<std::size_t>(size_));
    auto* const sums = reinterpret_cast<float*>(to.data());
    const std::size_t place = to.size() * static_cast<std::size_t>(rank);
    std::memcpy(to.data(), here.given.front().data() + place, to.size());
    for (std::size_t from = 1; from < here.given.size(); ++from) {
      const auto* const part = reinterpret_cast<const float*>(here.given[from].data() + place);
      for (std::size_t i = 0; i < to.size() / sizeof(float); ++i) sums[i] += part[i];
    }
    return {};
  }

  const int size_;
  std::size_t fail_at_ = static_cast<std::size_t>(-1);
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::size_t, Call> calls_;
  std::size_t max_bytes_ = 0;
  int max_open_ = 0;
};

inline Result<std::unique_ptr<zerocache::Collectives::Work>> GatheringThreads::Rank::begin(
    Kind kind, std::span<const std::byte> given, std::span<std::byte> to) {
  const std::size_t call = next++;
  if (call >= group.fail_at_) return Status(Code::kPeerLost, "rank 1 is gone");
  group.give(kind, call, number, given, to.size());
  return std::unique_ptr<Work>(std::make_unique<Arrival>(*this, call, given, to));
}

inline Result<std::unique_ptr<zerocache::Collectives::Work>> GatheringThreads::Rank::all_gather(
    std::span<const std::byte> own, std::span<std::byte> all) {
  return begin(Kind::kGather, own, all);
}

inline Result<std::unique_ptr<zerocache::Collectives::Work>> GatheringThreads::Rank::reduce_scatter(
    std::span<const float> all, std::span<float> own) {
  return begin(Kind::kReduce, std::as_bytes(all), std::as_writable_bytes(own));
}

}  // namespace taco::testing
