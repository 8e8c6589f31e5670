// Where no instructions for AES are used: whoever seals takes a library for messages of any length.
#include "base/assert.h"
#include "kernels/short_gcm.h"

namespace taco::kernels {

bool ShortGcm::is_supported() { return false; }

ShortGcm::ShortGcm(std::span<const std::byte, kKeyBytes>) {
  TACO_ASSERT(is_supported(), "there are no instructions for it");
}

ShortGcm::~ShortGcm() = default;

void ShortGcm::seal(Nonce, std::span<const std::byte>, std::span<const std::byte>, std::byte*,
                    Tag) const {}

bool ShortGcm::open(Nonce, std::span<const std::byte>, std::span<std::byte>, ConstTag) const {
  return false;
}

}  // namespace taco::kernels
