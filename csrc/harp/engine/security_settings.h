// The protection of this process's packets: TACO_HARP_SECURITY, TACO_HARP_CHECKSUM and the key that
// TACO_HARP_KEY_FILE names. The same for all its Stacks, however late they are made.
//
// Any thread.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "harp/secret.h"
#include "harp/session/sealing.h"

namespace taco::harp {

struct SecuritySettings {
  Security level = Security::kAuth;
  wire::Checksum checksum = wire::Checksum::kCrc32c;
  JobKey job_key;

  // Read on first use. What is wrong is the returned status, every time, until it is mended.
  static Result<SecuritySettings> get();

  // A setting that all processes which are to reach each other must have alike, for people to read;
  // the key itself is not in it.
  struct Setting {
    std::string name, value;
  };
  std::vector<Setting> settings() const;
};

}  // namespace taco::harp
