#include "edge/stack_use.h"

#include <cstdlib>

#include "base/log.h"

namespace taco::edge {

Result<std::shared_ptr<StackUse>> StackUse::take(const std::string& master,
                                                 const harp::Member& member, Engines engines) {
  Result<harp::StackOptions> options = harp::StackOptions::from_env();
  if (!options.ok()) return options.status();
  if (options->master.empty()) options->master = master;
  if (options->master.empty()) {
    if (const char* named = std::getenv("MASTER_ADDR")) options->master = named;
  }
  Result<harp::HeldStack> held = harp::hold_stack(*options, member);
  if (!held.ok()) return held.status();
  if (held->shares_process) set_log_rank(-1);  // lines are of several ranks here
  auto use = std::make_shared<StackUse>(std::move(held).value(), member);
  for (int i = 1; i < options->engines && engines == Engines::kAll; ++i) {
    Result<harp::HeldStack> further = harp::hold_stack(*options, member, i);
    if (!further.ok()) return further.status();
    use->further_.push_back(std::move(further->stack));
  }
  return use;
}

}  // namespace taco::edge
