// The rendezvous of a process group's ranks (edge/rendezvous.h), and what they agree on there:
// settings that change messages are compared, and all plan from rank 0's costs.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/env.h"
#include "edge/rendezvous.h"
#include "edge/roster.h"
#include "pg/communicator.h"

namespace taco::pg {

struct GroupRendezvousOptions {
  int rank = 0;
  int world = 1;
  std::string name;               // torch's name of the group
  std::vector<int> global_ranks;  // empty: this is WORLD
  Duration timeout = 0;
  std::string algorithm;  // Options.algorithm: compared with the others'; "": TACO_ALGORITHM
  std::string compress_all_reduce;  // Options.compress_all_reduce: compared likewise
  // The planner's assumption here, if it is not the table; all ranks take rank 0's.
  std::optional<CostParameters> costs;
};

// With what a Communicator needs. Ended by edge::release().
struct GroupRendezvousResult : edge::RendezvousResult {
  GroupOptions group;
};

// An error names a variable whose value has the right form and cannot be met all the same: a name
// that no room knows, an instruction set that this host lacks, a key file that cannot be read.
Status check_settings(const Env& env);

// As edge::rendezvous().
Result<GroupRendezvousResult> rendezvous(const c10::intrusive_ptr<c10d::Store>& store,
                                         const GroupRendezvousOptions& options);

// The same for ranks that come by handles: as edge::Roster::open(), and the group of those that it
// has gathered, whose ranks and number are theirs and not those of `options`.
Result<std::shared_ptr<edge::Roster>> open_roster(const c10::intrusive_ptr<c10d::Store>& store,
                                                  const GroupRendezvousOptions& options);
Result<GroupRendezvousResult> group_of(edge::Gathering gathering, GroupRendezvousOptions options);

}  // namespace taco::pg
