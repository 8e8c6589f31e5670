// The host that harp-setup runs on, as it sees it.
#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cstdint>

#include "base/env.h"
#include "base/own_fd.h"
#include "harp/drivers/dpdk/dpdk_settings.h"
#include "harp/drivers/networks.h"
#include "harp/engine/interfaces.h"
#include "harp/tools/setup_checks.h"

namespace taco::harp {
namespace {

// The numbers that DPDK's libraries have had since 22.11, and those that will follow.
constexpr int kFirstOfDpdk = 23, kLastOfDpdk = 40;

std::size_t max_of(__rlimit_resource resource) {
  rlimit limit{};
  getrlimit(resource, &limit);
  return limit.rlim_max == RLIM_INFINITY ? SIZE_MAX : limit.rlim_max;
}

std::size_t cores_of_this_process() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof cores, &cores) != 0) return 1;
  return static_cast<std::size_t>(CPU_COUNT(&cores));
}

std::string kernel_release() {
  utsname name{};
  return uname(&name) == 0 ? name.release : "";
}

// Without the right to have a socket, a kernel that knows the family says so.
bool knows_af_xdp() {
  const OwnFd socket_of_xdp(socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0));
  return socket_of_xdp || errno != EAFNOSUPPORT;
}

std::string dpdk_version() {
  for (int number = kLastOfDpdk; number >= kFirstOfDpdk; --number) {
    const std::string name = "librte_eal.so." + std::to_string(number);
    void* const library = dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
    if (library == nullptr) continue;
    const auto version = reinterpret_cast<const char* (*)()>(dlsym(library, "rte_version"));
    return version == nullptr ? name : version();
  }
  return "";
}

// EAL is not started for a look: the devices are what TACO_HARP_DPDK says.
void see_dpdk(SeenHost& seen) {
  seen.host.dpdk = dpdk_version();
  const auto env = Env::get();
  if (!env.ok()) seen.problem = env.status().message();
  if (!env.ok() || env.value().harp_dpdk.empty()) return;
  const auto devices = parse_dpdk_devices(env.value().harp_dpdk);
  if (!devices.ok()) seen.problem = devices.status().message();
  if (!devices.ok()) return;
  seen.host.uses_pci = std::ranges::any_of(devices.value(), &DpdkDevice::is_pci);
  for (const DpdkDevice& device : devices.value()) {
    for (const auto& each : device.link.addresses) {
      seen.host.networks.push_back(device.link.name + " " + to_string(each.address));
    }
  }
}

// The interfaces that other hosts reach, or those that are named.
Result<std::vector<Interface>> interfaces_to_use(const Network& network,
                                                 const std::string& interfaces) {
  InterfaceWish wish;
  TACO_RETURN_IF_ERROR(parse_interface_names(interfaces, &wish.names, &wish.excluded));
  auto all = network.interfaces();
  if (!all.ok() || !wish.names.empty()) {
    return all.ok() ? choose_interfaces(all.value(), wish, network.routes()) : all;
  }
  std::erase_if(all.value(), [&](const Interface& each) {
    return !each.up || each.loopback || each.overlay || !is_publishable(each) ||
           std::ranges::count(wish.excluded, each.name) != 0;
  });
  return all;
}

void see_kernel_networks(SeenHost& seen, const std::string& interfaces) {
  const auto network = network_named(seen.host.driver);
  if (!network.ok()) seen.problem = network.status().message();
  if (!network.ok()) return;
  const auto used = interfaces_to_use(*network.value(), interfaces);
  if (!used.ok()) seen.problem = used.status().message();
  if (!used.ok()) return;
  for (const Interface& each : used.value()) {
    seen.host.networks.push_back(each.name + " " + to_string(each.address));
    const auto known = std::ranges::find(seen.host.devices, each.name, &Host::Device::name);
    if (known == seen.host.devices.end()) {
      seen.host.devices.push_back({each.name, device_queues(each.name), is_hardware(each.name)});
    }
  }
}

}  // namespace

SeenHost see_host(const std::string& driver, const std::string& interfaces) {
  SeenHost seen;
  seen.host.driver = driver == "auto" ? "udp" : driver;
  seen.host.max_descriptors = max_of(RLIMIT_NOFILE);
  seen.host.max_locked = max_of(RLIMIT_MEMLOCK);
  seen.host.cores = cores_of_this_process();
  seen.host.kernel = kernel_release();
  seen.host.has_af_xdp = knows_af_xdp();
  if (driver == "dpdk") {
    see_dpdk(seen);
  } else {
    see_kernel_networks(seen, interfaces);
  }
  return seen;
}

}  // namespace taco::harp
