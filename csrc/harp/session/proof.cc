#include "harp/session/proof.h"

#include <cstring>
#include <utility>

namespace taco::harp {
namespace {

wire::Proof proof_of(const wire::Hello& hello, const PairKey& key) {
  const Digest digest = hmac_sha256(key, wire::proven_bytes(hello));
  wire::Proof proof;
  std::memcpy(proof.data(), digest.data(), proof.size());
  return proof;
}

}  // namespace

PairKey pair_key(const Identity& a, const Identity& b, const JobKey& job) {
  const Identity* first = &a;
  const Identity* second = &b;
  if (second->incarnation < first->incarnation) std::swap(first, second);
  constexpr char kPurpose[] = "taco harp hello";
  std::array<std::byte, sizeof first->secret + sizeof second->secret + sizeof(Digest)> secrets;
  std::size_t bytes = sizeof first->secret + sizeof second->secret;
  std::memcpy(secrets.data(), &first->secret, sizeof first->secret);
  std::memcpy(secrets.data() + sizeof first->secret, &second->secret, sizeof second->secret);
  if (job) {
    std::memcpy(secrets.data() + bytes, job->data(), job->size());
    bytes += job->size();
  }
  std::array<std::byte, sizeof kPurpose + 16> data;
  std::memcpy(data.data(), kPurpose, sizeof kPurpose);
  std::memcpy(data.data() + sizeof kPurpose, &first->incarnation, 8);
  std::memcpy(data.data() + sizeof kPurpose + 8, &second->incarnation, 8);
  return hmac_sha256(std::span(secrets).first(bytes), data);
}

void prove(wire::Hello& hello, const PairKey& key) { hello.proof = proof_of(hello, key); }

bool proves(const wire::Hello& hello, const PairKey& key) {
  return same_bytes(proof_of(hello, key), hello.proof);
}

}  // namespace taco::harp
