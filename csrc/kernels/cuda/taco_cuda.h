// The kernels of this folder as plain functions of a library, libtaco_cuda.so, that needs neither
// torch nor a driver to be loaded. Each gives its work to `stream`, a cudaStream_t of the current
// device, and returns at once: null, or a text that says what is wrong, which is this thread's
// until its next call here. All arrays are memory that the device can reach, aligned to their
// elements; numbers and bits are those of the host's functions of the same names
// (kernels/kernels.h, kernels/select.h, kernels/optimizers.h), which say more.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/index_deltas.h"
#include "kernels/cuda/select_arrays.h"
#include "kernels/kernels.h"
#include "kernels/optimizers.h"

#define TACO_CUDA_API extern "C" __attribute__((visibility("default")))

namespace taco::kernels::cuda {

TACO_CUDA_API const char* taco_cuda_reduce(void* stream, ReduceOp op, Dtype dtype, void* out,
                                           const void* a, const void* b, std::size_t count);
TACO_CUDA_API const char* taco_cuda_scale(void* stream, Dtype dtype, void* out, const void* in,
                                          std::size_t count, double factor);
TACO_CUDA_API const char* taco_cuda_divide(void* stream, Dtype dtype, void* out, const void* in,
                                           std::size_t count, std::int64_t n);

TACO_CUDA_API const char* taco_cuda_f32_to_f16(void* stream, std::uint16_t* out, const float* in,
                                               std::size_t count);
TACO_CUDA_API const char* taco_cuda_f16_to_f32(void* stream, float* out, const std::uint16_t* in,
                                               std::size_t count);
TACO_CUDA_API const char* taco_cuda_f32_to_bf16(void* stream, std::uint16_t* out, const float* in,
                                                std::size_t count);
TACO_CUDA_API const char* taco_cuda_bf16_to_f32(void* stream, float* out, const std::uint16_t* in,
                                                std::size_t count);
TACO_CUDA_API const char* taco_cuda_accumulate_f16(void* stream, float* sum,
                                                   const std::uint16_t* in, std::size_t count);
TACO_CUDA_API const char* taco_cuda_accumulate_bf16(void* stream, float* sum,
                                                    const std::uint16_t* in, std::size_t count);

// `workspace`: so many bytes, aligned to 16, that belong to the call until the stream has passed
// it.
TACO_CUDA_API std::size_t taco_cuda_select_workspace_bytes(const SelectArguments* arguments);
TACO_CUDA_API const char* taco_cuda_select_largest(void* stream, const SelectArguments* arguments,
                                                   void* workspace);
// `taken`: how many there are in all blocks, k in each but the last.
TACO_CUDA_API const char* taco_cuda_scatter_add(void* stream, float* acc, const float* values,
                                                const std::uint32_t* indices, std::size_t taken,
                                                std::uint32_t block, std::uint32_t k);
TACO_CUDA_API const char* taco_cuda_encode_deltas(void* stream, const DeltaArguments* arguments);
TACO_CUDA_API const char* taco_cuda_decode_deltas(void* stream, const DeltaArguments* arguments);

TACO_CUDA_API const char* taco_cuda_adam(void* stream, const AdamStep* step,
                                         const ParameterRange* range, float* first, float* second);

// *checksum = crc32c(crc, data, bytes); `workspace` has room for 512 numbers.
TACO_CUDA_API const char* taco_cuda_crc32c(void* stream, std::uint32_t crc, const void* data,
                                           std::size_t bytes, std::uint32_t* checksum,
                                           std::uint32_t* workspace);

// together[i] = apart[pages[i]] for pages of `page_bytes`, and back. `refused` grows by one for
// each number that is not below `pages_apart`, and nothing is moved for it.
TACO_CUDA_API const char* taco_cuda_gather_pages(void* stream, void* together, const void* apart,
                                                 const std::uint32_t* pages, std::size_t count,
                                                 std::size_t page_bytes, std::uint32_t pages_apart,
                                                 std::uint32_t* refused);
TACO_CUDA_API const char* taco_cuda_scatter_pages(void* stream, void* apart, const void* together,
                                                  const std::uint32_t* pages, std::size_t count,
                                                  std::size_t page_bytes, std::uint32_t pages_apart,
                                                  std::uint32_t* refused);

}  // namespace taco::kernels::cuda
