// The program that runs the kernels for GPUs on one (`make test-cuda`): what its parts share.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace taco::kernels::cuda::check {

// Ends the program where CUDA itself fails.
inline void must(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::printf("FAILED: %s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}
inline void must(const char* refusal, const char* what) {
  if (refusal == nullptr) return;
  std::printf("FAILED: %s: %s\n", what, refusal);
  std::exit(1);
}
inline void wait() { must(cudaDeviceSynchronize(), "a kernel"); }

// Memory of the device, with guards on both sides, whose first element lies `shift` elements after
// a multiple of 256 bytes.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t count, std::size_t shift = 0) : count_(count), shift_(shift) {
    must(cudaMalloc(&memory_, bytes()), "cudaMalloc");
    must(cudaMemset(memory_, kPattern, bytes()), "cudaMemset");
  }
  DeviceArray(const std::vector<T>& values, std::size_t shift = 0)
      : DeviceArray(values.size(), shift) {
    set(values);
  }
  ~DeviceArray() { cudaFree(memory_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() { return reinterpret_cast<T*>(memory_ + kGuard) + shift_; }
  void set(const std::vector<T>& values) {
    must(cudaMemcpy(data(), values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice), "copy");
  }
  std::vector<T> get() {
    std::vector<T> values(count_);
    must(cudaMemcpy(values.data(), data(), count_ * sizeof(T), cudaMemcpyDeviceToHost), "copy");
    return values;
  }
  bool guards_intact() {
    const std::size_t before = kGuard + shift_ * sizeof(T);
    return intact(memory_, before) && intact(memory_ + before + count_ * sizeof(T), kGuard);
  }

 private:
  static constexpr std::size_t kGuard = 256;
  static constexpr unsigned char kPattern = 0xA5;
  static bool intact(const unsigned char* guard, std::size_t bytes) {
    std::vector<unsigned char> all(bytes);
    must(cudaMemcpy(all.data(), guard, bytes, cudaMemcpyDeviceToHost), "copy");
    return all == std::vector<unsigned char>(bytes, kPattern);
  }
  std::size_t bytes() const { return 2 * kGuard + (count_ + shift_) * sizeof(T); }
  std::size_t count_, shift_;
  unsigned char* memory_ = nullptr;
};

// ": element 5 is 7fc00000 on the host and 7fffffff on the GPU" of the first that differs; empty
// where none does.
inline std::string difference(const void* host, const void* gpu, std::size_t count,
                              std::size_t element) {
  if (count == 0 || std::memcmp(host, gpu, count * element) == 0) return "";
  const auto* const left = static_cast<const unsigned char*>(host);
  const auto* const right = static_cast<const unsigned char*>(gpu);
  for (std::size_t i = 0; i < count; ++i) {
    if (std::memcmp(left + i * element, right + i * element, element) == 0) continue;
    std::uint64_t on_host = 0, on_gpu = 0;
    std::memcpy(&on_host, left + i * element, element);
    std::memcpy(&on_gpu, right + i * element, element);
    char text[120];
    std::snprintf(text, sizeof text, ": element %zu is %llx on the host and %llx on the GPU", i,
                  static_cast<unsigned long long>(on_host),
                  static_cast<unsigned long long>(on_gpu));
    return text;
  }
  return "";
}

// Counts the cases of one kernel, and says of the first few that fail which they are.
class Cases {
 public:
  explicit Cases(std::string name) : name_(std::move(name)) {}
  void expect(bool holds, const std::string& which) {
    ++all_;
    if (holds) return;
    if (++failed_ <= 3) std::printf("  differs: %s, %s\n", name_.c_str(), which.c_str());
  }
  // Prints a line about them; false if one failed.
  bool end() const {
    std::printf("%-7s%s: %zu cases", failed_ == 0 ? "ok" : "FAILED", name_.c_str(), all_);
    std::printf(failed_ == 0 ? "\n" : ", %zu differ\n", failed_);
    return failed_ == 0;
  }

 private:
  std::string name_;
  std::size_t all_ = 0, failed_ = 0;
};

// Each compares kernels with the host's; `small`: only sizes that a sanitizer is done with soon.
bool check_elementwise(bool small);
bool check_adam(bool small);
bool check_select(bool small);
bool check_bytes(bool small);
// Takes times, beside copies of as many bytes.
void take_times();
// Times of what could have been chosen otherwise.
void compare_variants();

// The median time of one call, in milliseconds.
template <class Call>
double median_ms(const Call& call, int runs = 15) {
  cudaEvent_t begin, end;
  must(cudaEventCreate(&begin), "cudaEventCreate");
  must(cudaEventCreate(&end), "cudaEventCreate");
  for (int i = 0; i < 3; ++i) call();
  std::vector<float> times(static_cast<std::size_t>(runs));
  for (float& time : times) {
    must(cudaEventRecord(begin), "cudaEventRecord");
    call();
    must(cudaEventRecord(end), "cudaEventRecord");
    must(cudaEventSynchronize(end), "a kernel");
    must(cudaEventElapsedTime(&time, begin, end), "cudaEventElapsedTime");
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::size_t below = 0;  // no <algorithm> for one median
  for (const float candidate : times) {
    below = 0;
    std::size_t equal = 0;
    for (const float time : times) {
      below += time < candidate ? 1 : 0;
      equal += time == candidate ? 1 : 0;
    }
    if (below <= times.size() / 2 && below + equal > times.size() / 2) return candidate;
  }
  return times[0];
}

}  // namespace taco::kernels::cuda::check
