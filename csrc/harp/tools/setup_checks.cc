#include "harp/tools/setup_checks.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/file.h"
#include "base/names.h"

namespace taco::harp {
namespace {

// A rank takes ten for itself, two for each other one on its host, and Python and torch theirs.
constexpr std::size_t kFewestDescriptors = 4096;

Check check_socket_buffers(const Host& host, std::size_t wanted) {
  const std::string file = host.root + "/proc/sys/net/core/rmem_max";
  const std::string text = read_file(file);
  // Older kernels show the host's limit in its first network namespace alone, so in no container.
  if (text.empty()) return {.name = "socket buffers", .found = "not shown in this namespace"};
  const std::size_t most = std::strtoull(text.c_str(), nullptr, 10);
  Check check{.name = "socket buffers", .found = size_text(most) + " at most"};
  check.good = most >= wanted;
  if (check.good) return check;
  check.found += ", and " + size_text(wanted) + " are wanted: packets that come in bursts are lost";
  check.mend = "sysctl -w net.core.rmem_max=" + std::to_string(wanted);
  check.file = file;
  check.value = std::to_string(wanted);
  return check;
}

Check check_huge_pages(const Host& host) {
  const std::string file = host.root + "/sys/kernel/mm/transparent_hugepage/enabled";
  const std::string text = read_file(file);
  const std::size_t reserved =
      std::strtoull(read_file(host.root + "/proc/sys/vm/nr_hugepages").c_str(), nullptr, 10);
  const std::size_t open = text.find('['), close = text.find(']');
  const bool is_known = open < close && close != std::string::npos;
  const std::string mode = is_known ? text.substr(open + 1, close - open - 1) : "not offered";
  Check check{.name = "huge pages"};
  check.found = "transparent ones: " + mode + ", reserved: " + std::to_string(reserved);
  // A kernel without transparent ones has no file to write to.
  check.good = reserved > 0 || mode != "never";
  if (check.good) return check;
  check.mend = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled";
  check.file = file;
  check.value = "madvise";
  return check;
}

Check check_descriptors(const Host& host) {
  Check check{.name = "descriptors", .found = std::to_string(host.max_descriptors) + " a process"};
  check.good = host.max_descriptors >= kFewestDescriptors;
  if (check.good) return check;
  check.found += ", and " + std::to_string(kFewestDescriptors) + " are wanted";
  check.mend = "ulimit -Hn 65536 before the job, as root; LimitNOFILE=65536 of its service";
  return check;
}

Check check_networks(const Host& host) {
  Check check{.name = "network"};
  for (const std::string& each : host.networks) append_name(check.found, each);
  check.good = !host.networks.empty();
  if (check.good) return check;
  check.found = "no interface that is up has an address by which others reach it";
  check.mend = "ip link set INTERFACE up; ip address add ADDRESS/PREFIX dev INTERFACE";
  return check;
}

// A queue is one core's work. Setting their number may take the link down for a
// moment, and with it the session of whoever does it. Devices of virtual machines take an XDP
// program only while half of their queues are left to send by.
Check check_queues(const Host& host, const Host::Device& device) {
  const DeviceQueues& queues = device.queues;
  const std::size_t usable =
      host.driver == "xdp" ? std::max(queues.most / 2, 1u) : std::size_t{queues.most};
  const auto wanted = static_cast<std::uint32_t>(std::min(usable, host.cores));
  Check check{.name = "queues", .found = device.name + " " + std::to_string(queues.now)};
  check.found += " of " + std::to_string(queues.most) + ", " + count_text(host.cores, "core");
  check.good = queues.now >= wanted;
  if (check.good) return check;
  check.mend = "ethtool -L " + device.name + (queues.is_combined ? " combined " : " rx ") +
               std::to_string(wanted);
  return check;
}

}  // namespace

std::vector<Check> check_host(const Host& host, std::size_t socket_buffer) {
  std::vector<Check> checks = {check_socket_buffers(host, socket_buffer), check_huge_pages(host),
                               check_descriptors(host)};
  // Devices of DPDK's are each rank's own: nobody may have named any here.
  if (host.driver != "dpdk") checks.push_back(check_networks(host));
  for (const Host::Device& each : host.devices) {
    if (each.is_hardware) checks.push_back(check_queues(host, each));
  }
  for (Check& each : check_driver(host)) checks.push_back(std::move(each));
  return checks;
}

std::string mend(const Check& check) {
  if (check.file.empty()) return "it is for you to do";
  const int fd = open(check.file.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC);
  if (fd < 0) return strerror(errno);
  const auto bytes = static_cast<ssize_t>(check.value.size());
  const bool written = write(fd, check.value.data(), check.value.size()) == bytes;
  std::string why = written ? "" : strerror(errno);
  close(fd);
  return why;
}

}  // namespace taco::harp
