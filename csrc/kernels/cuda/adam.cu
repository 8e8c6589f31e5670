// Compiled with -ftz: denormals count as 0, as in the host's steps.
#include "kernels/cuda/adam.h"
#include "kernels/cuda/answer.h"
#include "kernels/cuda/gpu_exec.h"
#include "kernels/cuda/taco_cuda.h"

namespace taco::kernels::cuda {

const char* taco_cuda_adam(void* stream, const AdamStep* step, const ParameterRange* range,
                           float* first, float* second) {
  return answer(adam_on(StreamLauncher(stream), *step, *range, first, second));
}

}  // namespace taco::kernels::cuda
