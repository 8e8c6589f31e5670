#include "harp/engine/security_settings.h"

#include <mutex>
#include <optional>

#include "base/env.h"
#include "base/per_process.h"
#include "harp/key_file.h"

namespace taco::harp {
namespace {

struct Known {
  std::mutex mutex;
  std::optional<SecuritySettings> settings;
};

constinit PerProcess<Known> known;

Result<SecuritySettings> read_settings() {
  const auto env = Env::get();
  if (!env.ok()) return env.status();
  const auto level = security_named(env.value().harp_security);
  if (!level) {
    return Status(Code::kInvalidArgument, "TACO_HARP_SECURITY=\"" + env.value().harp_security +
                                              "\" is unknown: none, auth or encrypt");
  }
  const auto checksum = wire::checksum_named(env.value().harp_checksum);
  if (!checksum) {
    return Status(Code::kInvalidArgument, "TACO_HARP_CHECKSUM=\"" + env.value().harp_checksum +
                                              "\" is unknown: crc32c or kernel");
  }
  SecuritySettings settings{*level, *checksum, {}};
  if (env.value().harp_key_file.empty()) return settings;
  const auto key = read_key_file(env.value().harp_key_file);
  if (!key.ok()) return key.status();
  settings.job_key = key.value();
  return settings;
}

}  // namespace

Result<SecuritySettings> SecuritySettings::get() {
  std::lock_guard lock(known().mutex);
  if (known().settings) return *known().settings;
  Result<SecuritySettings> settings = read_settings();
  if (settings.ok()) known().settings = *settings;
  return settings;
}

std::vector<SecuritySettings::Setting> SecuritySettings::settings() const {
  return {{"TACO_HARP_SECURITY", name_of(level)},
          {"TACO_HARP_CHECKSUM", name_of(checksum)},
          {"TACO_HARP_KEY_FILE", job_key ? "#" + fingerprint(*job_key) : "none"}};
}

}  // namespace taco::harp
