// A group whose large operations run on several engines at once (docs/decisions/0014): a Group on
// an engine of its own, the home, which is the group in all respects, and beside it one on each
// other engine of the process, which runs parts of large collectives and nothing else.
//
// A part carries the signature and the sequence number of its call. So ranks that disagree about a
// call find it out at the home, whether they would cut it or not, and a failure of any of the
// groups, which says from which number on nobody takes part, means the same in all: they hand it to
// each other (Group::join).
//
// Which calls are cut, and where, follows from what the signature says of them, hence is the same
// on all ranks.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "pg/group/group.h"

namespace taco::pg {

class StripedGroup final : public Communicator {
 public:
  // A part has at least so many bytes: below, an engine more costs as much as it brings.
  static constexpr std::uint64_t kMinPart = std::uint64_t{2} << 20;

  // The first group is the home.
  explicit StripedGroup(std::vector<std::shared_ptr<Group>> groups);
  ~StripedGroup() override;

  Result<OperationPtr> start(OperationSpec spec) override;
  void abort(const Status& why) override { home().abort(why); }
  // Waits at most `linger` for each engine.
  Status close(Duration linger) override;
  Status close_window(const Status& why) override { return home().close_window(why); }
  void close_when_idle(Duration linger) override;
  Status error() const override;
  std::uint64_t sequence() const override { return home().sequence(); }
  void set_timeout(Duration timeout) override;
  const GroupOptions& options() const override { return home().options(); }
  const Topology& topology() const override { return home().topology(); }
  Cost predict_average(std::uint64_t bytes,
                       const std::shared_ptr<const Codec>& codec) const override {
    return home().predict_average(bytes, codec);
  }
  Result<Cost> predict(OperationSpec spec) const override {
    return home().predict(std::move(spec));
  }
  void on_failure(std::function<void()> callback) override {
    home().on_failure(std::move(callback));
  }
  Status roll_call(std::uint64_t digest, Duration timeout) override {
    return home().roll_call(digest, timeout);
  }
  Status monitored_barrier(Duration timeout, bool report_all) override {
    return home().monitored_barrier(timeout, report_all);
  }
  GroupReport report() const override { return home().report(); }

 private:
  Group& home() const { return *groups_.front(); }
  int parts_of(const OperationSpec& spec) const;  // 1: it is not cut
  Result<OperationPtr> start_parts(OperationSpec spec, int count);

  const std::vector<std::shared_ptr<Group>> groups_;
  std::atomic<bool> is_closed_{false}, is_left_to_itself_{false};
  std::mutex mutex_;  // every engine sees the parts in the order of their numbers
};

}  // namespace taco::pg
