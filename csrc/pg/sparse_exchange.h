// all_reduce of sparse tensors, as far as it moves bytes. A sparse tensor is a list of entries,
// each an index and a value, and ranks differ in how many they have. So the exchange takes two
// stages: everybody's count, with what must be alike on all ranks, and then everybody's entries.
// Adding them up, in rank order, is the caller's part, who knows what they are.
//
// One a call; the caller's until it has begun, then the engine's until the operation is done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "pg/operation.h"

namespace taco::pg {

// Travels as it is.
struct SparseShape {
  std::int64_t entries = 0;
  // These must be alike.
  std::int64_t sparse_dim = 0, dense_dim = 0;
  std::int64_t dtype = 0;       // as the caller numbers them
  std::int64_t sizes_hash = 0;  // of the tensor's sizes
};

class SparseExchange final : public Stages, public std::enable_shared_from_this<SparseExchange> {
 public:
  // An entry has so many bytes of each. kResource when there is no memory for this rank's.
  static Result<std::shared_ptr<SparseExchange>> create(int rank, int world,
                                                        const SparseShape& shape,
                                                        std::size_t index_bytes,
                                                        std::size_t value_bytes);

  // The entries of a rank: all indices, and all values. This rank's are to be written before the
  // operation starts, the others' are there when it is done. 16-byte aligned.
  std::int64_t entries(int rank) const { return shapes_[rank].entries; }
  std::byte* indices(int rank) const { return blocks_[rank].data; }
  std::byte* values(int rank) const { return blocks_[rank].data + index_area(entries(rank)); }
  // Releases the memory of entries; nothing may be read any more.
  void release();

  // The operation, but for the caller's timeout.
  OperationSpec first_stage();
  Result<bool> next_st(OperationSpec& spec) override;

 private:
  SparseExchange(int rank, int world, const SparseShape& shape, std::size_t index_bytes,
                 std::size_t value_bytes);
  std::size_t index_area(std::int64_t entries) const;
  std::size_t block_bytes(std::int64_t entries) const;
  Status compare() const;
  Status make_room();

  const int rank_;
  const std::size_t index_bytes_, value_bytes_;
  const SparseShape mine_;
  std::vector<SparseShape> shapes_;  // by rank
  std::vector<Piece> blocks_;        // by rank
  std::unique_ptr<std::byte[]> own_, others_;
  bool has_shapes_ = false;
};

}  // namespace taco::pg
