// The processes of one check, which tell each other things by files in a folder of their own.
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace harp::nccl::check {

class Fellows {
 public:
  // Until `deadline` a fellow is waited for.
  Fellows(std::string folder, int rank, int count, taco::Time deadline)
      : folder_(std::move(folder)), rank_(rank), count_(count), deadline_(deadline) {}

  int rank() const { return rank_; }
  int count() const { return count_; }
  int next() const { return (rank_ + 1) % count_; }
  taco::Time deadline() const { return deadline_; }

  // Everybody's contribution, by rank.
  taco::Result<std::vector<std::string>> all_gather(const std::string& own);
  taco::Status barrier() { return all_gather("").status(); }

 private:
  const std::string folder_;
  const int rank_, count_;
  const taco::Time deadline_;
  int round_ = 0;
};

}  // namespace harp::nccl::check
