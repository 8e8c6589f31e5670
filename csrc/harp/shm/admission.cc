#include "harp/shm/admission.h"

#include <cstring>

namespace taco::harp {

ShmProof shm_proof(const ShmAddress& receiver, std::uint64_t sender, const JobKey& job) {
  constexpr char kPurpose[] = "taco harp shm";
  const Digest digest = hmac_of_pair(receiver.secret, job, kPurpose, sender, receiver.incarnation);
  ShmProof proof;
  std::memcpy(proof.data(), digest.data(), proof.size());
  return proof;
}

bool shm_proves(const ShmProof& proof, const ShmAddress& receiver, std::uint64_t sender,
                const JobKey& job) {
  return same_bytes(proof, shm_proof(receiver, sender, job));
}

}  // namespace taco::harp
