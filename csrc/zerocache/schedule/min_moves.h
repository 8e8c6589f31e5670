// The least that a run's pages could move, whoever schedules them: what was moved is held against
// it.
//
// For a run that is repeated without end. Lower bounds, one for each way, which not everybody can
// meet all at once:
//   fetching: pages are evicted that are used furthest ahead (Belady, "A study of replacement
//     algorithms for a virtual-storage computer", 1966), which is the least where every page costs
//     the same; and of an operator's pages no two need be there at once here.
//   writing back: a page that every run writes is written back once in every run, unless it stays
//     where it is; and no more stay than there are frames.
// Pages that are written whole first are fetched by nobody.
//
// Pure.
#pragma once

#include <span>

#include "zerocache/schedule/cost.h"
#include "zerocache/schedule/residency.h"
#include "zerocache/schedule/trace.h"

namespace taco::zerocache {

struct MinMoves {
  double copies[kWays] = {};  // a run
};

MinMoves min_moves(std::span<const Use> run, const Capacities& capacities);

}  // namespace taco::zerocache
