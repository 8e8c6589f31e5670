// A barrier that names who is missing: every rank reports to rank 0, which lets them go when all
// have come or tells them that somebody has not. Runs over notices, beside the data, so that a
// stuck collective does not hold it up. wait() is for any thread; the rest is the engine's.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "harp/engine/stack.h"
#include "pg/group/notice.h"

namespace taco::pg {

class Group;

class MonitoredBarrier {
 public:
  explicit MonitoredBarrier(Group& group) : group_(group) {}

  Status wait(harp::Engine& engine, Duration timeout, bool report_all);

  void arrived_st(int rank, std::uint64_t number);
  void released_st(const Notice& notice);
  void fail_st(const Status& why);
  bool is_entered_st() const;  // somebody waits for a round here
  void peer_gone_st(int rank);

 private:
  struct Round {
    std::vector<bool> arrived;
    int missing = 0;
    bool over = false;
    Status status;
    harp::Event done;
  };
  std::shared_ptr<Round> round_st(std::uint64_t number);
  std::shared_ptr<Round> enter_st();
  Status verdict(const Round& round, Duration timeout, bool report_all) const;
  void release(int rank, std::uint64_t number, const Status& status);
  void end_st(Round& round, const Status& status);

  Group& group_;
  std::uint64_t next_ = 0;                                  // engine
  std::map<std::uint64_t, std::shared_ptr<Round>> rounds_;  // bounded: see round_st
};

}  // namespace taco::pg
