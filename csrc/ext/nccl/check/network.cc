#include "ext/nccl/check/network.h"

#include <dlfcn.h>
#include <link.h>

#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

#include "ext/nccl/abi_v10.h"
#include "ext/nccl/abi_v11.h"
#include "ext/nccl/abi_v12.h"

namespace harp::nccl::check {
namespace {

using taco::Code;

std::mutex warning_mutex;
std::string warning;  // guarded by warning_mutex

// A function of C's, as NCCL's logger is. It shows what NCCL would.
void take_line(abi::LogLevel level, unsigned long subsystems, const char*, int, const char* format,
               ...) {
  std::array<char, 1024> line;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line.data(), line.size(), format, arguments);
  va_end(arguments);
  std::lock_guard lock(warning_mutex);
  if (level == abi::kLogWarn) warning = line.data();
  static const bool verbose = getenv("NCCL_DEBUG") != nullptr;
  if (verbose && (subsystems & abi::kLogShown) != 0) std::fprintf(stderr, "%s\n", line.data());
}

abi::Result profile(void**, int, void*, std::int64_t, void*) { return abi::kSuccess; }

const char* name_of(abi::Result result) {
  constexpr std::array kNames = {"ncclSuccess",       "ncclUnhandledCudaError", "ncclSystemError",
                                 "ncclInternalError", "ncclInvalidArgument",    "ncclInvalidUsage",
                                 "ncclRemoteError",   "ncclInProgress"};
  const auto at = static_cast<std::size_t>(result);
  return at < kNames.size() ? kNames[at] : "no code of NCCL's";
}

template <class Net>
class Table final : public Network {
 public:
  Table(void* library, int version, const Net& net)
      : Network(library, version, net.name,
                {net.devices, net.accept, net.regMr, net.deregMr, net.isend, net.irecv, net.test,
                 net.closeSend, net.closeRecv, net.closeListen}),
        net_(net) {}

  // NCCL's configuration is a variable of the function that calls: gone when the call is over.
  Status init(void** ctx) override {
    *ctx = nullptr;
    abi::CommConfig config{-1};
    Status done = call("init", [&] {
      if constexpr (kHasContext) return net_.init(ctx, 1, &config, take_line, profile);
      if constexpr (!kHasContext) return net_.init(take_line, profile);
    });
    const_cast<volatile int&>(config.trafficClass) = 0x5A5A5A5A;
    return done;
  }

  Status finalize(void* ctx) override {
    if constexpr (kHasContext) return call("finalize", [&] { return net_.finalize(ctx); });
    return {};
  }

  Result<Properties> properties(int device) override {
    PropertiesOf given;
    std::memset(static_cast<void*>(&given), 0xA5, sizeof given);
    const Status done = call("getProperties", [&] { return net_.getProperties(device, &given); });
    if (!done.ok()) return done;
    Properties seen;
    seen.name = given.name;
    seen.pci = given.pciPath == nullptr ? "" : given.pciPath;
    seen.guid = given.guid;
    seen.pointers = given.ptrSupport;
    seen.mbits = given.speed;
    seen.latency = given.latency;
    seen.max_comms = given.maxComms;
    seen.max_receives = given.maxRecvs;
    seen.device_type = given.netDeviceType;
    seen.virtual_devices = given.vProps.ndevs;
    seen.first_virtual_device = given.vProps.devs[0];
    seen.max_virtual_devices = static_cast<int>(std::size(given.vProps.devs));
    seen.max_bytes = given.maxP2pBytes;
    seen.max_collective_bytes = given.maxCollBytes;
    if constexpr (requires { given.maxMultiRequestSize; }) {
      seen.max_multi_requests = given.maxMultiRequestSize;
    }
    return seen;
  }

  Result<void*> listen(void* ctx, int device, void* handle) override {
    void* comm = this;
    const Status done = call("listen", [&] {
      if constexpr (kHasContext)
        return net_.listen(ctx, device, handle, &comm);
      else
        return net_.listen(device, handle, &comm);
    });
    if (!done.ok()) return done;
    return comm;
  }

  // The device handle is null, as where no kernel of a GPU drives the network.
  Result<void*> connect(void* ctx, int device, void* handle) override {
    void* comm = nullptr;
    const Status done = call("connect", [&] {
      if constexpr (kHasContext) {
        return net_.connect(ctx, device, handle, &comm, nullptr);
      } else {
        abi::CommConfig config{-1};
        return net_.connect(device, &config, handle, &comm, nullptr);
      }
    });
    if (!done.ok()) return done;
    return comm;
  }

 private:
  static constexpr bool kHasContext = requires(const Net& net) { net.finalize; };
  template <class Device>
  static Device properties_of(abi::Result (*)(int, Device*));
  using PropertiesOf = decltype(properties_of(std::declval<Net>().getProperties));

