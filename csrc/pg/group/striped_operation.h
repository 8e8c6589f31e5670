// An operation of which several engines run a part each. It is done when all of them are, and has
// failed if one has: the others end then, since their groups fail from its number on.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "pg/operation.h"

namespace taco::pg {

class StripedOperation final : public Operation {
 public:
  // `refusal`: why a part could not start, or ok. The first part is the home's.
  StripedOperation(std::vector<OperationPtr> parts, Status refusal)
      : parts_(std::move(parts)), refusal_(std::move(refusal)) {}

  bool done() const override {
    return std::ranges::all_of(parts_, [](const OperationPtr& part) { return part->done(); });
  }
  Status status() const override {
    if (!done()) return Status();
    for (const OperationPtr& part : parts_)
      if (Status status = part->status(); !status.ok()) return status;
    return refusal_;
  }
  using Operation::wait;
  Status wait(Duration timeout, Time until) override {
    for (const OperationPtr& part : parts_) {
      Status status = part->wait(timeout, until);
      if (!part->done()) return status;
    }
    return status();
  }
  bool wait_until(Time until) override {
    return std::ranges::all_of(parts_,
                               [&](const OperationPtr& part) { return part->wait_until(until); });
  }
  std::uint64_t sequence() const override { return parts_.front()->sequence(); }
  int source_rank() const override { return -1; }
  Duration elapsed() const override {
    Duration longest = 0;
    for (const OperationPtr& part : parts_) longest = std::max(longest, part->elapsed());
    return longest;
  }
  const char* algorithm() const override { return parts_.front()->algorithm(); }
  void on_complete(std::function<void()> callback) override {
    struct Left {
      std::atomic<std::size_t> parts{0};
      std::function<void()> callback;
    };
    auto left = std::make_shared<Left>();
    left->parts = parts_.size();
    left->callback = std::move(callback);
    for (const OperationPtr& part : parts_) {
      part->on_complete([left] {
        if (left->parts.fetch_sub(1) == 1) left->callback();
      });
    }
  }

 private:
  const std::vector<OperationPtr> parts_;
  const Status refusal_;
};

}  // namespace taco::pg
