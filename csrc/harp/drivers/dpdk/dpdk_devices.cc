#include "harp/drivers/dpdk/dpdk_devices.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "base/fork.h"
#include "base/huge_pages.h"
#include "base/log.h"
#include "base/thread.h"
#include "harp/drivers/dpdk/dpdk_library.h"

namespace taco::harp {

namespace {

constexpr const char* kLibraryName = "libharp_dpdk.so";

struct ProcessDpdk {
  const std::uint32_t generation = fork_generation();
  std::mutex mutex;
  bool is_tried = false;
  std::string devices, eal_arguments;           // as first asked for
  Result<const DpdkLibrary*> library{nullptr};  // whose EAL has started
  struct Links {
    std::vector<FrameLink> links;  // none: they have not been opened, or could not be
    bool is_lent = false;
  };
  std::map<std::uint32_t, Links> by_engine;
};

// Never destroyed: EAL's threads run until the process ends, and engines may outlive statics.
ProcessDpdk& process_dpdk() {
  static auto* const dpdk = new ProcessDpdk;
  return *dpdk;
}

// Where this very code was loaded from: the library is installed beside it.
std::string own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&process_dpdk), &info) == 0) return "";
  const std::string path = info.dli_fname;
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash + 1);
}

Result<const DpdkLibrary*> load_library() {
  std::string why;
  for (const std::string& name : {own_folder() + kLibraryName, std::string(kLibraryName)}) {
    void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == nullptr) {
      why += (why.empty() ? "" : "; ") + std::string(dlerror());
      continue;
    }
    const auto entry =
        reinterpret_cast<const DpdkLibrary* (*)()>(dlsym(library, kDpdkLibrarySymbol));
    const DpdkLibrary* const found = entry == nullptr ? nullptr : entry();
    if (found != nullptr && found->version == DpdkLibrary::kVersion) return found;
    return Status(Code::kUnsupported,
                  name + " is of another build of taco_torch: install both anew");
  }
  return Status(Code::kUnsupported,
                "TACO_HARP_DRIVER=dpdk needs DPDK's libraries, of the version that taco_torch was "
                "built with, and " +
                    std::string(kLibraryName) +
                    ", which is built where DPDK's headers are: apt-get install libdpdk-dev (or "
                    "dnf install dpdk-devel), then install taco_torch from source, in a "
                    "checkout by `make build`. " +
                    why);
}

std::vector<int> usable_cores() {
  std::vector<int> cores;
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof set, &set);
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

std::set<int> open_descriptors() {
  std::set<int> all;
  DIR* const folder = opendir("/proc/self/fd");
  if (folder == nullptr) return all;
  while (const dirent* const entry = readdir(folder)) {
    const int fd = atoi(entry->d_name);
    if (entry->d_name[0] != '.' && fd != dirfd(folder)) all.insert(fd);
  }
  closedir(folder);
  return all;
}

// DPDK opens its descriptors for children to inherit, as hardly anybody else does: so it is told
// from what other threads have opened meanwhile.
void close_on_fork_but(const std::set<int>& before) {
  for (const int fd : open_descriptors()) {
    const int flags = before.count(fd) == 0 ? fcntl(fd, F_GETFD) : -1;
    if (flags >= 0 && (flags & FD_CLOEXEC) == 0) close_on_fork(fd);
  }
}

const char* fate_of(FramePayload payload) {
  switch (payload) {
    case FramePayload::kAttached:
      return "read by the driver where it lies";
    case FramePayload::kLent:
      return "read where it lies, also later";
    case FramePayload::kCopied:
      break;
  }
  return "copied into the device's buffers";
}

std::string listed(const std::vector<std::string>& arguments) {
  std::string list;
  for (std::size_t i = 1; i < arguments.size(); ++i) list += " " + arguments[i];
  return list;
}

Status start_eal(const DpdkLibrary& library, const std::vector<std::string>& arguments) {
  const auto log_line = [](const char* line) { TACO_LOG_WARNING("harp", "DPDK: %s", line); };
  const Status started = library.start(arguments, log_line);
  if (started.ok()) return {};
  return Status(started.code(), started.message() + "; its arguments were" + listed(arguments) +
                                    ", the last of them those of TACO_HARP_DPDK_EAL");
}

