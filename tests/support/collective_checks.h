// Every collective run by one rank of a group, its result against a plain computation bit by bit.
// All ranks call the same function with the same case; failures are GoogleTest's.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/kernels.h"
#include "pg/communicator.h"
#include "support/pg_values.h"

namespace taco::testing {

struct CollectiveCase {
  kernels::Dtype dtype = kernels::Dtype::kF32;
  kernels::ReduceOp op = kernels::ReduceOp::kSum;
  std::size_t count = 10;
  int root = 0;
  bool uneven = false;  // blocks of different lengths
};

void run_operation(pg::Communicator& group, pg::OperationSpec spec);
std::vector<pg::Piece> pieces(std::vector<Bytes>& blocks);

void all_reduce(pg::Communicator& group, const CollectiveCase& c, bool in_place);
void reduce_scatter(pg::Communicator& group, const CollectiveCase& c);
void all_gather(pg::Communicator& group, const CollectiveCase& c, bool in_place);
void broadcast(pg::Communicator& group, const CollectiveCase& c);
// The collective of that kind, and all of them.
void one_of(pg::Communicator& group, pg::Kind kind, const CollectiveCase& c);
void everything(pg::Communicator& group, const CollectiveCase& c);

}  // namespace taco::testing
