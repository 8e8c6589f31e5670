#include "harp/engine/host_identity.h"

#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

namespace taco::harp {

std::string host_identity(const std::string& override_id) {
  if (!override_id.empty()) return override_id;
  std::string boot_id = read_file("/proc/sys/kernel/random/boot_id");
  boot_id = boot_id.substr(0, boot_id.find('\n'));
  struct stat network {};
  // Without /proc/self/ns (very old or very locked kernels) the boot id alone has to do; a wrong
  // guess is found out by the probe of the shared-memory socket.
  if (stat("/proc/self/ns/net", &network) != 0) network.st_ino = 0;
  if (boot_id.empty()) boot_id = host_name();
  return boot_id + "-" + std::to_string(network.st_ino);
}

std::string host_name() {
  char name[256] = {};
  if (gethostname(name, sizeof name - 1) != 0 || name[0] == '\0') return "unnamed-host";
  return name;
}

}  // namespace taco::harp
