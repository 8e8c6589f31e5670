// A Schedule is what one rank does for one collective: plain data, a list of steps over slices of
// the caller's buffers and of scratch memory, with dependencies. Pure functions make it
// (algorithms/), the executor runs it over HARP, the interpreter in tests proves it without a
// network, and the cost model predicts its time. It knows no pointer, no clock and no torch.
//
// Every schedule promises this, and the interpreter proves it:
//  - steps depend on earlier steps only; a step may start when all of them are done, in any order
//    among the ready ones;
//  - no step writes bytes that an unfinished send still reads (a send is done when acknowledged,
//    arbitrarily late), and at most one receive is open for any byte;
//  - every send has exactly one receive under the same channel at its peer, of equal length, or, if
//    the message tells its length only when it comes, with room for it;
//  - a length that is known only when the schedule runs is known before a step goes by it;
//  - messages have one global order that the steps of every rank follow. So open sends and open
//    receives may each be limited to any number W >= 1 without deadlock, provided the limit covers
//    the W lowest-numbered *unfinished* sends (or receives), ready or not;
//  - operands are combined in an order fixed by the schedule, never by arrival, and all ranks end
//    with the same bits.
//
// A schedule is immutable once made and may be shared by any number of operations and threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "pg/operation.h"

namespace taco::pg {

enum class Space : std::uint8_t {
  kInput,    // OperationSpec::inputs[piece]
  kOutput,   // OperationSpec::outputs[piece]
  kScratch,  // the operation's scratch memory, 64-byte aligned; piece is 0
  // The codec's memory of this rank's shard of a gradient (OperationSpec::feedback); piece is 0.
  // Counted in bytes of the shard: whatever is kept of an element is at the element's own offset.
  kResidual,
};

struct Slice {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint32_t piece = 0;
  Space space = Space::kScratch;

  Slice part(std::uint64_t from, std::uint64_t length) const {
    return {offset + from, length, piece, space};
  }
  bool operator==(const Slice&) const = default;
};

enum class StepKind : std::uint8_t {
  kSend,  // source to every transfer's peer; with several peers the same bytes to each
  kRecv,  // destination = incoming
  // destination = source (op) incoming; source may be destination. Where the step has a `length`,
  // what comes is coded, and is decoded as it arrives (Codec::arrival).
  kRecvReduce,
  kCopy,    // destination = source
  kReduce,  // destination = source (op) operand; destination may be either of them
  kScale,   // destination = source * OperationSpec::premul; may be the same slice
  kDivide,  // destination = source / world size; may be the same slice
  // By OperationSpec::codec (pg/codec.h).
  // destination = source in coded form; operand: its residual, read and written, where the codec
  // has a memory.
  kEncode,
  kDecode,        // destination = coded source
  kDecodeReduce,  // destination = operand (op) coded source; operand may be destination
};
const char* name_of(StepKind kind);

// One message of this operation. The n-th message from rank a to rank b has channel n on both
// sides, counted from 0 for each ordered pair of ranks.
struct Transfer {
  std::int32_t peer = 0;
  std::uint32_t channel = 0;
};

// All slices of a step have the same length, except those of something coded. A send or receive of
// zero bytes is a message too (the barrier's): pieces of length zero that both sides know have been
// left out already.
//
// How long a message is, or a block in coded form, may be known only when the schedule runs. Then
// its slice says the most that it may be, and `length` under which number the true length is found:
// an encode or receive step finds it out, send and decode steps go by it.
struct Step {
  static constexpr std::uint32_t kWhole = UINT32_MAX;  // the slice is as long as it says

  StepKind kind = StepKind::kCopy;
  Slice destination;
  Slice source;
  Slice operand;
  std::uint32_t first_transfer = 0;   // into Schedule::transfers: a send has one or more, a
  std::uint32_t transfers = 0;        // receive exactly one, all others none
  std::uint32_t dependencies = 0;     // how many steps must be done before this one
  std::uint32_t first_dependent = 0;  // into Schedule::dependents: the steps waiting for this one,
  std::uint32_t dependents = 0;       // all of them later in the list
  std::uint32_t length = kWhole;      // into Schedule::lengths
  bool divides = false;               // decode: what is decoded, by the world size

