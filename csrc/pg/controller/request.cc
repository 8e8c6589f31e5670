#include "pg/controller/request.h"

#include <cmath>
#include <iterator>

#include "base/names.h"

namespace taco::pg::controller {
namespace {

constexpr std::uint64_t kMaxRequestBytes = std::uint64_t{1} << 62;

// In the order of Kind.
constexpr KindNames kKindNames[] = {
    {"allreduce", "ALLREDUCE", "NEGOTIATE_ALLREDUCE", "TACO_ALLREDUCE"},
    {"adasum", "ADASUM", "NEGOTIATE_ADASUM", "TACO_ADASUM"},
    {"allgather", "ALLGATHER", "NEGOTIATE_ALLGATHER", "TACO_ALLGATHER"},
    {"broadcast", "BROADCAST", "NEGOTIATE_BROADCAST", "TACO_BROADCAST"},
    {"alltoall", "ALLTOALL", "NEGOTIATE_ALLTOALL", "TACO_ALLTOALL"},
    {"reducescatter", "REDUCESCATTER", "NEGOTIATE_REDUCESCATTER", "TACO_REDUCESCATTER"},
    {"barrier", "BARRIER", "NEGOTIATE_BARRIER", "TACO_BARRIER"},
    {"join", "JOIN", "NEGOTIATE_JOIN", "TACO_JOIN"},
    {"add_process_set", "ADD_PROCESS_SET", "NEGOTIATE_ADD_PROCESS_SET", "TACO_ADD_PROCESS_SET"},
    {"remove_process_set", "REMOVE_PROCESS_SET", "NEGOTIATE_REMOVE_PROCESS_SET",
     "TACO_REMOVE_PROCESS_SET"},
};
static_assert(std::size(kKindNames) == kKinds);

// The product of all dimensions times the element's size; false: more than anything can hold.
bool add_bytes(const Shape& shape, std::uint64_t element, std::uint64_t& sum) {
  std::uint64_t bytes = element;
  for (const std::int64_t dimension : shape) {
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(dimension), &bytes)) return false;
  }
  return !__builtin_add_overflow(sum, bytes, &sum) && sum <= kMaxRequestBytes;
}

bool has_rows(Kind kind) { return has_own_rows(kind) || kind == Kind::kReduceScatter; }

Status check_shapes(const Request& request) {
  if (request.shapes.size() > kMaxTensors) {
    return refuse_request(request, "it has " + std::to_string(request.shapes.size()) +
                                       " tensors; one call takes at most " +
                                       std::to_string(kMaxTensors));
  }
  std::uint64_t bytes = 0;
  for (const Shape& shape : request.shapes) {
    if (shape.size() > kMaxDimensions) {
      return refuse_request(request, "a tensor has " + std::to_string(shape.size()) +
                                         " dimensions; at most " + std::to_string(kMaxDimensions) +
                                         " are possible");
    }
    if (shape.empty() && has_rows(request.kind)) {
      return refuse_request(request,
                            "a tensor has no dimension; the first one counts the rows that ranks "
                            "exchange, so it needs one");
    }
    for (const std::int64_t dimension : shape) {
      if (dimension < 0) {
        return refuse_request(request,
                              "a dimension is " + std::to_string(dimension) + ", below zero");
      }
    }
    if (!add_bytes(shape, kernels::size_of(request.dtype), bytes)) {
      return refuse_request(request, "its tensors are larger than any memory");
    }
  }
  return {};
}

Status check_splits(const Request& request, int world) {
  if (request.kind != Kind::kAllToAll) {
    if (request.splits.empty()) return {};
    return refuse_request(request, "splits are for alltoall alone");
  }
  if (request.shapes.size() != 1) {
    return refuse_request(
        request, "it has " + std::to_string(request.shapes.size()) + " tensors; it takes one");
  }
  if (request.splits.size() != static_cast<std::size_t>(world)) {
    return refuse_request(request, "there are " + std::to_string(request.splits.size()) +
                                       " splits; it takes one for each of the " +
                                       std::to_string(world) + " ranks of the process set");
  }
  std::int64_t left = request.shapes[0][0];
  for (const std::int64_t split : request.splits) {
    if (split < 0) {
      return refuse_request(request, "a split is " + std::to_string(split) + ", below zero");
    }
    if (split > left) {
      return refuse_request(request, "the splits exceed the first dimension, " +
                                         std::to_string(request.shapes[0][0]));
    }
    left -= split;
  }
  return {};
}

