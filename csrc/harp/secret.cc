#include "harp/secret.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "base/log.h"

namespace taco::harp {
namespace {

constexpr std::size_t kHashBlockBytes = SHA256_CBLOCK;
constexpr std::byte kInner{0x36}, kOuter{0x5c};

using Bytes = std::span<const std::byte>;

// Takes one piece after the other. OpenSSL 3 calls these functions deprecated. Those that it has in
// their place keep something for each thread and take locks for that, also as a thread ends: a
// child that is forked meanwhile would wait for them for good.
Digest digest_of(std::initializer_list<Bytes> pieces) {
  SHA256_CTX state;
  Digest digest;
  bool done = SHA256_Init(&state) == 1;
  for (const Bytes piece : pieces) {
    done = done && SHA256_Update(&state, piece.data(), piece.size()) == 1;
  }
  done = done && SHA256_Final(reinterpret_cast<unsigned char*>(digest.data()), &state) == 1;
  OPENSSL_cleanse(&state, sizeof state);
  if (done) return digest;
  // Without SHA-256 there is no way to prove anything.
  TACO_LOG_ERROR("harp", "libcrypto cannot compute SHA-256");
  abort();
}

}  // namespace

Digest sha256(std::span<const std::byte> data) { return digest_of({data}); }

// RFC 2104.
Digest hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> data) {
  std::array<std::byte, kHashBlockBytes> padded{};
  const Digest shorter = key.size() > kHashBlockBytes ? sha256(key) : Digest{};
  const Bytes used = key.size() > kHashBlockBytes ? Bytes(shorter) : key;
  if (!used.empty()) std::memcpy(padded.data(), used.data(), used.size());
  for (std::byte& byte : padded) byte ^= kInner;
  const Digest inner = digest_of({padded, data});
  for (std::byte& byte : padded) byte ^= kInner ^ kOuter;
  const Digest digest = digest_of({padded, inner});
  OPENSSL_cleanse(padded.data(), padded.size());
  return digest;
}

Digest hmac_of_pair(std::span<const std::byte> secret, const JobKey& job,
                    std::span<const char> purpose, std::uint64_t first, std::uint64_t second) {
  std::vector<std::byte> key(secret.begin(), secret.end());
  if (job) key.insert(key.end(), job->begin(), job->end());
  const std::span<const std::byte> words = std::as_bytes(purpose);
  std::vector<std::byte> data(words.begin(), words.end());
  for (const std::uint64_t process : {first, second}) {
    const std::span<const std::byte> bytes = std::as_bytes(std::span(&process, 1));
    data.insert(data.end(), bytes.begin(), bytes.end());
  }
  return hmac_sha256(key, data);
}

Digest hkdf_extract(std::span<const std::byte> salt, std::span<const std::byte> secret) {
  return hmac_sha256(salt, secret);
}

// The first block of the RFC's output, which is as long as any key here needs to be.
Digest hkdf_expand(const Digest& key, std::span<const std::byte> purpose) {
  std::vector<std::byte> info(purpose.begin(), purpose.end());
  info.push_back(std::byte{1});
  return hmac_sha256(key, info);
}

bool same_bytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

void leave_crypto_library(const NoForkMeanwhile&) { OPENSSL_thread_stop(); }

void keep_crypto_library() { OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr); }

const char* crypto_library() { return OpenSSL_version(OPENSSL_VERSION); }

}  // namespace taco::harp
