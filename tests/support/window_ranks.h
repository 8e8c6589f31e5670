// Ranks as threads, each with a window of bytes between two zones that nobody may write to.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <vector>

#include "support/pg_values.h"
#include "support/rank_threads.h"

namespace taco::testing {

class WindowRanks {
 public:
  static constexpr std::size_t kZone = 4096;
  static constexpr std::byte kUntouched{0xa5};

  WindowRanks(const RankOptions& options, std::size_t bytes) : ranks_(options), bytes_(bytes) {
    std::vector<int> everyone(static_cast<std::size_t>(options.world));
    std::iota(everyone.begin(), everyone.end(), 0);
    memory_.assign(everyone.size(), Bytes(bytes + 2 * kZone, kUntouched));
    for (const int rank : everyone) {
      groups_.push_back(ranks_.enter_group(
          0x77ac0, everyone, rank, "window", {},
          pg::WindowMemory{{memory_[rank].data() + kZone, bytes}, kernels::Dtype::kU8}));
    }
  }
  ~WindowRanks() {
    on_threads(size(), [this](int rank) { (void)groups_[rank]->close(kSecond); });
  }

  int size() const { return ranks_.size(); }
  RankThreads& ranks() { return ranks_; }
  pg::Communicator& group(int rank) { return *groups_[rank]; }
  void run(const std::function<void(int rank, pg::Communicator& group)>& body) {
    on_threads(size(), [&](int rank) { body(rank, *groups_[rank]); });
  }
  Bytes content(int rank) const {
    const auto begin = memory_[rank].begin() + kZone;
    return {begin, begin + static_cast<std::ptrdiff_t>(bytes_)};
  }
  // One byte of it, where others may be written meanwhile.
  std::byte at(int rank, std::size_t index) const { return memory_[rank][kZone + index]; }
  void fill(int rank, std::byte value) {
    std::fill_n(memory_[rank].begin() + kZone, bytes_, value);
  }
  bool zones_are_untouched() const {
    for (const Bytes& memory : memory_) {
      for (std::size_t i = 0; i < kZone; ++i)
        if (memory[i] != kUntouched || memory[kZone + bytes_ + i] != kUntouched) return false;
    }
    return true;
  }

 private:
  RankThreads ranks_;
  const std::size_t bytes_;
  std::vector<Bytes> memory_;
  std::vector<std::shared_ptr<pg::Communicator>> groups_;
};

inline Result<pg::OperationPtr> try_put(pg::Communicator& group, Bytes& data, int to,
                                        std::uint64_t offset,
                                        kernels::Dtype dtype = kernels::Dtype::kU8) {
  pg::OperationSpec spec{.kind = pg::Kind::kPut, .dtype = dtype, .root = to, .offset = offset};
  spec.inputs = {piece(data)};
  return group.start(std::move(spec));
}

inline pg::OperationPtr put(pg::Communicator& group, Bytes& data, int to, std::uint64_t offset) {
  auto operation = try_put(group, data, to, offset);
  EXPECT_TRUE(operation.ok()) << operation.status().message();
  return operation.ok() ? *operation : nullptr;
}

inline Result<pg::OperationPtr> one_sided(pg::Communicator& group, pg::Kind kind, int peer,
                                          Duration timeout = 0) {
  pg::OperationSpec spec{.kind = kind, .root = peer, .timeout = timeout};
  return group.start(std::move(spec));
}

inline Status signal(pg::Communicator& group, int to) {
  auto operation = one_sided(group, pg::Kind::kSignal, to);
  return operation.ok() ? (*operation)->wait(0) : operation.status();
}

inline Status wait_signal(pg::Communicator& group, int from, Duration timeout = 0) {
  auto operation = one_sided(group, pg::Kind::kWaitSignal, from, timeout);
  return operation.ok() ? (*operation)->wait(0) : operation.status();
}

}  // namespace taco::testing
