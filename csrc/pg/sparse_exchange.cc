#include "pg/sparse_exchange.h"

#include <new>
#include <string>
#include <utility>

namespace taco::pg {
namespace {

constexpr std::size_t kValueAlignment = 16;  // the largest type of a value
static_assert(__STDCPP_DEFAULT_NEW_ALIGNMENT__ >= kValueAlignment);
static_assert(sizeof(SparseShape) == 5 * sizeof(std::int64_t));

std::size_t aligned(std::size_t bytes) {
  return (bytes + kValueAlignment - 1) / kValueAlignment * kValueAlignment;
}

std::unique_ptr<std::byte[]> allocate(std::size_t bytes) {
  return std::unique_ptr<std::byte[]>(new (std::nothrow) std::byte[bytes]);
}

Status no_memory(std::size_t bytes) {
  return Status(Code::kResource,
                "sparse all_reduce: no memory for " + std::to_string(bytes) + " bytes of entries");
}

Piece piece_of(SparseShape& shape) { return {reinterpret_cast<std::byte*>(&shape), sizeof shape}; }

bool alike(const SparseShape& a, const SparseShape& b) {
  return a.sparse_dim == b.sparse_dim && a.dense_dim == b.dense_dim && a.dtype == b.dtype &&
         a.sizes_hash == b.sizes_hash;
}

std::string describe(const SparseShape& shape) {
  return "(sparse_dim " + std::to_string(shape.sparse_dim) + ", dense_dim " +
         std::to_string(shape.dense_dim) + ")";
}

}  // namespace

SparseExchange::SparseExchange(int rank, int world, const SparseShape& shape,
                               std::size_t index_bytes, std::size_t value_bytes)
    : rank_(rank),
      index_bytes_(index_bytes),
      value_bytes_(value_bytes),
      mine_(shape),
      shapes_(world),
      blocks_(world) {
  shapes_[rank] = shape;
}

Result<std::shared_ptr<SparseExchange>> SparseExchange::create(int rank, int world,
                                                               const SparseShape& shape,
                                                               std::size_t index_bytes,
                                                               std::size_t value_bytes) {
  std::shared_ptr<SparseExchange> made(
      new SparseExchange(rank, world, shape, index_bytes, value_bytes));
  const std::size_t bytes = made->block_bytes(shape.entries);
  made->own_ = allocate(bytes);
  if (made->own_ == nullptr) return no_memory(bytes);
  made->blocks_[rank] = {made->own_.get(), bytes};
  return made;
}

void SparseExchange::release() {
  own_.reset();
  others_.reset();
}

std::size_t SparseExchange::index_area(std::int64_t entries) const {
  return aligned(static_cast<std::size_t>(entries) * index_bytes_);
}

std::size_t SparseExchange::block_bytes(std::int64_t entries) const {
  return index_area(entries) + aligned(static_cast<std::size_t>(entries) * value_bytes_);
}

OperationSpec SparseExchange::first_stage() {
  OperationSpec spec;
  spec.kind = Kind::kAllGather;
  spec.dtype = kernels::Dtype::kI64;
  spec.stages = shared_from_this();
  for (SparseShape& shape : shapes_) spec.outputs.push_back(piece_of(shape));
  spec.inputs = {spec.outputs[rank_]};
  return spec;
}

Result<bool> SparseExchange::next_st(OperationSpec& spec) {
  if (std::exchange(has_shapes_, true)) return false;
  TACO_RETURN_IF_ERROR(compare());
  TACO_RETURN_IF_ERROR(make_room());
  spec.dtype = kernels::Dtype::kU8;
  spec.inputs = {blocks_[rank_]};
  spec.outputs = blocks_;
  return true;
}

// Unless all are alike, every rank finds one that differs from its own.
Status SparseExchange::compare() const {
  for (int rank = 0; rank < static_cast<int>(shapes_.size()); ++rank) {
    const SparseShape& theirs = shapes_[rank];
    if (alike(theirs, mine_) && theirs.entries >= 0) continue;
    return Status(Code::kMismatch, "sparse all_reduce: shape or dtype differ between this rank " +
                                       describe(mine_) + " and rank " + std::to_string(rank) + " " +
                                       describe(theirs));
  }
  return Status();
}

Status SparseExchange::make_room() {
  std::size_t total = 0;
  for (std::size_t rank = 0; rank < shapes_.size(); ++rank)
    if (static_cast<int>(rank) != rank_) total += block_bytes(shapes_[rank].entries);
  others_ = allocate(total);
  if (others_ == nullptr) return no_memory(total);
  std::byte* next = others_.get();
  for (std::size_t rank = 0; rank < shapes_.size(); ++rank) {
    if (static_cast<int>(rank) == rank_) continue;
    blocks_[rank] = {next, block_bytes(shapes_[rank].entries)};
    next += blocks_[rank].bytes;
  }
  return Status();
}

}  // namespace taco::pg
