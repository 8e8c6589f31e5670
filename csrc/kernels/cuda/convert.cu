#include "kernels/cuda/answer.h"
#include "kernels/cuda/gpu_exec.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/taco_cuda.h"

namespace taco::kernels::cuda {

const char* taco_cuda_f32_to_f16(void* stream, std::uint16_t* out, const float* in,
                                 std::size_t count) {
  return answer(encode_on<Float16>(StreamLauncher(stream), out, in, count));
}
const char* taco_cuda_f16_to_f32(void* stream, float* out, const std::uint16_t* in,
                                 std::size_t count) {
  return answer(decode_on<Float16>(StreamLauncher(stream), out, in, count));
}
const char* taco_cuda_f32_to_bf16(void* stream, std::uint16_t* out, const float* in,
                                  std::size_t count) {
  return answer(encode_on<Bfloat16>(StreamLauncher(stream), out, in, count));
}
const char* taco_cuda_bf16_to_f32(void* stream, float* out, const std::uint16_t* in,
                                  std::size_t count) {
  return answer(decode_on<Bfloat16>(StreamLauncher(stream), out, in, count));
}
const char* taco_cuda_accumulate_f16(void* stream, float* sum, const std::uint16_t* in,
                                     std::size_t count) {
  return answer(accumulate_on<Float16>(StreamLauncher(stream), sum, in, count));
}
const char* taco_cuda_accumulate_bf16(void* stream, float* sum, const std::uint16_t* in,
                                      std::size_t count) {
  return answer(accumulate_on<Bfloat16>(StreamLauncher(stream), sum, in, count));
}

}  // namespace taco::kernels::cuda
