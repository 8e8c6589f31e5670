// The algorithms by name, and the list of all of them, which planners are given. A new one is
// declared here and entered in list.cc.
#pragma once

#include "pg/planning/algorithm.h"

namespace taco::pg {

Algorithms all_algorithms();

}  // namespace taco::pg

namespace taco::pg::algorithms {

extern const Algorithm all_reduce_direct;
extern const Algorithm all_reduce_recursive_doubling;
extern const Algorithm all_reduce_rabenseifner;
extern const Algorithm all_reduce_ring;
extern const Algorithm all_reduce_direct_scatter;
extern const Algorithm all_reduce_two_dimensional;
extern const Algorithm all_reduce_two_dimensional_coded;
extern const Algorithm all_reduce_two_dimensional_sparse;
extern const Algorithm all_reduce_hierarchical;
extern const Algorithm reduce_scatter_direct;
extern const Algorithm reduce_scatter_ring;
extern const Algorithm reduce_scatter_hierarchical;
extern const Algorithm reduce_scatter_two_dimensional_coded;
extern const Algorithm all_gather_direct;
extern const Algorithm all_gather_ring;
extern const Algorithm all_gather_bruck;
extern const Algorithm all_gather_hierarchical;
extern const Algorithm broadcast_direct;
extern const Algorithm broadcast_binomial;
extern const Algorithm broadcast_scatter_all_gather;
extern const Algorithm broadcast_hierarchical;
extern const Algorithm broadcast_chain;
extern const Algorithm reduce_direct;
extern const Algorithm reduce_binomial;
extern const Algorithm reduce_scatter_gather;
extern const Algorithm reduce_hierarchical;
extern const Algorithm reduce_chain;
extern const Algorithm gather_direct;
extern const Algorithm gather_binomial;
extern const Algorithm gather_hierarchical;
extern const Algorithm scatter_direct;
extern const Algorithm scatter_binomial;
extern const Algorithm scatter_hierarchical;
extern const Algorithm all_to_all_direct;
extern const Algorithm all_to_all_hierarchical;
extern const Algorithm barrier_direct;
extern const Algorithm barrier_dissemination;
extern const Algorithm barrier_hierarchical;

}  // namespace taco::pg::algorithms