  const Net& net_;
};

template <class Net>
std::unique_ptr<Network> table_in(void* library, int version) {
  const std::string symbol = "ncclNetPlugin_v" + std::to_string(version);
  const auto* const net = static_cast<const Net*>(dlsym(library, symbol.c_str()));
  if (net == nullptr) return nullptr;
  return std::make_unique<Table<Net>>(library, version, *net);
}

}  // namespace

Result<std::unique_ptr<Network>> Network::load(const std::string& path, int version) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return taco::invalid(path + " cannot be loaded: " + dlerror());
  const auto wants = [&](int one) { return version == 0 || version == one; };
  std::unique_ptr<Network> found;
  if (wants(12)) found = table_in<abi::v12::Net>(library, 12);
  if (!found && wants(11)) found = table_in<abi::v11::Net>(library, 11);
  if (!found && wants(10)) found = table_in<abi::v10::Net>(library, 10);
  if (found) return found;
  dlclose(library);
  const std::string which = version == 0 ? "v10, v11 or v12" : "v" + std::to_string(version);
  return taco::invalid(path + " has no table ncclNetPlugin_" + which);
}

Status Network::call(const char* name, const std::function<abi::Result()>& function) {
  const taco::Time before = taco::monotonic_now();
  const abi::Result result = function();
  const Duration took = taco::monotonic_now() - before;
  if (took > longest_.load()) {
    longest_ = took;
    slowest_ = name;
  }
  if (result == abi::kSuccess) return {};
  return {Code::kInternal,
          std::string(name) + " gave " + name_of(result) + "; logged: " + last_warning()};
}

Result<int> Network::devices() {
  int count = -1;
  const Status done = call("devices", [&] { return calls_.devices(&count); });
  if (!done.ok()) return done;
  return count;
}

Result<void*> Network::accept(void* listen_comm) {
  void* comm = nullptr;
  const Status done = call("accept", [&] { return calls_.accept(listen_comm, &comm, nullptr); });
  if (!done.ok()) return done;
  return comm;
}

Result<void*> Network::register_memory(void* comm, void* data, std::size_t bytes) {
  void* region = nullptr;
  const Status done =
      call("regMr", [&] { return calls_.regMr(comm, data, bytes, abi::kPointerHost, &region); });
  if (!done.ok()) return done;
  return region;
}

Status Network::deregister(void* comm, void* region) {
  return call("deregMr", [&] { return calls_.deregMr(comm, region); });
}

Result<void*> Network::send(void* comm, const void* data, std::size_t bytes, void* region) {
  void* request = this;  // rubbish, which the plugin has to replace
  const Status done = call("isend", [&] {
    return calls_.isend(comm, const_cast<void*>(data), bytes, 0, region, nullptr, &request);
  });
  if (!done.ok()) return done;
  if (request == this) return Status(Code::kInternal, "isend did not write the request");
  return request;
}

Result<void*> Network::receive(void* comm, void* data, std::size_t bytes, void* region) {
  void* const wish_for_none = reinterpret_cast<void*>(1);
  void* request = wish_for_none;
  int tag = 0;
  const Status done = call("irecv", [&] {
    return calls_.irecv(comm, 1, &data, &bytes, &tag, &region, nullptr, &request);
  });
  if (!done.ok()) return done;
  if (request == wish_for_none) return Status(Code::kInternal, "irecv did not write the request");
  return request;
}

Result<std::optional<std::size_t>> Network::test(void* request) {
  constexpr int kRubbish = 0x5A5A5A5A;
  int done = kRubbish;
  std::array<int, 8> sizes;  // NCCL adds up more than one
  sizes.fill(0);
  const Status tested = call("test", [&] { return calls_.test(request, &done, sizes.data()); });
  if (!tested.ok()) return tested;
  if (done == kRubbish) return Status(Code::kInternal, "test did not write whether it is done");
  for (std::size_t i = 1; i < sizes.size(); ++i) {
    if (sizes[i] != 0) return Status(Code::kInternal, "test wrote more sizes than there are");
  }
  if (done == 0) return std::optional<std::size_t>();
  return std::optional<std::size_t>(static_cast<std::size_t>(sizes[0]));
}

Status Network::close_send(void* comm) {
  return call("closeSend", [&] { return calls_.closeSend(comm); });
}
Status Network::close_receive(void* comm) {
  return call("closeRecv", [&] { return calls_.closeRecv(comm); });
}
Status Network::close_listen(void* comm) {
  return call("closeListen", [&] { return calls_.closeListen(comm); });
}

Result<bool> Network::unload() {
  link_map* map = nullptr;
  const bool known = dlinfo(library_, RTLD_DI_LINKMAP, &map) == 0;
  const std::string path = known ? map->l_name : "";
  if (dlclose(library_) != 0) return Status(Code::kInternal, std::string("dlclose: ") + dlerror());
  void* const kept = dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (kept != nullptr) dlclose(kept);
  return kept == nullptr;
}

std::string Network::slowest_call() const { return slowest_.load(); }

std::string Network::last_warning() {
  std::lock_guard lock(warning_mutex);
  return warning.empty() ? "nothing" : warning;
}

}  // namespace harp::nccl::check
