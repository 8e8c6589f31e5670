// The parameter block all ranks of a group plan from: where it comes from, and how it travels.
// It is the table in cost_parameters.h, or, with TACO_TUNE=1, a measurement that one rank has
// rounded and all have received (tuning.h).
//
// Pure functions, except that the blocks of the process's default groups are kept for groups made
// from them later. A process may have several default groups, not made in the same order on all
// ranks; so a block belongs to the tree of groups whose default group measured it. At a group's
// rendezvous all of its ranks get the block that its rank 0 finds here. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "pg/planning/cost_parameters.h"
#include "pg/tuning/link_probe.h"

namespace taco::pg {

struct Measurement {
  LinkMeasurement shared;   // all zero: no two ranks share a host
  LinkMeasurement network;  // all zero: there is one host
  double copy_bytes_per_second = 0;
  double reduce_bytes_per_second = 0;
};

// The table with what was measured in place of what it assumes. Every value is rounded to a step of
// a fifth, so that two runs on one machine mostly agree, and whatever cannot be true is left out.
// `gbits`: of the slowest interface, 0 when not known.
CostParameters measured_block(const Measurement& measurement, double gbits);

std::vector<std::byte> encode(const CostParameters& parameters);
std::size_t encoded_bytes();
// kMismatch when the bytes are no block, or hold values no measurement gives.
Result<CostParameters> decode_costs(std::span<const std::byte> bytes);

// A member of a default group; a process may be several, as threads.
struct CostOwner {
  std::uint64_t group = 0;  // its id
  int rank = 0;
  bool operator==(const CostOwner&) const = default;
};

struct CostBlock {
  CostParameters parameters;
  bool measured = false;
  CostOwner owner;
  const void* tree = nullptr;  // the same for the groups made from it, as their store is

  std::string name() const;  // "measured 0x12ab34cd", "table 0x..."
};

void add_costs(const CostBlock& block);
void withdraw_costs(const CostOwner& owner);
// The block of the default group of that tree; where there is none, the first one's, or the table.
CostBlock costs_of_tree(const void* tree);
CostBlock first_costs();

}  // namespace taco::pg
