// The secret that only the processes of a job know, and keys derived from it: HMAC-SHA256, and HKDF
// (RFC 5869) on top of it.
//
// Pure functions; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/fork.h"

namespace taco::harp {

// A process's own, random; the rendezvous store tells its peers.
using Secret = std::array<std::byte, 16>;
using Digest = std::array<std::byte, 32>;
// The digest of a key that the store never sees (key_file.h); none: the job has no key.
using JobKey = std::optional<Digest>;

Digest sha256(std::span<const std::byte> data);
Digest hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> data);
// A proof about two processes that only those can make who know `secret`, and the job's key if it
// has one. `purpose` goes in with its terminating zero, so that none is the beginning of another.
Digest hmac_of_pair(std::span<const std::byte> secret, const JobKey& job,
                    std::span<const char> purpose, std::uint64_t first, std::uint64_t second);
// A key that is as good as the best of `secret`, whatever else is in that.
Digest hkdf_extract(std::span<const std::byte> salt, std::span<const std::byte> secret);
// One of many keys that `key` stands for; `purpose` says which.
Digest hkdf_expand(const Digest& key, std::span<const std::byte> purpose);

// Takes the same time wherever they differ.
bool same_bytes(std::span<const std::byte> a, std::span<const std::byte> b);

// Gives back what libcrypto keeps for the calling thread. It would as the thread ends, under a lock
// that a child which is forked meanwhile waits for for good.
void leave_crypto_library(const NoForkMeanwhile&);

// Before a process's first engine starts: libcrypto would take itself apart at exit(), under
// threads that run until the process has ended. Where the program itself has begun to use it
// before, it does, and such threads are to have ended by then.
void keep_crypto_library();

// The library that computes all this, as loaded: "OpenSSL 3.0.15 3 Sep 2024".
const char* crypto_library();

}  // namespace taco::harp
