// all_reduce of sparse COO tensors: torch's side of pg/sparse_exchange.h. The entries of all ranks
// are added up in rank order, so that all ranks end bit-identical. Duplicate indices are allowed.
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>

#include "edge/errors.h"
#include "pg/c10d/backend.h"
#include "pg/c10d/backend_tensors.h"
#include "pg/sparse_exchange.h"

namespace taco::pg {
namespace {

SparseShape shape_of(const at::Tensor& tensor) {
  std::int64_t hash = 17;
  for (std::int64_t size : tensor.sizes()) hash = hash * 1000003 + size;
  return {.entries = tensor._nnz(),
          .sparse_dim = tensor.sparse_dim(),
          .dense_dim = tensor.dense_dim(),
          .dtype = static_cast<std::int64_t>(tensor.scalar_type()),
          .sizes_hash = hash};
}

std::shared_ptr<SparseExchange> exchange_of(const at::Tensor& tensor, int rank, int world) {
  const at::Tensor indices = tensor._indices().contiguous();
  const at::Tensor values = tensor._values().contiguous();
  std::size_t value_bytes = values.itemsize();
  for (std::int64_t dim = 1; dim < values.dim(); ++dim) value_bytes *= values.size(dim);
  auto exchange = value_or_raise(SparseExchange::create(
      rank, world, shape_of(tensor), tensor.sparse_dim() * indices.itemsize(), value_bytes));
  std::copy_n(static_cast<const std::byte*>(indices.const_data_ptr()), indices.nbytes(),
              exchange->indices(rank));
  std::copy_n(static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes(),
              exchange->values(rank));
  return exchange;
}

void add_up(const SparseExchange& exchange, const at::Tensor& target, int world, bool average) {
  std::vector<at::Tensor> indices, values;
  std::vector<std::int64_t> sizes = target._values().sizes().vec();
  for (int rank = 0; rank < world; ++rank) {
    const std::int64_t entries = exchange.entries(rank);
    indices.push_back(
        at::from_blob(exchange.indices(rank), {target.sparse_dim(), entries}, at::kLong));
    sizes[0] = entries;
    values.push_back(at::from_blob(exchange.values(rank), sizes, target.scalar_type()));
  }
  at::Tensor sum = at::sparse_coo_tensor(at::cat(indices, 1), at::cat(values, 0), target.sizes(),
                                         target.options())
                       .coalesce();
  if (average) sum.div_(world);
  target.copy_(sum);
}

}  // namespace

c10::intrusive_ptr<c10d::Work> Backend::allreduce_sparse(std::vector<at::Tensor>& tensors,
                                                         const c10d::AllreduceOptions& opts) {
  const at::Tensor& tensor = only(tensors, "sparse all_reduce");
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.device().is_cpu() && tensor.layout() == c10::kSparse,
                              "taco: sparse all_reduce takes sparse COO tensors on the CPU, got ",
                              tensor.layout(), " on ", tensor.device());
  const auto op = opts.reduceOp.op_;
  TORCH_CHECK_TYPE(op == c10d::ReduceOp::SUM || op == c10d::ReduceOp::AVG,
                   "taco: sparse all_reduce supports SUM and AVG");
  const std::shared_ptr<SparseExchange> exchange = exchange_of(tensor, rank_, size_);
  Translation call(Kind::kAllGather, "sparse all_reduce");
  call.spec = exchange->first_stage();
  call.state->at_end = [exchange, tensor, world = size_, average = op == c10d::ReduceOp::AVG] {
    try {
      add_up(*exchange, tensor, world, average);
    } catch (const std::exception& error) {  // no memory for what the other ranks have, say
      raise(Status(Code::kInternal, std::string("sparse all_reduce: ") + error.what()));
    }
    exchange->release();
  };
  const WorkStatePtr state = call.state;
  // No inputs for the profiler: it reads strides, which sparse tensors do not have.
  auto work = launch(
      call, {c10d::OpType::_ALLREDUCE_SPARSE, "taco:all_reduce_sparse", opts.timeout, opts.asyncOp},
      {}, tensors);
  if (opts.asyncOp) state->on_complete([] {});  // adds up beside the program
  return work;
}

}  // namespace taco::pg
