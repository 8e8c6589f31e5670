#include "pg/operation.h"

#include <algorithm>

namespace taco::pg {

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::kAllReduce:
      return "all_reduce";
    case Kind::kBroadcast:
      return "broadcast";
    case Kind::kAllGather:
      return "all_gather";
    case Kind::kReduceScatter:
      return "reduce_scatter";
    case Kind::kReduce:
      return "reduce";
    case Kind::kGather:
      return "gather";
    case Kind::kScatter:
      return "scatter";
    case Kind::kAllToAll:
      return "all_to_all";
    case Kind::kBarrier:
      return "barrier";
    case Kind::kSend:
      return "send";
    case Kind::kRecv:
      return "recv";
    case Kind::kRecvAny:
      return "recv_any";
    case Kind::kPut:
      return "put";
    case Kind::kSignal:
      return "signal";
    case Kind::kWaitSignal:
      return "wait_signal";
  }
  return "unknown";
}

std::uint64_t bytes_of(const OperationSpec& spec) {
  std::uint64_t in = 0, out = 0;
  for (const Piece& piece : spec.inputs) in += piece.bytes;
  for (const Piece& piece : spec.outputs) out += piece.bytes;
  return std::max(in, out);
}

}  // namespace taco::pg
