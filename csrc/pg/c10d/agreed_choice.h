// How the ranks of a group come to one choice of how a model's buckets are sent
// (pg/lightcc/automatic.h): measures when each bucket is ready and when it has been averaged, and
// now and then starts an all_reduce of these times beside a step's own. Its result is there when
// the next step begins, so nobody waits for it.
//
// The hook's (ddp_hook.h), on whatever thread DDP calls that; chosen() on any.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "pg/c10d/backend.h"
#include "pg/lightcc/automatic.h"
#include "pg/lightcc/settings.h"

namespace taco::pg {

class AgreedChoice {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  // `settings` are of Compression::kAuto. Null where there is nothing to choose: all ranks are one
  // group that shares memory, or nothing but exact gradients is allowed.
  static std::unique_ptr<AgreedChoice> create(c10::intrusive_ptr<Backend> backend,
                                              const lightcc::Settings& settings);
  AgreedChoice(c10::intrusive_ptr<Backend> backend, const lightcc::Settings& settings);

  // A bucket of so many bytes was ready at `ready`; its average was started at `started`.
  void started(std::size_t index, std::uint64_t bytes, Time ready, Time started, WorkPtr work);
  // Step number `step` begins; every average that was started is over. Returns the ways of its
  // buckets, if they are others than before.
  std::optional<std::map<std::size_t, lightcc::Way>> step_begins(std::int64_t step);

  // How each bucket is sent, in the order in which they become ready: "float32", "float16",
  // "bfloat16", "topk".
  std::vector<std::string> chosen() const;

 private:
  struct Started {
    std::size_t index = 0;
    std::uint64_t bytes = 0;
    Time ready = 0, started = 0;
    WorkPtr work;
  };

  std::vector<lightcc::Averaged> averaged() const;
  std::optional<lightcc::Decision> heard();  // what the ranks have agreed on, if they were asked
  void ask();
  void check_that_all_choose_alike() const;  // by what the ranks have agreed on
  void tell(const lightcc::Decision& decision);
  std::optional<Cost> cost_of(std::uint64_t bytes, lightcc::Way way) const;

  const c10::intrusive_ptr<Backend> backend_;
  const lightcc::Settings settings_;
  lightcc::Automatic automatic_;
  std::int64_t step_ = 0;
  std::vector<Started> started_;  // of this step
  at::Tensor times_;              // that the ranks are agreeing on
  WorkPtr agreement_;             // null: they are not
  bool told_ = false;
  mutable std::mutex mutex_;  // guards what follows
  std::vector<std::string> chosen_;
};

}  // namespace taco::pg
