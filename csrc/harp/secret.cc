#include "harp/secret.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/fork.h"
#include "base/log.h"

namespace taco::harp {
namespace {

// Without memory or without SHA-256 there is no way to go on, and none to prove anything.
[[noreturn]] void fail(const char* what) {
  TACO_LOG_ERROR("harp", "libcrypto cannot compute %s", what);
  abort();
}

const unsigned char* bytes_of(std::span<const std::byte> data) {
  return reinterpret_cast<const unsigned char*>(data.data());
}

}  // namespace

Digest sha256(std::span<const std::byte> data) {
  const NoForkMeanwhile in_library;
  Digest digest;
  unsigned bytes = 0;
  auto* out = reinterpret_cast<unsigned char*>(digest.data());
  if (EVP_Digest(data.data(), data.size(), out, &bytes, EVP_sha256(), nullptr) != 1 ||
      bytes != digest.size()) {
    fail("SHA-256");
  }
  return digest;
}

Digest hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> data) {
  const NoForkMeanwhile in_library;
  Digest digest;
  unsigned bytes = 0;
  auto* out = reinterpret_cast<unsigned char*>(digest.data());
  const auto key_bytes = static_cast<int>(key.size());
  if (HMAC(EVP_sha256(), key.data(), key_bytes, bytes_of(data), data.size(), out, &bytes) ==
          nullptr ||
      bytes != digest.size()) {
    fail("HMAC-SHA256");
  }
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

const char* crypto_library() { return OpenSSL_version(OPENSSL_VERSION); }

}  // namespace taco::harp
