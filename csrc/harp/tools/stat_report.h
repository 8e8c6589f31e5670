// The output of harp-stat: looks at engines as a table for people, as JSON or as Prometheus reads
// them. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "harp/tools/stat_processes.h"

namespace taco::harp::statistics {

// `before`: an earlier look at the same engines, from which rates are known; those that it lacks
// have none.
std::string table_of(const std::vector<Look>& now, const std::vector<Look>& before);
// One object in one line.
std::string json_of(const Everything& all);
std::string prometheus_of(const std::vector<Look>& looks);

}  // namespace taco::harp::statistics
