#include "pg/c10d/backend_tensors.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "base/names.h"
#include "edge/errors.h"

namespace taco::pg {
namespace {

std::byte* bytes_of(const at::Tensor& tensor) {
  return static_cast<std::byte*>(const_cast<void*>(tensor.const_data_ptr()));
}

bool usable_in_place(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

void add_rows(const at::Tensor& tensor, const std::vector<int64_t>& rows,
              std::vector<Piece>* pieces) {
  const int64_t length = tensor.size(0);
  const std::size_t row_bytes = length > 0 ? tensor.nbytes() / length : 0;
  std::byte* next = bytes_of(tensor);
  for (int64_t count : rows) {
    pieces->push_back({next, count * row_bytes});
    next += count * row_bytes;
  }
}

void add_blocks(const at::Tensor& tensor, int count, std::vector<Piece>* pieces) {
  const std::size_t bytes = tensor.nbytes() / count;
  for (int i = 0; i < count; ++i) pieces->push_back({bytes_of(tensor) + i * bytes, bytes});
}

}  // namespace

Piece piece_of(const at::Tensor& tensor) { return {bytes_of(tensor), tensor.nbytes()}; }

void require_cpu(const at::Tensor& tensor, const char* what) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      tensor.device().is_cpu(), "taco: ", what, " got a tensor on ", tensor.device(),
      "; only CPU tensors are supported for now. Use backend=\"cpu:taco,cuda:nccl\".");
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == c10::kStrided, "taco: ", what, " got a ",
                              tensor.layout(), " tensor; only all_reduce takes sparse tensors.");
}

void require_same_dtype(const std::vector<at::Tensor>& tensors, c10::ScalarType type,
                        const char* what) {
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK_TYPE(tensor.scalar_type() == type, "taco: ", what,
                     " got tensors of different dtypes: ", type, " and ", tensor.scalar_type());
  }
}

const at::Tensor& only(const std::vector<at::Tensor>& tensors, const char* what) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "taco: ", what, " takes exactly one tensor, got ",
                    tensors.size());
  return tensors.front();
}

kernels::Dtype movement_dtype(c10::ScalarType type) {
  switch (type) {
    case c10::kFloat:
      return kernels::Dtype::kF32;
    case c10::kDouble:
      return kernels::Dtype::kF64;
    case c10::kHalf:
      return kernels::Dtype::kF16;
    case c10::kBFloat16:
      return kernels::Dtype::kBF16;
    case c10::kChar:
      return kernels::Dtype::kI8;
    case c10::kByte:
      return kernels::Dtype::kU8;
    case c10::kShort:
      return kernels::Dtype::kI16;
    case c10::kInt:
      return kernels::Dtype::kI32;
    case c10::kLong:
      return kernels::Dtype::kI64;
    case c10::kBool:
      return kernels::Dtype::kBool;
    case c10::kComplexFloat:
      return kernels::Dtype::kC64;
    case c10::kComplexDouble:
      return kernels::Dtype::kC128;
    case c10::kComplexHalf:
      return kernels::Dtype::kC32;
    default:
      break;
  }
  switch (c10::elementSize(type)) {
    case 2:
      return kernels::Dtype::kI16;
    case 4:
      return kernels::Dtype::kI32;
    case 8:
      return kernels::Dtype::kI64;
    default:
      return kernels::Dtype::kU8;
  }
}

kernels::Dtype reduction_dtype(c10::ScalarType type) {
  const kernels::Dtype dtype = movement_dtype(type);
  switch (type) {
    case c10::kFloat:
    case c10::kDouble:
    case c10::kHalf:
    case c10::kBFloat16:
    case c10::kChar:
    case c10::kByte:
    case c10::kShort:
    case c10::kInt:
    case c10::kLong:
    case c10::kBool:
    case c10::kComplexFloat:
    case c10::kComplexDouble:
    case c10::kComplexHalf:
      return dtype;
    default: {
      std::string known;
      for (int i = 0; i < kernels::kDtypes; ++i) {
        append_name(known, kernels::name_of(static_cast<kernels::Dtype>(i)));
      }
      C10_THROW_ERROR(TypeError,
                      c10::str("taco: cannot reduce dtype ", type, "; supported: ", known));
    }
  }
}

Translation::Translation(Kind kind, const char* what) : what_(what) { spec.kind = kind; }

at::Tensor Translation::readable(const at::Tensor& tensor) {
  require_cpu(tensor, what_);
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  at::Tensor memory =
      usable_in_place(tensor) ? tensor : tensor.resolve_conj().resolve_neg().contiguous();
  state->kept.push_back(memory);
  return memory;
}

at::Tensor Translation::writable(const at::Tensor& tensor, bool keep_content) {
  require_cpu(tensor, what_);
  TORCH_CHECK_VALUE(at::has_internal_overlap(tensor) != at::MemOverlap::Yes, "taco: ", what_,
                    " cannot write to an expanded tensor: several elements share one memory");
  if (usable_in_place(tensor)) {
    state->kept.push_back(tensor);
    return tensor;
  }
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  at::Tensor staged = at::empty(tensor.sizes(), tensor.options());
  if (keep_content) staged.copy_(tensor);
  state->kept.push_back(staged);
  state->copy_backs.push_back({staged, tensor});
  return staged;
}

void Translation::add_input(const at::Tensor& tensor) {
  spec.inputs.push_back(piece_of(readable(tensor)));
}

void Translation::add_output(const at::Tensor& tensor) {
  spec.outputs.push_back(piece_of(writable(tensor, false)));
}

void Translation::add_in_place(const at::Tensor& tensor) {
  const Piece piece = piece_of(writable(tensor, true));
  if (spec.kind != Kind::kBroadcast) spec.inputs.push_back(piece);
  spec.outputs.push_back(piece);
}

void Translation::add_scratch_output(const at::Tensor& tensor) {
  state->kept.push_back(at::empty(tensor.sizes(), tensor.options()));
  spec.outputs.push_back(piece_of(state->kept.back()));
}

void Translation::add_input_blocks(const at::Tensor& tensor, int count) {
  add_blocks(readable(tensor), count, &spec.inputs);
}

void Translation::add_output_blocks(const at::Tensor& tensor, int count) {
  add_blocks(writable(tensor, false), count, &spec.outputs);
}

void Translation::add_input_rows(const at::Tensor& tensor, const std::vector<int64_t>& rows) {
  add_rows(readable(tensor), rows, &spec.inputs);
}

void Translation::add_output_rows(const at::Tensor& tensor, const std::vector<int64_t>& rows) {
  add_rows(writable(tensor, false), rows, &spec.outputs);
}

void Translation::add_outputs(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) add_output(tensor);
}

}  // namespace taco::pg
