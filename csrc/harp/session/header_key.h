// A key that shows that the headers of a peer's segments are its own where segments are not sealed:
// it makes a keyed sum of the header, by which the packet's checksum is masked. Somebody who sees a
// packet learns the sum of its header and of no other, so he can make up no number, no place in a
// message and no length; one guess in 2^32 is right. The payload is covered by the checksum alone.
//
// SipHash-1-3 of what docs/wire.md lists, of which the low half is taken: a tag that costs some
// nanoseconds, where AES-GCM would cost as much as all the rest of a segment.
//
// A pure value.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace taco::harp {

class HeaderKey {
 public:
  static constexpr std::size_t kBytes = 16;

  explicit HeaderKey(std::span<const std::byte, kBytes> key) {
    std::array<std::uint64_t, 2> k;
    std::memcpy(k.data(), key.data(), sizeof k);
    begin_ = {k[0] ^ 0x736f6d6570736575, k[1] ^ 0x646f72616e646f6d, k[0] ^ 0x6c7967656e657261,
              k[1] ^ 0x7465646279746573};
  }

  // Takes the message in words of 8 bytes; the last one ends with the message's length.
  class Sum {
   public:
    void take(std::uint64_t word) {
      v_.d ^= word;
      v_.round();
      v_.a ^= word;
    }
    std::uint32_t finish() {
      v_.c ^= 0xff;
      for (int i = 0; i < 3; ++i) v_.round();
      return static_cast<std::uint32_t>(v_.a ^ v_.b ^ v_.c ^ v_.d);
    }

   private:
    friend class HeaderKey;
    struct State {
      std::uint64_t a, b, c, d;
      void round() {
        a += b;
        c += d;
        b = std::rotl(b, 13) ^ a;
        d = std::rotl(d, 16) ^ c;
        a = std::rotl(a, 32) + d;
        c += b;
        d = std::rotl(d, 21) ^ a;
        b = std::rotl(b, 17) ^ c;
        c = std::rotl(c, 32);
      }
    };
    explicit Sum(const State& begin) : v_(begin) {}
    State v_;
  };
  Sum begin() const { return Sum(begin_); }

 private:
  Sum::State begin_;
};

}  // namespace taco::harp
