// The caller's side of a group: checks, numbers and submits operations.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/far_future.h"
#include "base/names.h"
#include "pg/algorithms/gradient_shard.h"
#include "pg/codec.h"
#include "pg/execution/signature.h"
#include "pg/execution/staging.h"
#include "pg/execution/trace.h"
#include "pg/group/group.h"

namespace taco::pg {
namespace {

// How much later than the home's a deadline is of a part that another engine runs: the home knows
// who has come to which operation, and is to tell it.
constexpr Duration kHomeIsFirst = kSecond;

Status invalid_call(const OperationSpec& spec, const std::string& text) {
  return Status(Code::kInvalidArgument, std::string(name_of(spec.kind)) + ": " + text);
}

Status expect(const OperationSpec& spec, std::size_t inputs, std::size_t outputs) {
  if (spec.inputs.size() == inputs && spec.outputs.size() == outputs) return Status();
  return invalid_call(spec, "takes " + count_text(inputs, "input") + " and " +
                                count_text(outputs, "output") + ", got " +
                                std::to_string(spec.inputs.size()) + " and " +
                                std::to_string(spec.outputs.size()));
}

Status expect_bytes(const OperationSpec& spec, const Piece& piece, std::size_t bytes,
                    const char* what) {
  if (piece.bytes == bytes) return Status();
  return invalid_call(spec, std::string(what) + " has " + std::to_string(piece.bytes) +
                                " bytes where " + std::to_string(bytes) + " are needed");
}

Status check_range(const OperationSpec& spec, int world) {
  if (spec.root >= 0 && spec.root < world) return Status();
  return invalid_call(spec, "rank " + std::to_string(spec.root) +
                                " is out of range: the group has " +
                                count_text(static_cast<std::size_t>(world), "rank"));
}

Status check_one_sided(const OperationSpec& spec, int world, bool has_window) {
  TACO_RETURN_IF_ERROR(expect(spec, spec.kind == Kind::kPut ? 1 : 0, 0));
  TACO_RETURN_IF_ERROR(check_range(spec, world));
  return has_window ? Status() : invalid_call(spec, "this group has no window");
}

Status check_point_to_point(const OperationSpec& spec, int rank, int world) {
  const bool send = spec.kind == Kind::kSend;
  TACO_RETURN_IF_ERROR(expect(spec, send ? 1 : 0, send ? 0 : 1));
  if (spec.kind == Kind::kRecvAny || (spec.kind == Kind::kRecv && spec.root == -1)) {
    if (world == 1) return invalid_call(spec, "there is no other rank in this group");
    return Status();
  }
  TACO_RETURN_IF_ERROR(check_range(spec, world));
  if (spec.root == rank && world == 1)
    return invalid_call(spec, "the peer is this rank itself, in a group of one");
  return Status();
}

// gather and scatter: the root's list, and every block of one size.
Status check_rooted(const OperationSpec& spec, int rank, int world) {
  TACO_RETURN_IF_ERROR(check_range(spec, world));
  const bool gather = spec.kind == Kind::kGather;
  const bool root = spec.root == rank;
  const std::vector<Piece>& one = gather ? spec.inputs : spec.outputs;
  const std::vector<Piece>& list = gather ? spec.outputs : spec.inputs;
  if (one.size() != 1)
    return invalid_call(spec, "takes one " + std::string(gather ? "input" : "output"));
  if (list.size() != (root ? static_cast<std::size_t>(world) : 0)) {
    return invalid_call(
        spec,
        "rank " + std::to_string(rank) + " gives " + count_text(list.size(), "piece") +
            (root ? " as the root; needed is one for each rank" : " although it is not the root"));
  }
  for (const Piece& piece : list)
    TACO_RETURN_IF_ERROR(expect_bytes(spec, piece, one[0].bytes, "a block at the root"));
  return Status();
}

Status check_shape(const OperationSpec& spec, int rank, int world) {
  const auto n = static_cast<std::size_t>(world);
  const auto own = static_cast<std::size_t>(rank);
  switch (spec.kind) {
    case Kind::kAllReduce:
      TACO_RETURN_IF_ERROR(expect(spec, 1, 1));
      return expect_bytes(spec, spec.outputs[0], spec.inputs[0].bytes, "the output");
    case Kind::kReduce:
      TACO_RETURN_IF_ERROR(check_range(spec, world));
      if (rank != spec.root && spec.outputs.empty()) return expect(spec, 1, 0);
      TACO_RETURN_IF_ERROR(expect(spec, 1, 1));
      return expect_bytes(spec, spec.outputs[0], spec.inputs[0].bytes, "the output");
    case Kind::kBroadcast:
      TACO_RETURN_IF_ERROR(check_range(spec, world));
      return expect(spec, 0, 1);
    case Kind::kAllGather:
      TACO_RETURN_IF_ERROR(expect(spec, 1, n));
      return expect_bytes(spec, spec.inputs[0], spec.outputs[own].bytes, "the input");
    case Kind::kReduceScatter:
      TACO_RETURN_IF_ERROR(expect(spec, n, 1));
      return expect_bytes(spec, spec.outputs[0], spec.inputs[own].bytes, "the output");
    case Kind::kAllToAll:
      TACO_RETURN_IF_ERROR(expect(spec, n, n));
      return expect_bytes(spec, spec.outputs[own], spec.inputs[own].bytes,
                          "this rank's own output block");
    case Kind::kGather:
    case Kind::kScatter:
      return check_rooted(spec, rank, world);
    case Kind::kBarrier:
      return expect(spec, 0, 0);
    default:
      return check_point_to_point(spec, rank, world);
  }
}

// Checks what a codec asks of the operation it may be used for.
Status check_codec(const OperationSpec& spec, const Topology& topology, int rank) {
  using kernels::ReduceOp;
  if (spec.codec == nullptr) return Status();
  const std::string codec = spec.codec->name();
  const bool scatters = spec.kind == Kind::kReduceScatter;
  if (spec.kind != Kind::kAllReduce && !scatters) {
    return invalid_call(spec,
                        "only an all_reduce or a reduce_scatter can be compressed (" + codec + ")");
  }
  const bool adds = spec.op == ReduceOp::kSum || spec.op == ReduceOp::kAvg ||
                    (scatters && spec.op == ReduceOp::kPremulSum);
  if (spec.dtype != kernels::Dtype::kF32 || !adds) {
    return invalid_call(spec, "only float32 under SUM or AVG can be compressed (" + codec +
                                  "), this is " + kernels::name_of(spec.dtype) + " under " +
                                  name_of(spec.op));
  }
  if (!spec.codec->has_memory()) return Status();
  if (scatters) {
    return invalid_call(spec,
                        codec + " sends only a part, and keeps the rest for the next all_reduce " +
                            "of the same gradient; a reduce_scatter sends all, in 16 bits");
  }
  const Shard shard = gradient_shard(spec.inputs[0].bytes, sizeof(float), topology, rank);
  const std::size_t covered = spec.feedback == nullptr ? 0 : spec.feedback->residual.size();
  if (covered == shard.bytes / sizeof(float)) return Status();
  return invalid_call(spec, codec + " needs a residual of the " +
                                std::to_string(shard.bytes / sizeof(float)) +
                                " elements that rank " + std::to_string(rank) +
                                " sends to other hosts, and got one of " + std::to_string(covered));
}

// One stage of the only rank of a group: it has everything already.
void run_locally(const OperationSpec& spec) {
  if (spec.inputs.empty() || spec.outputs.empty() || spec.outputs[0].bytes == 0) return;
  const Piece& out = spec.outputs[0];
  const bool reduces = spec.kind == Kind::kAllReduce || spec.kind == Kind::kReduce ||
                       spec.kind == Kind::kReduceScatter;
  std::memmove(out.data, spec.inputs[0].data, out.bytes);
  if (reduces && spec.op == kernels::ReduceOp::kPremulSum) {
    kernels::scale(spec.dtype, out.data, out.data, out.bytes / kernels::size_of(spec.dtype),
                   spec.premul);
  }
}

}  // namespace

Status Group::check(OperationSpec& spec) const {
  if (is_one_sided(spec.kind)) {
    TACO_RETURN_IF_ERROR(check_one_sided(spec, options_.world, window_.has_value()));
  } else if (window_ && !is_collective(spec.kind)) {
    return invalid_call(spec, "the group of a window has no sends and receives");
  } else {
    TACO_RETURN_IF_ERROR(check_shape(spec, options_.rank, options_.world));
  }
  const std::size_t element = kernels::size_of(spec.dtype);
  for (const auto* pieces : {&spec.inputs, &spec.outputs}) {
    for (const Piece& piece : *pieces) {
      if (piece.bytes % element != 0) {
        return invalid_call(spec, std::to_string(piece.bytes) + " bytes are no whole number of " +
                                      kernels::name_of(spec.dtype));
      }
      if (piece.bytes > 0 && piece.data == nullptr)
        return invalid_call(spec, "a piece has no memory");
    }
  }
  if (spec.kind == Kind::kAllReduce || spec.kind == Kind::kReduce ||
      spec.kind == Kind::kReduceScatter)
    TACO_RETURN_IF_ERROR(kernels::check_supported(spec.op, spec.dtype));
  TACO_RETURN_IF_ERROR(check_codec(spec, topology(), options_.rank));
  // A rank that is not the root lends its buffer of a reduce to nobody.
  if (spec.kind == Kind::kReduce && spec.root != options_.rank) spec.outputs.clear();
  if (spec.kind == Kind::kRecv && spec.root == -1) spec.kind = Kind::kRecvAny;
  if (spec.kind == Kind::kRecvAny) spec.root = -1;
  if (spec.kind != Kind::kPut || spec.root != options_.rank) return Status();
  const std::string refusal = refusal_of({.type = WindowMessage::Type::kPut,
                                          .dtype = spec.dtype,
                                          .offset = spec.offset,
                                          .bytes = spec.inputs[0].bytes},
                                         window_->memory());
  return refusal.empty() ? Status() : invalid_call(spec, "this rank's own window: " + refusal);
}

// A put of this rank into its own window, on the caller's thread: the bytes are in place before the
// signal of it is counted.
void Group::put_here(const OperationSpec& spec) const {
  if (spec.kind != Kind::kPut || spec.root != options_.rank || spec.inputs[0].bytes == 0) return;
  std::memmove(window_->memory().memory.data + spec.offset, spec.inputs[0].data,
               spec.inputs[0].bytes);
}

std::shared_ptr<OperationState> Group::make(OperationSpec spec) {
  // Each rank compares the blocks themselves, so that ranks may leave out the lists or not.
  if (spec.kind == Kind::kAllToAll && spec.equal_splits)
    spec.equal_splits = planner_->relies_on_equal_splits(spec.inputs[0].bytes);
  auto operation = std::make_shared<OperationState>(std::move(spec), *this, stack_);
  operation->bytes = bytes_of(operation->spec);
  const Part& part = operation->spec.part;
  operation->signature = part.signature != 0 ? part.signature : signature_of(operation->spec);
  operation->submitted = monotonic_now();
  const Duration own = operation->spec.timeout;
  const Duration limit = own > 0 ? own : timeout_.load(std::memory_order_relaxed);
  operation->deadline = limit > 0 ? later(operation->submitted, limit) : kNever;
  if (part.index > 0) operation->deadline = later(operation->deadline, kHomeIsFirst);
  return operation;
}

// A forked child takes no lock of its parent's: whoever held it is not here to let go of it.
Status Group::check_usable(Kind kind) const {
  return stack_->usable().with_prefix(std::string(name_of(kind)) + " in group '" + options_.name +
                                      "': ");
}

// Operations are numbered here. A part has the number of its call, which other calls that this
// group had no part in may have come before.
std::uint64_t Group::next_number(const OperationState& operation) const {
  if (operation.is_point_to_point()) return sequence_;
  const std::uint64_t given = operation.spec.part.sequence;
  return given != 0 ? given : sequence_ + 1;
}

Result<OperationPtr> Group::start(OperationSpec spec) {
  TACO_RETURN_IF_ERROR(check(spec));
  if (options_.world == 1) return run_alone(std::move(spec));
  TACO_RETURN_IF_ERROR(check_usable(spec.kind));
  std::shared_ptr<OperationState> operation = make(std::move(spec));
  if (!operation->is_point_to_point())
    TACO_RETURN_IF_ERROR(stage_overlaps(*operation, options_.rank));
  put_here(operation->spec);
  operation->self = operation;
  // Submitted under the lock: the engine sees collectives in the order of their numbers.
  std::lock_guard lock(mutex_);
  // A send or receive after a failure is judged by the engine, which knows what has arrived.
  const std::uint64_t number = next_number(*operation);
  const bool refused =
      !error_.ok() &&
      (operation->is_point_to_point() ? refused_from_ == kEverything : number >= refused_from_);
  if (closed_ || refused) {
    operation->self.reset();
    if (closed_) {
      return Status(Code::kAborted,
                    "group '" + options_.name + "' was destroyed; no operation can start");
    }
    reported_ = true;
    return error_.with_prefix(describe_signature(operation->signature) + " cannot start: ");
  }
  operation->set_sequence(number);
  sequence_ = number;
  stack_->engine().submit(*operation, operation->spec.caller_will_wait);
  return OperationPtr(std::move(operation));
}

Result<bool> Group::next_stage(OperationState& operation) const {
  Result<bool> more = operation.spec.stages->next_st(operation.spec);
  if (!more.ok() || !*more) return more;
  TACO_RETURN_IF_ERROR(check(operation.spec));
  ++operation.stage;
  operation.bytes += bytes_of(operation.spec);
  operation.in_place = is_in_place(operation.spec, options_.rank);
  return true;
}

Status Group::run_one_sided_alone(const OperationSpec& spec) {
  put_here(spec);
  std::lock_guard lock(mutex_);
  if (spec.kind != Kind::kWaitSignal) {
    ++own_signals_;
  } else if (own_signals_ == 0) {
    return invalid_call(spec, "this rank has given itself no signal, and the group has no other");
  } else {
    --own_signals_;
  }
  return Status();
}

Result<OperationPtr> Group::run_alone(OperationSpec spec) {
  std::shared_ptr<OperationState> operation = make(std::move(spec));
  OperationSpec& s = operation->spec;
  {
    std::lock_guard lock(mutex_);
    if (closed_) {
      return Status(Code::kAborted,
                    "group '" + options_.name + "' was destroyed; no operation can start");
    }
    if (!error_.ok()) return error_;
    operation->set_sequence(++sequence_);
  }
  Status status;
  if (is_one_sided(s.kind)) {
    status = run_one_sided_alone(s);
  } else {
    run_locally(s);
  }
  while (s.stages != nullptr) {
    Result<bool> more = next_stage(*operation);
    status = more.status();
    if (!status.ok() || !*more) break;
    run_locally(s);
  }
  operation->set_algorithm("local");
  operation->started = operation->submitted;
  const Time now = monotonic_now();
  trace::add({options_.name, options_.rank, operation->sequence(), operation->signature,
              operation->bytes, operation->submitted, operation->started, now, "local", s.kind,
              status.code()});
  operation->complete(status, now);
  return OperationPtr(std::move(operation));
}

}  // namespace taco::pg
