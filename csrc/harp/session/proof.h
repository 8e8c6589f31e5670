// How two processes prove in a hello that each was told of the other, without saying what they were
// told: HMAC-SHA256, keyed by the secrets of both, which only the rendezvous store holds.
//
// Pure functions; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "harp/session/wire.h"

namespace taco::harp {

using Secret = std::array<std::byte, 16>;

// What a process is known by: random, new with every Stack.
struct Identity {
  std::uint64_t incarnation = 0;
  Secret secret{};
};

// Shared by two processes and nobody else.
using PairKey = std::array<std::byte, 32>;
PairKey pair_key(const Identity& a, const Identity& b);  // the same in either order

void prove(wire::Hello& hello, const PairKey& key);  // fills in its proof
bool proves(const wire::Hello& hello, const PairKey& key);

}  // namespace taco::harp
