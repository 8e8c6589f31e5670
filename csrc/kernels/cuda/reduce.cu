#include "kernels/cuda/answer.h"
#include "kernels/cuda/gpu_exec.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/taco_cuda.h"

namespace taco::kernels::cuda {

const char* taco_cuda_reduce(void* stream, ReduceOp op, Dtype dtype, void* out, const void* a,
                             const void* b, std::size_t count) {
  return answer(reduce_on(StreamLauncher(stream), op, dtype, out, a, b, count));
}

}  // namespace taco::kernels::cuda
