// How two processes prove in a hello that each was told of the other, without saying what they were
// told: HMAC-SHA256, keyed by the secrets of both, which only the rendezvous store holds, and by
// the job's key, if it has one, which only its processes hold.
//
// Pure functions; any thread.
#pragma once

#include <cstdint>

#include "harp/secret.h"
#include "harp/session/wire.h"

namespace taco::harp {

// The identity of a process: random, new with every Stack.
struct Identity {
  std::uint64_t incarnation = 0;
  Secret secret{};
};

// Shared by two processes and nobody else.
using PairKey = Digest;
// The same in either order.
PairKey pair_key(const Identity& a, const Identity& b, const JobKey& job = std::nullopt);

void prove(wire::Hello& hello, const PairKey& key);  // fills in its proof
bool proves(const wire::Hello& hello, const PairKey& key);

}  // namespace taco::harp
