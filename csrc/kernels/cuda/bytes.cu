// The codec of indices, the checksum and pages.
#include "kernels/cuda/answer.h"
#include "kernels/cuda/checksum.h"
#include "kernels/cuda/gpu_exec.h"
#include "kernels/cuda/index_deltas.h"
#include "kernels/cuda/pages.h"
#include "kernels/cuda/taco_cuda.h"

namespace taco::kernels::cuda {

const char* taco_cuda_encode_deltas(void* stream, const DeltaArguments* arguments) {
  return answer(encode_deltas_on(StreamLauncher(stream), *arguments));
}
const char* taco_cuda_decode_deltas(void* stream, const DeltaArguments* arguments) {
  return answer(decode_deltas_on(StreamLauncher(stream), *arguments));
}
const char* taco_cuda_crc32c(void* stream, std::uint32_t crc, const void* data, std::size_t bytes,
                             std::uint32_t* checksum, std::uint32_t* workspace) {
  return answer(crc32c_on(StreamLauncher(stream), crc, data, bytes, checksum, workspace));
}
const char* taco_cuda_gather_pages(void* stream, void* together, const void* apart,
                                   const std::uint32_t* pages, std::size_t count,
                                   std::size_t page_bytes, std::uint32_t pages_apart,
                                   std::uint32_t* refused) {
  return answer(move_pages<true>(StreamLauncher(stream), together, apart, pages, count, page_bytes,
                                 pages_apart, refused));
}
const char* taco_cuda_scatter_pages(void* stream, void* apart, const void* together,
                                    const std::uint32_t* pages, std::size_t count,
                                    std::size_t page_bytes, std::uint32_t pages_apart,
                                    std::uint32_t* refused) {
  return answer(move_pages<false>(StreamLauncher(stream), apart, together, pages, count, page_bytes,
                                  pages_apart, refused));
}

}  // namespace taco::kernels::cuda