Status check_ranks(const Request& request, int world) {
  if (request.kind != Kind::kAddSet) {
    if (request.ranks.empty()) return {};
    return refuse_request(request, "ranks are for a new process set alone");
  }
  if (request.ranks.empty()) return refuse_request(request, "a process set needs a rank");
  for (std::size_t i = 0; i < request.ranks.size(); ++i) {
    const std::int64_t rank = request.ranks[i];
    if (rank < 0 || rank >= world) {
      return refuse_request(request, "there is no rank " + std::to_string(rank) +
                                         "; ranks are 0 to " + std::to_string(world - 1));
    }
    if (i == 0 || request.ranks[i - 1] < rank) continue;
    return refuse_request(request, request.ranks[i - 1] == rank
                                       ? "rank " + std::to_string(rank) + " is named twice"
                                       : "its ranks are not in ascending order");
  }
  return {};
}

// The ops that are there to be asked for; others are for other users of the kernels.
bool is_op_of_requests(kernels::ReduceOp op) {
  using kernels::ReduceOp;
  return op == ReduceOp::kSum || op == ReduceOp::kAvg || op == ReduceOp::kMin ||
         op == ReduceOp::kMax || op == ReduceOp::kProduct;
}

}  // namespace

const KindNames& names_of(Kind kind) { return kKindNames[static_cast<std::size_t>(kind)]; }

bool reduces(Kind kind) {
  return kind == Kind::kAllReduce || kind == Kind::kAdasum || kind == Kind::kReduceScatter;
}

bool has_own_rows(Kind kind) { return kind == Kind::kAllGather || kind == Kind::kAllToAll; }

std::string described(const Request& request) {
  return std::string(name_of(request.kind)) + " '" + printable(request.name) + "'";
}

Status refuse_request(const Request& request, const std::string& why) {
  return invalid(std::string(name_of(request.kind)) + " of '" + printable(request.name) +
                 "': " + why);
}

std::uint64_t bytes_of(const Shape& shape, kernels::Dtype dtype) {
  std::uint64_t bytes = 0;
  return add_bytes(shape, kernels::size_of(dtype), bytes) ? bytes : kMaxRequestBytes;
}

std::uint64_t bytes_of(const Request& request) {
  std::uint64_t bytes = 0;
  for (const Shape& shape : request.shapes) {
    if (!add_bytes(shape, kernels::size_of(request.dtype), bytes)) return kMaxRequestBytes;
  }
  return bytes;
}

std::optional<std::uint64_t> bytes_of_rows(const Request& request, std::size_t tensor,
                                           std::int64_t rows) {
  Shape shape = request.shapes[tensor];
  shape[0] = rows;
  std::uint64_t bytes = 0;
  if (!add_bytes(shape, kernels::size_of(request.dtype), bytes)) return std::nullopt;
  return bytes;
}

Status check_request(const Request& request, int world) {
  if (request.name.size() > kMaxNameBytes) {
    return invalid(std::string("a name for an ") + name_of(request.kind) + " has " +
                   std::to_string(request.name.size()) + " bytes; at most " +
                   std::to_string(kMaxNameBytes) + " are possible");
  }
  if (!is_op_of_requests(request.op)) {
    return refuse_request(request, std::string("its op is ") + kernels::name_of(request.op) +
                                       "; SUM, AVG, MIN, MAX and PRODUCT are possible");
  }
  if (std::isnan(request.prescale) || std::isnan(request.postscale)) {
    return refuse_request(request, "a factor is not a number");
  }
  const bool is_root_outside = request.root < 0 || request.root >= world;
  if (request.kind == Kind::kBroadcast && is_root_outside) {
    return refuse_request(request, "its root is " + std::to_string(request.root) +
                                       "; ranks of the process set are 0 to " +
                                       std::to_string(world - 1));
  }
  TACO_RETURN_IF_ERROR(check_shapes(request));
  TACO_RETURN_IF_ERROR(check_splits(request, world));
  return check_ranks(request, world);
}

}  // namespace taco::pg::controller
