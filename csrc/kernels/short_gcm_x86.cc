// Short messages by AES-NI and PCLMULQDQ. Blocks are numbered and hashed as NIST SP 800-38D says;
// the hash is computed as POLYVAL, which reads bytes the other way round and needs no shifts (RFC
// 8452, appendix A).
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "base/assert.h"
#include "kernels/short_gcm.h"

namespace taco::kernels {
namespace {

// So many blocks are encrypted side by side: a round takes four cycles, and one may start in each
// half.
constexpr std::size_t kSideBySide = 4;

const __m128i* vector_at(const void* memory) { return static_cast<const __m128i*>(memory); }
__m128i load_block(const void* from) { return _mm_loadu_si128(vector_at(from)); }
void store_block(void* to, __m128i value) { _mm_storeu_si128(static_cast<__m128i*>(to), value); }

__m128i bytes_reversed(__m128i block) {
  return _mm_shuffle_epi8(block,
                          _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
}

// The first `bytes` of a block, zeros behind them.
__m128i load_part_of_block(const std::byte* from, std::size_t bytes) {
  alignas(16) std::array<std::byte, 16> block{};
  std::memcpy(block.data(), from, bytes);
  return load_block(block.data());
}

// x^127 + x^126 + x^121 + 1 and x^128, of which the last word is what reducing multiplies by.
__m128i hash_polynomial() {
  return _mm_set_epi64x(static_cast<long long>(0xC200'0000'0000'0000), 1);
}

// Times x.
__m128i times_x_in_hash(__m128i value) {
  const __m128i carries = _mm_srli_epi64(value, 63);  // of each half
  const __m128i shifted = _mm_or_si128(_mm_slli_epi64(value, 1), _mm_slli_si128(carries, 8));
  // All bits where x^128 came out.
  const __m128i over = _mm_sub_epi64(_mm_setzero_si128(), _mm_srli_si128(carries, 8));
  return _mm_xor_si128(shifted, _mm_and_si128(_mm_unpacklo_epi64(over, over), hash_polynomial()));
}

// The product of both and x^-128, modulo the polynomial.
__m128i hash_product(__m128i a, __m128i b) {
  const __m128i middle =
      _mm_xor_si128(_mm_clmulepi64_si128(a, b, 0x01), _mm_clmulepi64_si128(a, b, 0x10));
  const __m128i low = _mm_xor_si128(_mm_clmulepi64_si128(a, b, 0x00), _mm_slli_si128(middle, 8));
  const __m128i high = _mm_xor_si128(_mm_clmulepi64_si128(a, b, 0x11), _mm_srli_si128(middle, 8));
  // Adds a multiple of the polynomial that makes the lowest word zero, and drops that word.
  const auto without_last = [](__m128i value) {
    return _mm_xor_si128(_mm_shuffle_epi32(value, 0x4E),
                         _mm_clmulepi64_si128(value, hash_polynomial(), 0x10));
  };
  return _mm_xor_si128(high, without_last(without_last(low)));
}

class BlockHash {
 public:
  explicit BlockHash(__m128i key) : key_(key) {}
  void take(__m128i block) {
    sum_ = hash_product(_mm_xor_si128(sum_, bytes_reversed(block)), key_);
  }
  void take(std::span<const std::byte> bytes) {
    for (; bytes.size() >= 16; bytes = bytes.subspan(16)) take(load_block(bytes.data()));
    if (!bytes.empty()) take(load_part_of_block(bytes.data(), bytes.size()));
  }
  __m128i finish(std::size_t front_bytes, std::size_t text_bytes) {
    const auto bits = [](std::size_t bytes) { return 8 * static_cast<long long>(bytes); };
    const __m128i lengths = _mm_set_epi64x(bits(front_bytes), bits(text_bytes));
    return bytes_reversed(hash_product(_mm_xor_si128(sum_, lengths), key_));
  }

 private:
  const __m128i key_;
  __m128i sum_ = _mm_setzero_si128();
};

// A stream of blocks, each the cipher of the nonce and a number: the first for the tag, from the
// second on for the text.
class CipherStream {
 public:
  CipherStream(const std::byte* round_keys, ShortGcm::Nonce nonce) {
    for (std::size_t i = 0; i < std::size(keys_); ++i) keys_[i] = load_block(round_keys + 16 * i);
    nonce_ = load_part_of_block(nonce.data(), nonce.size());
  }
  template <std::size_t kBlocks>
  void blocks(std::uint32_t first, __m128i (&out)[kBlocks]) const {
    for (std::size_t i = 0; i < kBlocks; ++i) {
      const auto number = __builtin_bswap32(first + static_cast<std::uint32_t>(i));
      out[i] = _mm_xor_si128(_mm_insert_epi32(nonce_, static_cast<int>(number), 3), keys_[0]);
    }
    for (std::size_t round = 1; round + 1 < std::size(keys_); ++round) {
      for (__m128i& block : out) block = _mm_aesenc_si128(block, keys_[round]);
    }
    for (__m128i& block : out) block = _mm_aesenclast_si128(block, keys_[std::size(keys_) - 1]);
  }
  __m128i of_tag() const {
    __m128i block[1];
    blocks(1, block);
    return block[0];
  }
  void apply(std::span<const std::byte> text, std::byte* out) const {
    constexpr std::size_t kBytes = 16 * kSideBySide;
    std::uint32_t number = 2;
    for (; !text.empty(); number += kSideBySide) {
      __m128i pad[kSideBySide];
      blocks(number, pad);
      const std::size_t bytes = std::min(text.size(), kBytes);
      std::size_t at = 0;
      for (; at + 16 <= bytes; at += 16) {
        store_block(out + at, _mm_xor_si128(load_block(text.data() + at), pad[at / 16]));
      }
      if (at < bytes) {
        alignas(16) std::array<std::byte, 16> last;
        store_block(last.data(),
                    _mm_xor_si128(load_part_of_block(text.data() + at, bytes - at), pad[at / 16]));
        std::memcpy(out + at, last.data(), bytes - at);
      }
      text = text.subspan(bytes);
      out += bytes;
    }
  }

 private:
  __m128i keys_[11];
  __m128i nonce_;
};

__m128i tag_of(__m128i hash_key, const CipherStream& stream, std::span<const std::byte> front,
               std::span<const std::byte> sealed) {
  BlockHash hash(hash_key);
  hash.take(front);
  hash.take(sealed);
  return _mm_xor_si128(hash.finish(front.size(), sealed.size()), stream.of_tag());
}

}  // namespace

bool ShortGcm::is_supported() {
  return __builtin_cpu_supports("aes") && __builtin_cpu_supports("pclmul") &&
         __builtin_cpu_supports("sse4.1") && __builtin_cpu_supports("ssse3");
}

// Each round's key follows from the one before (FIPS 197, 5.2). The last round of the cipher, which
// mixes no columns, substitutes four equal words as that wants it.
ShortGcm::ShortGcm(std::span<const std::byte, kKeyBytes> key) {
  const __m128i last_word_turned = _mm_set1_epi32(0x0C0F0E0D);
  __m128i round_key = load_block(key.data());
  store_block(round_keys_[0].data(), round_key);
  int constant = 1;
  for (std::size_t round = 1; round <= kRounds; ++round) {
    const __m128i turned = _mm_shuffle_epi8(round_key, last_word_turned);
    const __m128i substituted = _mm_aesenclast_si128(turned, _mm_set1_epi32(constant));
    round_key = _mm_xor_si128(round_key, _mm_slli_si128(round_key, 4));
    round_key = _mm_xor_si128(round_key, _mm_slli_si128(round_key, 8));
    round_key = _mm_xor_si128(round_key, substituted);
    store_block(round_keys_[round].data(), round_key);
    constant = (constant << 1) ^ (constant >= 0x80 ? 0x11B : 0);
  }
  __m128i zero = load_block(round_keys_[0].data());
  for (std::size_t round = 1; round < kRounds; ++round) {
    zero = _mm_aesenc_si128(zero, load_block(round_keys_[round].data()));
  }
  zero = _mm_aesenclast_si128(zero, load_block(round_keys_[kRounds].data()));
  store_block(hash_key_.data(), times_x_in_hash(bytes_reversed(zero)));
}

ShortGcm::~ShortGcm() {
  for (Block& key : round_keys_) explicit_bzero(key.data(), key.size());
  explicit_bzero(hash_key_.data(), hash_key_.size());
}

void ShortGcm::seal(Nonce nonce, std::span<const std::byte> front, std::span<const std::byte> text,
                    std::byte* out, Tag tag) const {
  TACO_ASSERT(front.size() % kBlockBytes == 0 && text.size() <= kMostBytes);
  const CipherStream stream(round_keys_[0].data(), nonce);
  stream.apply(text, out);
  store_block(tag.data(), tag_of(load_block(hash_key_.data()), stream, front, {out, text.size()}));
}

bool ShortGcm::open(Nonce nonce, std::span<const std::byte> front, std::span<std::byte> text,
                    ConstTag tag) const {
  TACO_ASSERT(front.size() % kBlockBytes == 0 && text.size() <= kMostBytes);
  const CipherStream stream(round_keys_[0].data(), nonce);
  const __m128i right = tag_of(load_block(hash_key_.data()), stream, front, text);
  const __m128i wrong = _mm_xor_si128(right, load_block(tag.data()));
  if (_mm_testz_si128(wrong, wrong) == 0) return false;
  stream.apply(text, text.data());
  return true;
}

}  // namespace taco::kernels
