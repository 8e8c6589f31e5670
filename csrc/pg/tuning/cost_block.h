// The parameter block all ranks of a group plan from: where it comes from, and how it travels.
// It is the table in cost_parameters.h, or, with TACO_TUNE=1, a measurement that one rank has
// rounded and all have received (tuning.h).
//
// Pure functions, but for the block in force: that of the process's default group, for groups made
// later from its ranks. Any thread.
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

struct CostBlock {
  CostParameters parameters;
  bool measured = false;
  std::uint64_t owner = 0;  // the default group's id

  std::string name() const;  // "measured 0x12ab34cd", "table 0x..."
};

CostBlock costs_in_force();
// The first of several default groups (merged ones, say) decides until it is gone.
void put_costs_in_force(const CostBlock& block);
void withdraw_costs(std::uint64_t owner);

}  // namespace taco::pg
