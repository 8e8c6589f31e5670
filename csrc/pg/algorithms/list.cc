#include "pg/algorithms/list.h"

#include "pg/algorithms/forced.h"
#include "pg/planning/planner.h"

namespace taco::pg {

Algorithms all_algorithms() {
  using namespace algorithms;
  static const Algorithm* const list[] = {
      &all_reduce_direct,
      &all_reduce_recursive_doubling,
      &all_reduce_hierarchical,
      &all_reduce_direct_scatter,
      &all_reduce_ring,
      &all_reduce_rabenseifner,
      &all_reduce_two_dimensional,
      &all_reduce_two_dimensional_coded,
      &all_reduce_two_dimensional_sparse,
      &reduce_scatter_direct,
      &reduce_scatter_ring,
      &reduce_scatter_hierarchical,
      &reduce_scatter_two_dimensional_coded,
      &all_gather_direct,
      &all_gather_bruck,
      &all_gather_ring,
      &all_gather_hierarchical,
      &broadcast_direct,
      &broadcast_binomial,
      &broadcast_scatter_all_gather,
      &broadcast_hierarchical,
      &broadcast_chain,
      &reduce_direct,
      &reduce_binomial,
      &reduce_scatter_gather,
      &reduce_hierarchical,
      &reduce_chain,
      &gather_direct,
      &gather_binomial,
      &gather_hierarchical,
      &scatter_direct,
      &scatter_binomial,
      &scatter_hierarchical,
      &all_to_all_direct,
      &all_to_all_hierarchical,
      &barrier_direct,
      &barrier_dissemination,
      &barrier_hierarchical,
  };
  return list;
}

Status check_forced(const std::string& forced) {
  return Planner::create(all_algorithms(), Topology::uniform(1, 1, 0), CostParameters{}, 0, forced)
      .status();
}

}  // namespace taco::pg