  bool is_receive() const { return kind == StepKind::kRecv || kind == StepKind::kRecvReduce; }
  bool is_coding() const {
    return kind == StepKind::kEncode || kind == StepKind::kDecode ||
           kind == StepKind::kDecodeReduce;
  }
  bool is_coded_arrival() const { return kind == StepKind::kRecvReduce && length != kWhole; }
  // How much a local step works on: of a coding one, what is not coded.
  const Slice& worked_on() const { return kind == StepKind::kEncode ? source : destination; }
  // The user's operation is complete when every step but these is done: such a send reads scratch
  // memory only, so that the caller need not wait for its acknowledgement. The scratch memory is
  // kept until it is done.
  bool outlives_operation() const {
    return kind == StepKind::kSend && source.space == Space::kScratch;
  }
};

struct Schedule {
  const char* algorithm = "";
  std::vector<Step> steps;
  std::vector<Transfer> transfers;
  std::vector<std::uint32_t> dependents;
  std::vector<std::uint64_t> lengths;  // that are known only when it runs: what to expect of each
  std::uint64_t scratch_bytes = 0;
  std::uint32_t sends = 0;              // messages, not steps
  std::uint32_t receives = 0;           // messages
  std::uint32_t send_window = 32;       // sends to have open at a time
  std::uint32_t receive_window = 32;    // and receives, which is what lets a peer send
  std::uint32_t turn_bytes = 1 << 20;   // of local steps to work on between two looks at the links
  double coded_bytes_per_second = 0;    // by encode steps, of what is not coded; 0: there are none
  double decoded_bytes_per_second = 0;  // by decode steps
  double added_bytes_per_second = 0;    // by those that reduce too
  double predicted_seconds = 0;

  // The length of the message of a send or receive; the expected one where no more is known.
  std::uint64_t message_bytes(const Step& step) const {
    if (step.length != Step::kWhole) return lengths[step.length];
    return step.is_receive() ? step.destination.bytes : step.source.bytes;
  }
  std::span<const Transfer> transfers_of(const Step& step) const {
    return {transfers.data() + step.first_transfer, step.transfers};
  }
  std::span<const std::uint32_t> dependents_of(const Step& step) const {
    return {dependents.data() + step.first_dependent, step.dependents};
  }
};

// The tag half of a collective message's MessageKey (the group's id is the other half):
//   bits 63..32  the operation's sequence number in its group, low 32 bits
//   bit  31      0; point-to-point messages have 1 here and use the rest as they like
//   bits 30..28  the stage of an operation that takes several (pg/operation.h)
//   bits 27..0   Transfer::channel
// No bit says the direction: sends and receives of one key are told apart by the transport. No
// bits are needed for a chunk: chunks are steps of their own.
inline constexpr std::uint64_t kPointToPointTag = std::uint64_t{1} << 31;
inline constexpr std::uint32_t kMaxStages = 8;
inline std::uint64_t collective_tag(std::uint64_t sequence, std::uint32_t channel,
                                    std::uint32_t stage = 0) {
  return (sequence << 32) | stage << 28 | channel;
}

// A collective to be planned. Everything above the line must be the same on all ranks, or the
// ranks would plan different schedules; what is below it is this rank's own and changes only its
// local steps.
struct Problem {
  Kind kind = Kind::kBarrier;
  std::uint32_t element_bytes = 1;     // slices never cut an element
  bool average = false;                // divide by the world size at the end (kAvg)
  bool premultiply = false;            // scale the input first (kPremulSum)
  std::shared_ptr<const Codec> codec;  // algorithms may code what they send; null: must not
  int root = 0;
  // all_reduce, reduce, broadcast: the whole message. Others: one rank's block, when all blocks
  // are equal (gather and scatter always: torch demands it).
  std::uint64_t bytes = 0;
  // all_gather (outputs by rank), reduce_scatter (inputs by rank): the blocks when they are not
  // all equal, else empty. Never a mixture: equal blocks must come as `bytes`.
  std::vector<std::uint64_t> blocks;
  // all_to_all: every rank promises that all blocks of all ranks are `bytes` long. Without it each
  // rank knows only its own blocks, below, and only the direct exchange is possible.
  bool equal_splits = false;
  // ------------------------------------------------------------------------------------------
  // The input is part of the output's memory, exactly: all_reduce, reduce: the same; all_gather,
  // gather: inputs[0] is outputs[rank]; reduce_scatter, scatter: outputs[0] is inputs[rank].
  // all_to_all never. Any other overlap must be staged before the schedule runs.
  bool in_place = false;
  // all_to_all without equal_splits: bytes to and from each rank.
  std::vector<std::uint64_t> send_blocks;
  std::vector<std::uint64_t> receive_blocks;

  std::uint64_t block(int rank) const { return blocks.empty() ? bytes : blocks[rank]; }
  std::uint64_t total(int world) const;  // sum of block(r)
  bool operator==(const Problem&) const = default;
};
std::size_t hash_of(const Problem& problem);

}  // namespace taco::pg
