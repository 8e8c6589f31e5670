#include "pg/c10d/generation.h"

#include <utility>
#include <vector>

#include "base/env.h"
#include "pg/tuning/tuning.h"

namespace taco::pg {

Result<std::shared_ptr<Generation>> Generation::open(GroupRendezvousResult rendezvous,
                                                     const void* tree, bool is_default) {
  auto made = std::make_shared<Generation>(std::move(rendezvous));
  if (is_default) TACO_RETURN_IF_ERROR(made->measure_costs(tree));
  const GroupRendezvousResult& result = made->rendezvous_;
  std::vector<FurtherEngine> further;
  for (const edge::EnginePeers& engine : result.further)
    further.push_back({engine.stack, engine.peers});
  Result<std::shared_ptr<Communicator>> communicator =
      Communicator::create(result.stack, result.group, further);
  if (!communicator.ok()) return communicator.status();
  made->communicator_ = std::move(communicator).value();
  made->nested_ = std::make_shared<NestedGroups>(result.stack, result.group);
  return made;
}

// A default group measures, if told to; groups of its ranks plan as it does.
Status Generation::measure_costs(const void* tree) {
  GroupOptions& group = rendezvous_.group;
  CostBlock block{.parameters = group.costs, .owner = owner(), .tree = tree};
  Result<Env> env = Env::get();
  if (!env.ok()) return env.status();
  if (env->tune && group.world > 1) {
    Result<CostParameters> measured = tune(rendezvous_.stack, group);
    if (!measured.ok()) return measured.status();
    block.parameters = *measured;
    block.measured = true;
  }
  group.costs = block.parameters;
  add_costs(block);
  return Status();
}

void Generation::set_timeout(Duration timeout) {
  communicator_->set_timeout(timeout);
  nested_->set_timeout(timeout);
}

Status Generation::close(Duration linger) {
  std::lock_guard lock(closing_);
  if (std::exchange(closed_, true)) return Status();
  // Work that belongs to its operations may start until the last of them has ended.
  Status unreported;
  if (communicator_) unreported = communicator_->close(linger);
  if (nested_) {
    if (Status nested = nested_->close(linger); unreported.ok()) unreported = std::move(nested);
  }
  withdraw_costs(owner());
  edge::release(rendezvous_);
  return unreported;
}

}  // namespace taco::pg
