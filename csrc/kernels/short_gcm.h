// AES-128-GCM of short messages. A library of ciphers takes longer to be asked for one than the
// processor takes for it: where that has instructions for AES and for products without carries, a
// message is sealed or opened here in one call. What comes out is the same.
//
// No table is looked at and no branch taken that depends on what is secret. A pure value, for any
// thread; its memory is cleared when it ends.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace taco::kernels {

class ShortGcm {
 public:
  static constexpr std::size_t kKeyBytes = 16, kNonceBytes = 12, kTagBytes = 16, kBlockBytes = 16;
  // Above this a library, which works on more blocks side by side, is faster.
  static constexpr std::size_t kMostBytes = 512;
  using Nonce = std::span<const std::byte, kNonceBytes>;
  using Tag = std::span<std::byte, kTagBytes>;
  using ConstTag = std::span<const std::byte, kTagBytes>;

  // Without the instructions there may be none of it.
  static bool is_supported();

  explicit ShortGcm(std::span<const std::byte, kKeyBytes> key);
  ~ShortGcm();
  ShortGcm(const ShortGcm&) = delete;
  ShortGcm& operator=(const ShortGcm&) = delete;

  // `front` is authenticated as it is: whole blocks. Of `text` there are kMostBytes at most, and
  // `out` has room for as many; they may be the same memory.
  void seal(Nonce nonce, std::span<const std::byte> front, std::span<const std::byte> text,
            std::byte* out, Tag tag) const;
  // False: that is not what was sealed, and `text` is as it was.
  bool open(Nonce nonce, std::span<const std::byte> front, std::span<std::byte> text,
            ConstTag tag) const;

 private:
  static constexpr std::size_t kRounds = 10;
  using Block = std::array<std::byte, kBlockBytes>;

  alignas(kBlockBytes) std::array<Block, kRounds + 1> round_keys_;
  alignas(kBlockBytes) Block hash_key_;
};

}  // namespace taco::kernels
