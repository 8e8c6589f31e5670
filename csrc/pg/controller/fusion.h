// Requests that may run, gathered into responses: small all_reduces into one buffer. The same on
// all ranks, from what is the same on all. Pure; any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "pg/controller/request.h"

namespace taco::pg::controller {

// A request that all ranks have submitted, or that all know to fail.
struct Agreed {
  Request request;
  Status error;
  std::vector<std::vector<std::int64_t>> rows;
  std::uint64_t bytes = 0;
  std::vector<int> zeros;  // ranks that have joined and did not submit it
  int last_joined = -1;    // kJoin
};

// In the order of `agreed`, where a kAllReduce joins the newest response of its dtype, op, factors
// and zeros while that one's tensors have no more than `fusion_bytes` together. `rank` is this one.
std::vector<Response> fuse(std::vector<Agreed>& agreed, std::uint64_t fusion_bytes, int rank);

}  // namespace taco::pg::controller
