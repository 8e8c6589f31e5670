// The key of a job, in a file that its processes share and the rendezvous store never sees
// (TACO_HARP_KEY_FILE). Somebody who reads the store, but not the file, can prove nothing.
//
// Any thread.
#pragma once

#include <string>

#include "base/status.h"
#include "harp/secret.h"

namespace taco::harp {

inline constexpr std::size_t kMinKeyBytes = 16, kMaxKeyBytes = 4096;

// A hash of the file's bytes. kInvalidArgument, naming the file and what to do: it cannot be read,
// is no regular file, too short or too long, or others than its owner may touch it, or its owner is
// neither this user nor root.
Result<Digest> read_key_file(const std::string& path);

// Eight digits that may be shown of a key, to see whether two are the same; they help nobody to
// find it but by trying keys.
std::string fingerprint(const Digest& key);

}  // namespace taco::harp
