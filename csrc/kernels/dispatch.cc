// Chooses the variant once, by what the processor can do and what TACO_ISA allows, and forwards
// the public entries to it.
#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include <algorithm>
#include <array>
#include <string_view>

#include "base/env.h"
#include "base/log.h"
#include "base/names.h"
#include "kernels/variant.h"

namespace taco::kernels {
namespace {

template <class T>
struct HostList {
  std::array<const T*, 4> items{};
  std::size_t size = 0;
  void add(const T& item) { items[size++] = &item; }
  std::span<const T* const> view() const { return {items.data(), size}; }
};

struct Host {
  HostList<Variant> variants;
  HostList<Checksum> checksums;
  HostList<Optimizers> optimizers;
};

#if defined(__x86_64__)
// Not every compiler's __builtin_cpu_supports knows F16C.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
bool has_avx2() { return __builtin_cpu_supports("avx2") && has_f16c(); }
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
bool has_sse42_checksum() {
  return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
}

Host detect() {
  __builtin_cpu_init();  // may run before constructors
  Host host;
  host.variants.add(kPortableVariant);
  if (has_avx2()) host.variants.add(kAvx2Variant);
  if (has_avx512()) host.variants.add(kAvx512Variant);
  host.checksums.add(kPortableChecksum);
  host.optimizers.add(kPortableOptimizers);
  if (has_avx2() && __builtin_cpu_supports("fma")) host.optimizers.add(kAvx2Optimizers);
  if (has_avx512() && __builtin_cpu_supports("fma")) host.optimizers.add(kAvx512Optimizers);
  if (has_sse42_checksum()) host.checksums.add(kSse42Checksum);
  if (has_sse42_checksum() && has_avx2() && __builtin_cpu_supports("vpclmulqdq")) {
    host.checksums.add(kAvx2Checksum);
    if (has_avx512()) host.checksums.add(kAvx512Checksum);
  }
  return host;
}
#elif defined(__aarch64__)
Host detect() {
  Host host;
  host.variants.add(kPortableVariant);
  host.variants.add(kNeonVariant);
  host.checksums.add(kPortableChecksum);
  host.optimizers.add(kPortableOptimizers);
  if ((getauxval(AT_HWCAP) & HWCAP_CRC32) != 0) host.checksums.add(kArmChecksum);
  return host;
}
#else
Host detect() {
  Host host;
  host.variants.add(kPortableVariant);
  host.checksums.add(kPortableChecksum);
  host.optimizers.add(kPortableOptimizers);
  return host;
}
#endif

const Host& host() {
  static const Host detected = detect();
  return detected;
}

struct Choice {
  const Variant* variant;
  const Checksum* checksum;
  const Optimizers* optimizers;
  Status status;
};

Choice choose() {
  const auto variants = host_variants();
  const auto checksums = host_checksums();
  const auto optimizers = host_optimizers();
  Choice choice{variants.back(), checksums.back(), optimizers.back(), Status()};
  const Result<Env> env = Env::get();
  // A malformed environment is reported by whoever starts a group; arithmetic needs no answer.
  if (!env.ok() || env.value().isa == "auto") return choice;
  const std::string wanted = env.value().isa;
  std::string available;
  for (std::size_t i = 0; i < variants.size(); ++i) {
    if (wanted == variants[i]->name) {
      // All lists go from least to best; the others are held to the same rung.
      choice.variant = variants[i];
      choice.checksum = *std::find_if(checksums.rbegin(), checksums.rend(),
                                      [&](const auto* one) { return one->rung <= i; });
      choice.optimizers = optimizers[std::min(i, optimizers.size() - 1)];
      return choice;
    }
    append_name(available, variants[i]->name);
  }
  choice.status = Status(Code::kInvalidArgument, "environment variable TACO_ISA is \"" + wanted +
                                                     "\", but this host has only " + available);
  return choice;
}

const Choice& chosen() {
  static const Choice choice = choose();
  return choice;
}

}  // namespace

std::span<const Variant* const> host_variants() { return host().variants.view(); }
std::span<const Checksum* const> host_checksums() { return host().checksums.view(); }
std::span<const Optimizers* const> host_optimizers() { return host().optimizers.view(); }
const Variant& chosen_variant() { return *chosen().variant; }
const Optimizers& chosen_optimizers() { return *chosen().optimizers; }

ReduceFn reduce_function(ReduceOp op, Dtype dtype) {
  if (static_cast<int>(op) >= kReduceOps || static_cast<int>(dtype) >= kDtypes) return nullptr;
  return chosen().variant->reduce[static_cast<int>(op)][static_cast<int>(dtype)];
}
void scale(Dtype dtype, void* out, const void* in, std::size_t count, double factor) {
  if (auto* function = chosen().variant->scale[static_cast<int>(dtype)]) {
    function(out, in, count, factor);
  }
}
void divide(Dtype dtype, void* out, const void* in, std::size_t count, std::int64_t n) {
  if (auto* function = chosen().variant->divide[static_cast<int>(dtype)]) {
    function(out, in, count, n);
  }
}
void f32_to_f16(std::uint16_t* out, const float* in, std::size_t count) {
  chosen().variant->f32_to_f16(out, in, count);
}
void f16_to_f32(float* out, const std::uint16_t* in, std::size_t count) {
  chosen().variant->f16_to_f32(out, in, count);
}
void f32_to_bf16(std::uint16_t* out, const float* in, std::size_t count) {
  chosen().variant->f32_to_bf16(out, in, count);
}
void bf16_to_f32(float* out, const std::uint16_t* in, std::size_t count) {
  chosen().variant->bf16_to_f32(out, in, count);
}
void accumulate_f16_into_f32(float* acc, const std::uint16_t* in, std::size_t count) {
  chosen().variant->accumulate_f16(acc, in, count);
}
void accumulate_bf16_into_f32(float* acc, const std::uint16_t* in, std::size_t count) {
  chosen().variant->accumulate_bf16(acc, in, count);
}
std::uint32_t crc32c(std::uint32_t crc, const void* data, std::size_t bytes) {
  return chosen().checksum->crc32c(crc, data, bytes);
}
Status isa_status() { return chosen().status; }
const char* isa_name() { return chosen().variant->name; }

}  // namespace taco::kernels
