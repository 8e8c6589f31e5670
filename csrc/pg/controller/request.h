// One named operation as one rank submits it, and what all ranks of a process set have agreed to do
// about it. Plain data: neither torch nor a transport is known here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "kernels/kernels.h"

namespace taco::pg::controller {

enum class Kind : std::uint8_t {
  kAllReduce,
  kAdasum,
  kAllGather,
  kBroadcast,
  kAllToAll,
  kReduceScatter,
  kBarrier,
  kJoin,       // this rank has no more data: zeros stand for it until all have joined
  kAddSet,     // `ranks` become a process set; all ranks of the global set submit it
  kRemoveSet,  // process set `root` ends
};
inline constexpr int kKinds = 10;

// A kind's names, which are Horovod's.
struct KindNames {
  const char* call;         // "allreduce": by callers, and in messages
  const char* running;      // "ALLREDUCE": in a timeline, as the next two
  const char* negotiating;  // "NEGOTIATE_ALLREDUCE"
  const char* activity;     // "TACO_ALLREDUCE": the part of it that moves data
};
const KindNames& names_of(Kind kind);
inline const char* name_of(Kind kind) { return names_of(kind).call; }

using Shape = std::vector<std::int64_t>;

// `name` is unique among a rank's pending requests of a process set, but for a kJoin's, which only
// messages tell: a rank has one join at a time. A grouped call is one request with several shapes:
// it starts as a whole, and all its tensors have the same dtype.
struct Request {
  Kind kind = Kind::kAllReduce;
  std::string name;
  kernels::Dtype dtype = kernels::Dtype::kF32;
  kernels::ReduceOp op = kernels::ReduceOp::kSum;  // kSum, kAvg, kMin, kMax, kProduct
  int root = 0;                                    // within the process set; kRemoveSet: its id
  double prescale = 1.0, postscale = 1.0;
  std::vector<Shape> shapes;         // of this rank's inputs
  std::vector<std::int64_t> splits;  // kAllToAll: rows for each rank
  std::vector<std::int64_t> ranks;   // kAddSet: in ascending order
  bool operator==(const Request&) const = default;
};

// The agreed next step, the same on all ranks of the set and in the same order. Several requests in
// one response are fused: all_reduce of one buffer.
struct Response {
  std::vector<Request> requests;  // as this rank submitted them; as another did where it has joined
  Status error;                   // not ok: the requests fail with it, on all ranks; nothing runs
  bool stands_for_joined = false;  // this rank has joined and did not submit: it gives zeros
  // Rows where first dimensions may differ: rows[t][r] of tensor t of rank r (kAllGather), or
  // rows[s][r], those that rank s sends to rank r (kAllToAll).
  std::vector<std::vector<std::int64_t>> rows;
  int last_joined = -1;  // kJoin: the rank that joined last
  int joined = 0;        // how many ranks give zeros
};

inline constexpr std::size_t kMaxNameBytes = 1 << 16;
inline constexpr std::size_t kMaxTensors = 1 << 16;  // of a grouped call
inline constexpr std::size_t kMaxDimensions = 64;

// Adds, multiplies or compares what ranks give.
bool reduces(Kind kind);
// The first dimension of a rank's tensors is its own.
bool has_own_rows(Kind kind);

// "allreduce 'x'".
std::string described(const Request& request);
// kInvalidArgument: "allreduce of 'x': why".
Status refuse_request(const Request& request, const std::string& why);

// Bytes of a tensor.
std::uint64_t bytes_of(const Shape& shape, kernels::Dtype dtype);
// Bytes of all its tensors on this rank.
std::uint64_t bytes_of(const Request& request);
// Bytes of one of its tensors with another number of rows; none: more than any memory holds.
std::optional<std::uint64_t> bytes_of_rows(const Request& request, std::size_t tensor,
                                           std::int64_t rows);
// kInvalidArgument for a request that no other rank could agree to in a set of `world` ranks: its
// text names it, the value and what is possible. Whether an op has a meaning for a dtype is asked
// elsewhere (kernels::check_supported).
Status check_request(const Request& request, int world);

}  // namespace taco::pg::controller
