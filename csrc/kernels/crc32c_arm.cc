// CRC32C by the instruction of 64-bit Arm with the CRC extension.
#include <arm_acle.h>

#include "kernels/variant.h"

namespace taco::kernels {
namespace {

std::uint32_t crc32c_arm(std::uint32_t crc, const void* data, std::size_t bytes) {
  const auto* at = static_cast<const unsigned char*>(data);
  crc = ~crc;
  for (; bytes >= 8; bytes -= 8, at += 8) {
    std::uint64_t word;
    __builtin_memcpy(&word, at, sizeof(word));
    crc = __crc32cd(crc, word);
  }
  for (; bytes > 0; --bytes, ++at) crc = __crc32cb(crc, *at);
  return ~crc;
}

}  // namespace

constinit const Checksum kArmChecksum{"arm", 1, crc32c_arm};

}  // namespace taco::kernels
