#include "pg/group/striped_group.h"

#include <algorithm>
#include <utility>

#include "pg/algorithms/partition.h"
#include "pg/execution/signature.h"
#include "pg/execution/staging.h"
#include "pg/execution/whole_call.h"
#include "pg/group/striped_operation.h"

namespace taco::pg {
namespace {

bool can_be_cut(const OperationSpec& spec) {
  if (spec.codec != nullptr || spec.stages != nullptr) return false;
  switch (spec.kind) {
    case Kind::kAllReduce:
    case Kind::kReduce:
    case Kind::kBroadcast:
    case Kind::kAllGather:
    case Kind::kReduceScatter:
      return true;
    default:
      return false;
  }
}

// Every piece is cut into as many, so that a part has its share of each block.
void cut(std::vector<Piece>& pieces, const Part& part, std::uint32_t element_bytes) {
  for (Piece& piece : pieces) {
    const Partition partition(piece.bytes, part.count, element_bytes);
    const std::uint64_t begin = partition.offset(part.index);
    piece = {piece.data + begin, partition.offset(part.index + 1) - begin};
  }
}

}  // namespace

StripedGroup::StripedGroup(std::vector<std::shared_ptr<Group>> groups)
    : groups_(std::move(groups)) {
  for (const auto& group : groups_) {
    std::vector<std::weak_ptr<Group>> others;
    for (const auto& other : groups_)
      if (other != group) others.push_back(other);
    group->join(std::move(others));
  }
  // A failure from before was told to nobody.
  if (const Status failure = error(); !failure.ok()) home().fail_from(failure, 0);
}

StripedGroup::~StripedGroup() {
  if (!is_left_to_itself_) (void)close(0);
}

int StripedGroup::parts_of(const OperationSpec& spec) const {
  if (!can_be_cut(spec)) return 1;
  return static_cast<int>(std::clamp<std::uint64_t>(bytes_of(spec) / kMinPart, 1, groups_.size()));
}

Result<OperationPtr> StripedGroup::start(OperationSpec spec) {
  const int count = parts_of(spec);
  if (count == 1) return home().start(std::move(spec));
  TACO_RETURN_IF_ERROR(home().check(spec));
  TACO_RETURN_IF_ERROR(home().check_usable(spec.kind));
  return start_parts(std::move(spec), count);
}

Result<OperationPtr> StripedGroup::start_parts(OperationSpec spec, int count) {
  Result<std::unique_ptr<std::byte[]>> inputs = copy_overlapping_inputs(spec, options().rank);
  if (!inputs.ok()) return inputs.status();
  const std::uint64_t signature = signature_of(spec);
  spec.whole = std::make_shared<WholeCall>(
      count, bytes_of(spec), std::exchange(spec.ended_st, nullptr), std::move(inputs).value());
  std::vector<OperationPtr> parts;
  Status refusal;
  const auto element_bytes = static_cast<std::uint32_t>(kernels::size_of(spec.dtype));
  std::lock_guard lock(mutex_);
  for (int index = 0; index < count; ++index) {
    OperationSpec one = spec;
    one.part = {signature, index == 0 ? 0 : parts.front()->sequence(), index, count};
    // The caller that waits drives the home's engine; the others' threads are to be woken.
    one.caller_will_wait = spec.caller_will_wait && index == 0;
    cut(one.inputs, one.part, element_bytes);
    cut(one.outputs, one.part, element_bytes);
    Result<OperationPtr> part = groups_[index]->start(std::move(one));
    if (part.ok()) {
      parts.push_back(std::move(part).value());
      continue;
    }
    if (index == 0) return part.status();
    // The others count on this part. A group that has failed may not have told the home yet.
    refusal = part.status();
    const Status failure = groups_[index]->error();
    home().fail_from(failure.ok() ? refusal : failure, parts.front()->sequence());
    for (int missing = index; missing < count; ++missing) spec.whole->part_refused(refusal);
    break;
  }
  return OperationPtr(std::make_shared<StripedOperation>(std::move(parts), std::move(refusal)));
}

Status StripedGroup::close(Duration linger) {
  if (is_closed_.exchange(true)) return Status();
  Status unreported;
  for (const auto& group : groups_) {
    if (Status status = group->close(linger); unreported.ok()) unreported = std::move(status);
  }
  // Their Stacks may be closed from now on.
  for (const auto& group : groups_) group->join({});
  for (const auto& group : groups_) group->hear_others();
  return unreported;
}

void StripedGroup::close_when_idle(Duration linger) {
  is_left_to_itself_ = true;
  for (const auto& group : groups_) group->close_when_idle(linger);
}

// A failure is on its way from one group to the others for a moment.
Status StripedGroup::error() const {
  for (const auto& group : groups_)
    if (Status error = group->error(); !error.ok()) return error;
  return Status();
}

void StripedGroup::set_timeout(Duration timeout) {
  for (const auto& group : groups_) group->set_timeout(timeout);
}

}  // namespace taco::pg
