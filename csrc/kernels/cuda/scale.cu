#include "kernels/cuda/answer.h"
#include "kernels/cuda/gpu_exec.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/taco_cuda.h"

namespace taco::kernels::cuda {

const char* taco_cuda_scale(void* stream, Dtype dtype, void* out, const void* in, std::size_t count,
                            double factor) {
  return answer(scale_on(StreamLauncher(stream), dtype, out, in, count, factor));
}
const char* taco_cuda_divide(void* stream, Dtype dtype, void* out, const void* in,
                             std::size_t count, std::int64_t n) {
  return answer(divide_on(StreamLauncher(stream), dtype, out, in, count, n));
}

}  // namespace taco::kernels::cuda