Status open_devices(const DpdkLibrary& library, const std::vector<DpdkDevice>& devices,
                    std::uint32_t engine, std::vector<FrameLink>& links) {
  for (const DpdkDevice& each : devices) {
    DpdkDevice device = device_of_engine(each, engine);
    auto port = library.open({device.link.name, device.arguments, device.mtu, device.slots});
    if (!port.ok()) return port.status().with_prefix("TACO_HARP_DPDK: ");
    device.link.port = std::move(port).value();
    const FramePortInfo& info = device.link.port->info();
    TACO_LOG_INFO("harp", "%s, by %s: payload that leaves is %s, checksums are %s",
                  info.name.c_str(), info.driver.c_str(), fate_of(info.payload),
                  info.checksums ? "the device's" : "computed by software");
    links.push_back(std::move(device.link));
  }
  return {};
}

// In a thread of its own, which EAL may pin and whose signals are blocked, as are those of the
// threads that EAL starts from it.
Status run_apart(const std::function<Status()>& body) {
  const std::set<int> before = open_descriptors();
  Status status;
  auto thread = start_thread("taco-dpdk", [&] { status = body(); });
  if (!thread.ok()) return thread.status();
  thread.value().join();
  close_on_fork_but(before);
  return status;
}

Result<const DpdkLibrary*> start_library(const std::vector<DpdkDevice>& devices,
                                         const std::string& more) {
  auto arguments = eal_arguments(devices, {usable_cores(), free_huge_page_bytes()}, more);
  if (!arguments.ok()) return arguments.status();
  auto library = load_library();
  if (!library.ok()) return library.status();
  TACO_RETURN_IF_ERROR(run_apart([&] { return start_eal(*library.value(), arguments.value()); }));
  TACO_LOG_INFO("harp", "%s", library.value()->dpdk_version());
  return library;
}

Result<std::vector<FrameLink>> open_links(const DpdkLibrary& library,
                                          const std::vector<DpdkDevice>& devices,
                                          std::uint32_t engine) {
  std::vector<FrameLink> links;
  TACO_RETURN_IF_ERROR(run_apart([&] {
    Status status = open_devices(library, devices, engine, links);
    if (!status.ok()) links.clear();  // closed before anybody counts on their descriptors
    return status;
  }));
  return links;
}

std::string text_of(const std::vector<DpdkDevice>& devices) {
  std::string text;
  for (const DpdkDevice& device : devices) {
    text += device.link.name + "," + device.arguments + " " + std::to_string(device.mtu) + " " +
            std::to_string(device.slots) + ";";
  }
  return text;
}

}  // namespace

Result<std::vector<FrameLink>> dpdk_links(const std::vector<DpdkDevice>& devices,
                                          const std::string& eal_arguments, std::uint32_t engine) {
  ProcessDpdk& dpdk = process_dpdk();
  if (dpdk.generation != fork_generation()) {
    return Status(Code::kUnsupported,
                  "this process was forked from one that uses DPDK, which stays with its parent: "
                  "start a new one, or unset TACO_HARP_DRIVER here");
  }
  std::lock_guard lock(dpdk.mutex);
  if (!std::exchange(dpdk.is_tried, true)) {
    dpdk.devices = text_of(devices);
    dpdk.eal_arguments = eal_arguments;
    dpdk.library = start_library(devices, eal_arguments);
  } else if (dpdk.devices != text_of(devices) || dpdk.eal_arguments != eal_arguments) {
    return invalid(
        "TACO_HARP_DPDK or TACO_HARP_DPDK_EAL was another one when this process started DPDK, "
        "which starts once: set them before");
  }
  if (!dpdk.library.ok()) return dpdk.library.status();
  std::vector<FrameLink>& links = dpdk.by_engine[engine].links;
  if (!links.empty()) return links;
  auto opened = open_links(*dpdk.library.value(), devices, engine);
  if (opened.ok()) links = opened.value();
  return opened;
}

std::shared_ptr<void> borrow_dpdk_links(std::uint32_t engine) {
  ProcessDpdk& dpdk = process_dpdk();
  std::lock_guard lock(dpdk.mutex);
  bool& is_lent = dpdk.by_engine[engine].is_lent;
  if (std::exchange(is_lent, true)) return nullptr;
  return {&is_lent, [](void* lent) {
            ProcessDpdk& own = process_dpdk();
            if (own.generation != fork_generation()) return;
            std::lock_guard again(own.mutex);
            *static_cast<bool*>(lent) = false;
          }};
}

}  // namespace taco::harp
