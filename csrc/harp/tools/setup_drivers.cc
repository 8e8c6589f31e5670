// The checks of harp-setup where a driver other than the kernel's UDP is to be used.
#include <stdio.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "base/file.h"
#include "base/huge_pages.h"
#include "base/names.h"
#include "harp/tools/setup_checks.h"

namespace taco::harp {
namespace {

// As <linux/capability.h> numbers them; CAP_BPF is newer than some systems' headers.
struct Right {
  int number;
  const char* name;
};
constexpr Right kLocksMemory{14, "CAP_IPC_LOCK"};
// By it the program is found that another rank has put on an interface that both share.
constexpr Right kSeesPrograms{21, "CAP_SYS_ADMIN"};
constexpr Right kRightsForXdp[] = {{12, "CAP_NET_ADMIN"}, {13, "CAP_NET_RAW"}, {39, "CAP_BPF"}};

constexpr std::size_t kLockedByAQueue = std::size_t{5} << 20;
constexpr std::size_t kHugeBytesForDpdk = std::size_t{256} << 20;
constexpr char kMendsLockedMemory[] =
    "ulimit -Hl unlimited before the job, as root; LimitMEMLOCK=infinity of its service";

// Those of this process; it has none where the file cannot be read.
bool has_right(const Host& host, const Right& right) {
  const std::string status = read_file(host.root + "/proc/self/status");
  const std::size_t at = status.find("CapEff:");
  if (at == std::string::npos) return false;
  return (std::strtoull(status.c_str() + at + 7, nullptr, 16) >> right.number & 1) != 0;
}

// In a user namespace of its own root has rights over nothing outside.
bool is_in_first_user_namespace(const Host& host) {
  unsigned long inside = 1, outside = 1, count = 0;
  const std::string map = read_file(host.root + "/proc/self/uid_map");
  return sscanf(map.c_str(), "%lu %lu %lu", &inside, &outside, &count) == 3 && inside == 0 &&
         outside == 0 && count == UINT32_MAX;
}

Check check_kernel(const Host& host) {
  int major = 0, minor = 0;
  sscanf(host.kernel.c_str(), "%d.%d", &major, &minor);
  Check check{.name = "kernel", .found = "Linux " + host.kernel};
  const bool is_new = major > 5 || (major == 5 && minor >= 9);
  check.good = is_new && host.has_af_xdp;
  if (check.good) return check;
  check.found +=
      is_new ? ", built without AF_XDP (CONFIG_XDP_SOCKETS)" : ", and xdp needs Linux 5.9 or newer";
  check.mend = "another kernel; or harp-setup --set driver=udp";
  return check;
}

Check check_rights(const Host& host) {
  Check check{.name = "rights"};
  for (const Right& each : kRightsForXdp) {
    if (!has_right(host, each)) append_name(check.found, each.name);
  }
  const bool is_first = is_in_first_user_namespace(host);
  check.good = check.found.empty() && is_first;
  if (check.good) {
    check.found = "all that xdp needs, of this user";
    if (!has_right(host, kSeesPrograms)) {
      check.found = "enough for one rank on each interface; those that share one need " +
                    std::string(kSeesPrograms.name) + ", too";
    }
    return check;
  }
  check.found = check.found.empty() ? "those of a user namespace, and xdp needs them in the first"
                                    : "this user lacks " + check.found;
  check.mend =
      "run the job as root, or with AmbientCapabilities=CAP_NET_ADMIN CAP_NET_RAW CAP_BPF of its "
      "service; --cap-add of each for its container";
  return check;
}

Check check_locked_memory(const Host& host, std::size_t wanted) {
  Check check{.name = "locked memory"};
  check.found = host.max_locked == SIZE_MAX ? "no limit" : size_text(host.max_locked) + " at most";
  check.good = host.max_locked >= wanted || has_right(host, kLocksMemory);
  if (check.good) return check;
  check.found += wanted == SIZE_MAX ? ", and hardware wants no limit"
                                    : ", and " + size_text(wanted) + " are wanted";
  check.mend = kMendsLockedMemory;
  return check;
}

Check check_dpdk(const Host& host) {
  Check check{.name = "dpdk", .found = host.dpdk};
  check.good = !host.dpdk.empty();
  if (check.good) return check;
  check.found = "no library of DPDK's, 22.11 or newer";
  check.mend =
      "apt-get install libdpdk-dev (or dnf install dpdk-devel), then install taco_torch from "
      "source";
  return check;
}

std::size_t number_behind(const std::string& text, const char* name) {
  const std::size_t at = text.find(name);
  if (at == std::string::npos) return 0;
  return std::strtoull(text.c_str() + at + std::string_view(name).size(), nullptr, 10);
}

Check check_reserved_pages(const Host& host) {
  const std::string memory = read_file(host.root + "/proc/meminfo");
  const std::size_t page = number_behind(memory, "Hugepagesize:") * 1024;
  const std::size_t free = free_huge_page_bytes(host.root);
  Check check{.name = "reserved pages", .found = size_text(free) + " of huge pages free"};
  check.good = free >= kHugeBytesForDpdk;
  if (check.good) return check;
  check.found += ", and " + size_text(kHugeBytesForDpdk) + " are wanted";
  if (page == 0) {
    check.mend = "a kernel with huge pages; or harp-setup --set driver=udp";
    return check;
  }
  // As many more as are wanting: those that are there have their users.
  check.file = host.root + "/proc/sys/vm/nr_hugepages";
  const std::size_t reserved = number_behind(read_file(check.file), "");
  check.value = std::to_string(reserved + (kHugeBytesForDpdk - free + page - 1) / page);
  check.mend = "sysctl -w vm.nr_hugepages=" + check.value;
  return check;
}

Check check_vfio(const Host& host) {
  namespace files = std::filesystem;
  std::error_code ignored;
  const bool is_there = files::exists(host.root + "/sys/module/vfio_pci", ignored);
  const files::path groups = host.root + "/sys/kernel/iommu_groups";
  const bool has_iommu = files::exists(groups, ignored) && !files::is_empty(groups, ignored);
  const std::string unsafe =
      read_file(host.root + "/sys/module/vfio/parameters/enable_unsafe_noiommu_mode");
  Check check{.name = "vfio"};
  check.good = is_there && (has_iommu || unsafe.starts_with("Y"));
  check.found = is_there ? "vfio-pci is there" : "the kernel's module vfio-pci is not loaded";
  if (check.good) return check;
  if (!has_iommu) check.found += ", and this host has no IOMMU";
  check.mend = has_iommu ? "modprobe vfio-pci"
                         : "modprobe vfio enable_unsafe_noiommu_mode=1 && modprobe vfio-pci";
  return check;
}

}  // namespace

std::vector<Check> check_driver(const Host& host) {
  if (host.driver == "xdp") {
    std::size_t queues = 0;
    for (const Host::Device& each : host.devices) queues += each.queues.now;
    return {check_kernel(host), check_rights(host),
            check_locked_memory(host, queues * kLockedByAQueue)};
  }
  if (host.driver != "dpdk") return {};
  if (!host.uses_pci) return {check_dpdk(host)};
  return {check_dpdk(host), check_locked_memory(host, SIZE_MAX), check_reserved_pages(host),
          check_vfio(host)};
}

}  // namespace taco::harp
