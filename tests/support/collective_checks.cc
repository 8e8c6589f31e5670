#include "support/collective_checks.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "support/pg_values.h"

namespace taco::testing {

using kernels::Dtype;
using kernels::ReduceOp;
using pg::Communicator;
using pg::Kind;
using pg::OperationPtr;
using pg::OperationSpec;
using pg::Piece;

void run_operation(Communicator& group, OperationSpec spec) {
  spec.caller_will_wait = true;
  Result<OperationPtr> operation = group.start(std::move(spec));
  ASSERT_TRUE(operation.ok()) << operation.status().message();
  const Status status = (*operation)->wait(0);
  ASSERT_TRUE(status.ok()) << status.message();
}

std::vector<Piece> pieces(std::vector<Bytes>& blocks) {
  std::vector<Piece> list;
  for (Bytes& block : blocks) list.push_back(piece(block));
  return list;
}

namespace {

std::size_t block_count(int rank, std::size_t count, bool uneven) {
  return uneven ? (count * static_cast<std::size_t>(rank % 3)) / 2 + (rank % 2) : count;
}

std::vector<Bytes> empty_blocks(int world, Dtype dtype, std::size_t count, bool uneven) {
  std::vector<Bytes> blocks;
  for (int r = 0; r < world; ++r)
    blocks.emplace_back(block_count(r, count, uneven) * kernels::size_of(dtype));
  return blocks;
}

}  // namespace

void all_reduce(Communicator& group, const CollectiveCase& c, bool in_place) {
  const int world = group.options().world, rank = group.options().rank;
  std::vector<Bytes> all;
  for (int r = 0; r < world; ++r) all.push_back(values(c.dtype, c.count, r));
  Bytes input = all[rank], output(input.size());
  OperationSpec spec{.kind = Kind::kAllReduce, .dtype = c.dtype, .op = c.op, .premul = 2.0};
  spec.inputs = {piece(input)};
  spec.outputs = {piece(in_place ? input : output)};
  run_operation(group, spec);
  EXPECT_TRUE(same(in_place ? input : output, reduced(c.op, c.dtype, all, 2.0)));
  if (!in_place) {
    EXPECT_TRUE(same(input, all[rank])) << "the input was written";
  }
}

namespace {

void reduce(Communicator& group, const CollectiveCase& c) {
  const int world = group.options().world, rank = group.options().rank;
  std::vector<Bytes> all;
  for (int r = 0; r < world; ++r) all.push_back(values(c.dtype, c.count, r, 1));
  Bytes input = all[rank], output(input.size());
  OperationSpec spec{.kind = Kind::kReduce, .dtype = c.dtype, .op = c.op, .premul = 2.0};
  spec.root = c.root;
  spec.inputs = {piece(input)};
  spec.outputs = {piece(output)};
  run_operation(group, spec);
  if (rank == c.root) {
    EXPECT_TRUE(same(output, reduced(c.op, c.dtype, all, 2.0)));
  }
  EXPECT_TRUE(same(input, all[rank]));
}

}  // namespace

void broadcast(Communicator& group, const CollectiveCase& c) {
  const int rank = group.options().rank;
  Bytes buffer = values(c.dtype, c.count, rank, 2);
  OperationSpec spec{.kind = Kind::kBroadcast, .dtype = c.dtype, .root = c.root};
  spec.outputs = {piece(buffer)};
  run_operation(group, spec);
  EXPECT_TRUE(same(buffer, values(c.dtype, c.count, c.root, 2)));
}

void all_gather(Communicator& group, const CollectiveCase& c, bool in_place) {
  const int world = group.options().world, rank = group.options().rank;
  std::vector<Bytes> blocks = empty_blocks(world, c.dtype, c.count, c.uneven);
  Bytes input = values(c.dtype, block_count(rank, c.count, c.uneven), rank, 3);
  if (in_place) blocks[rank] = input;
  OperationSpec spec{.kind = Kind::kAllGather, .dtype = c.dtype};
  spec.inputs = {piece(in_place ? blocks[rank] : input)};
  spec.outputs = pieces(blocks);
  run_operation(group, spec);
  for (int r = 0; r < world; ++r) {
    EXPECT_TRUE(same(blocks[r], values(c.dtype, block_count(r, c.count, c.uneven), r, 3)))
        << "block " << r;
  }
}

void reduce_scatter(Communicator& group, const CollectiveCase& c) {
  const int world = group.options().world, rank = group.options().rank;
  std::vector<Bytes> inputs;
  for (int block = 0; block < world; ++block)
    inputs.push_back(values(c.dtype, block_count(block, c.count, c.uneven), rank, 4 + block));
  Bytes output(inputs[rank].size());
  OperationSpec spec{.kind = Kind::kReduceScatter, .dtype = c.dtype, .op = c.op, .premul = 2.0};
  spec.inputs = pieces(inputs);
  spec.outputs = {piece(output)};
  run_operation(group, spec);
  std::vector<Bytes> mine;
  for (int r = 0; r < world; ++r)
    mine.push_back(values(c.dtype, block_count(rank, c.count, c.uneven), r, 4 + rank));
  EXPECT_TRUE(same(output, reduced(c.op, c.dtype, mine, 2.0)));
}

namespace {

void gather(Communicator& group, const CollectiveCase& c) {
  const int world = group.options().world, rank = group.options().rank;
  std::vector<Bytes> blocks = empty_blocks(world, c.dtype, c.count, false);
  Bytes input = values(c.dtype, c.count, rank, 5);
  OperationSpec spec{.kind = Kind::kGather, .dtype = c.dtype, .root = c.root};
  spec.inputs = {piece(input)};
  if (rank == c.root) spec.outputs = pieces(blocks);
  run_operation(group, spec);
  for (int r = 0; r < world && rank == c.root; ++r)
    EXPECT_TRUE(same(blocks[r], values(c.dtype, c.count, r, 5)));
}

void scatter(Communicator& group, const CollectiveCase& c) {
  const int world = group.options().world, rank = group.options().rank;
  std::vector<Bytes> blocks;
  for (int r = 0; r < world; ++r) blocks.push_back(values(c.dtype, c.count, r, 6));
  Bytes output(blocks[0].size());
  OperationSpec spec{.kind = Kind::kScatter, .dtype = c.dtype, .root = c.root};
  if (rank == c.root) spec.inputs = pieces(blocks);
  spec.outputs = {piece(output)};
  run_operation(group, spec);
  EXPECT_TRUE(same(output, values(c.dtype, c.count, rank, 6)));
}

void all_to_all(Communicator& group, const CollectiveCase& c) {
  const int world = group.options().world, rank = group.options().rank;
  const auto length = [&](int from, int to) {
    return block_count(from + 2 * to, c.count, c.uneven);
  };
  std::vector<Bytes> inputs, outputs;
  for (int r = 0; r < world; ++r) {
    inputs.push_back(values(c.dtype, length(rank, r), rank, 7 + r));
    outputs.emplace_back(length(r, rank) * kernels::size_of(c.dtype));
  }
  OperationSpec spec{.kind = Kind::kAllToAll, .dtype = c.dtype};
  spec.equal_splits = !c.uneven;
  spec.inputs = pieces(inputs);
  spec.outputs = pieces(outputs);
  run_operation(group, spec);
  for (int r = 0; r < world; ++r)
    EXPECT_TRUE(same(outputs[r], values(c.dtype, length(r, rank), r, 7 + rank))) << "from " << r;
}

}  // namespace

void everything(Communicator& group, const CollectiveCase& c) {
  if (kernels::check_supported(c.op, c.dtype).ok()) {
    all_reduce(group, c, true);
    all_reduce(group, c, false);
    reduce(group, c);
    reduce_scatter(group, c);
  }
  broadcast(group, c);
  all_gather(group, c, false);
  all_gather(group, c, true);
  gather(group, c);
  scatter(group, c);
  all_to_all(group, c);
  run_operation(group, {.kind = Kind::kBarrier});
}

void one_of(Communicator& group, Kind kind, const CollectiveCase& c) {
  switch (kind) {
    case Kind::kAllReduce:
      return all_reduce(group, c, c.count % 2 == 0);
    case Kind::kReduce:
      return reduce(group, c);
    case Kind::kBroadcast:
      return broadcast(group, c);
    case Kind::kAllGather:
      return all_gather(group, c, false);
    case Kind::kReduceScatter:
      return reduce_scatter(group, c);
    case Kind::kGather:
      return gather(group, c);
    case Kind::kScatter:
      return scatter(group, c);
    case Kind::kAllToAll:
      return all_to_all(group, c);
    default:
      return run_operation(group, {.kind = Kind::kBarrier});
  }
}

}  // namespace taco::testing
