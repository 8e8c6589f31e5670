#include "kernels/cuda/answer.h"
#include "kernels/cuda/gpu_exec.h"
#include "kernels/cuda/select.h"
#include "kernels/cuda/taco_cuda.h"

namespace taco::kernels::cuda {

std::size_t taco_cuda_select_workspace_bytes(const SelectArguments* arguments) {
  return select_workspace_bytes(*arguments);
}
const char* taco_cuda_select_largest(void* stream, const SelectArguments* arguments,
                                     void* workspace) {
  return answer(select_on(StreamLauncher(stream), *arguments, workspace));
}
const char* taco_cuda_scatter_add(void* stream, float* acc, const float* values,
                                  const std::uint32_t* indices, std::size_t taken,
                                  std::uint32_t block, std::uint32_t k) {
  return answer(scatter_add_on(StreamLauncher(stream), acc, values, indices, taken, block, k));
}

}  // namespace taco::kernels::cuda
