#include "harp/session/proof.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/log.h"

namespace taco::harp {
namespace {

using Digest = std::array<std::byte, 32>;

Digest hmac(std::span<const std::byte> key, std::span<const std::byte> data) {
  Digest digest;
  unsigned bytes = 0;
  const auto* in = reinterpret_cast<const unsigned char*>(data.data());
  auto* out = reinterpret_cast<unsigned char*>(digest.data());
  const auto key_bytes = static_cast<int>(key.size());
  if (HMAC(EVP_sha256(), key.data(), key_bytes, in, data.size(), out, &bytes) == nullptr ||
      bytes != digest.size()) {
    // Without memory or without SHA-256 there is no way to go on, and none to prove anything.
    TACO_LOG_ERROR("harp", "libcrypto cannot compute HMAC-SHA256");
    abort();
  }
  return digest;
}

wire::Proof proof_of(const wire::Hello& hello, const PairKey& key) {
  const Digest digest = hmac(key, wire::proven_bytes(hello));
  wire::Proof proof;
  std::memcpy(proof.data(), digest.data(), proof.size());
  return proof;
}

}  // namespace

PairKey pair_key(const Identity& a, const Identity& b) {
  const Identity* first = &a;
  const Identity* second = &b;
  if (second->incarnation < first->incarnation) std::swap(first, second);
  constexpr char kPurpose[] = "taco harp hello";
  std::array<std::byte, sizeof first->secret + sizeof second->secret> secrets;
  std::memcpy(secrets.data(), &first->secret, sizeof first->secret);
  std::memcpy(secrets.data() + sizeof first->secret, &second->secret, sizeof second->secret);
  std::array<std::byte, sizeof kPurpose + 16> data;
  std::memcpy(data.data(), kPurpose, sizeof kPurpose);
  std::memcpy(data.data() + sizeof kPurpose, &first->incarnation, 8);
  std::memcpy(data.data() + sizeof kPurpose + 8, &second->incarnation, 8);
  return hmac(secrets, data);
}

void prove(wire::Hello& hello, const PairKey& key) { hello.proof = proof_of(hello, key); }

bool proves(const wire::Hello& hello, const PairKey& key) {
  const wire::Proof expected = proof_of(hello, key);
  return CRYPTO_memcmp(expected.data(), hello.proof.data(), expected.size()) == 0;
}

}  // namespace taco::harp
