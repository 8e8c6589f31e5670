// The words and numbers in which harp-perf tells its findings. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "harp/tools/perf_session.h"

namespace taco::harp::perf {

// A line for each measure and size: HARP, and TCP beside it where it was measured.
std::string table_of(const std::vector<Row>& rows);
// One object in one line.
std::string json_of(const Findings& findings, const std::vector<Setting>& settings);

}  // namespace taco::harp::perf
