#include "harp/session/proof.h"

#include <array>
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
  std::array<std::byte, sizeof first->secret + sizeof second->secret> secrets;
  std::memcpy(secrets.data(), &first->secret, sizeof first->secret);
  std::memcpy(secrets.data() + sizeof first->secret, &second->secret, sizeof second->secret);
  constexpr char kPurpose[] = "taco harp hello";
  return hmac_of_pair(secrets, job, kPurpose, first->incarnation, second->incarnation);
}

void prove(wire::Hello& hello, const PairKey& key) { hello.proof = proof_of(hello, key); }

bool proves(const wire::Hello& hello, const PairKey& key) {
  return same_bytes(proof_of(hello, key), hello.proof);
}

}  // namespace taco::harp
