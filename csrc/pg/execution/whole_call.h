// A call of which several engines run a part each, for what is told of it once: its record, and the
// end that OperationSpec::ended_st hears of. Engines tell it how their parts ended, the last one
// while its part is not done yet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "pg/execution/trace.h"

namespace taco::pg {

class WholeCall {
 public:
  using Ended = std::function<void(const Status& status, Duration elapsed)>;
  // `inputs`: what stands in for the caller's, if anything does. It stays until all parts are gone.
  WholeCall(int parts, std::uint64_t bytes, Ended ended_st, std::unique_ptr<std::byte[]> inputs);

  // Any engine; `part` is the record of one that has ended so.
  void part_ended(const trace::Record& part, const Status& status);
  // Any thread: one of them could not start.
  void part_refused(const Status& why);

 private:
  void count(const Status& status);  // with the lock held

  const int parts_;
  const std::uint64_t bytes_;
  const Ended ended_st_;
  const std::unique_ptr<std::byte[]> inputs_;
  std::mutex mutex_;  // guards what follows
  int left_;
  Status status_;  // the first failure
  std::optional<trace::Record> record_;
};

}  // namespace taco::pg
