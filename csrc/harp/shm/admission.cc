#include "harp/shm/admission.h"

#include <cstring>

namespace taco::harp {

ShmProof shm_proof(const ShmAddress& receiver, std::uint64_t sender, const JobKey& job) {
  constexpr char kPurpose[] = "taco harp shm";
  std::array<std::byte, sizeof receiver.secret + sizeof(Digest)> key;
  std::size_t bytes = sizeof receiver.secret;
  std::memcpy(key.data(), &receiver.secret, bytes);
  if (job) {
    std::memcpy(key.data() + bytes, job->data(), job->size());
    bytes += job->size();
  }
  std::array<std::byte, sizeof kPurpose + 16> data;
  std::memcpy(data.data(), kPurpose, sizeof kPurpose);
  std::memcpy(data.data() + sizeof kPurpose, &sender, 8);
  std::memcpy(data.data() + sizeof kPurpose + 8, &receiver.incarnation, 8);
  const Digest digest = hmac_sha256(std::span(key).first(bytes), data);
  ShmProof proof;
  std::memcpy(proof.data(), digest.data(), proof.size());
  return proof;
}

bool shm_proves(const ShmProof& proof, const ShmAddress& receiver, std::uint64_t sender,
                const JobKey& job) {
  return same_bytes(proof, shm_proof(receiver, sender, job));
}

}  // namespace taco::harp
