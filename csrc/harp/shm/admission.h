// How a process that connects over a host's socket shows that it may: by a proof that it was told
// of the receiver, and has the job's key. What it was told is not sent.
//
// Pure functions; any thread.
#pragma once

#include <cstdint>

#include "harp/secret.h"
#include "harp/shm/endpoint.h"

namespace taco::harp {

// The proof that the process `sender`, and nobody else, can show to `receiver`.
ShmProof shm_proof(const ShmAddress& receiver, std::uint64_t sender, const JobKey& job);
bool shm_proves(const ShmProof& proof, const ShmAddress& receiver, std::uint64_t sender,
                const JobKey& job);

}  // namespace taco::harp
