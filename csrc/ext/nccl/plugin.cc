// The tables by which NCCL calls HARP: ncclNetPlugin_v10, _v11 and _v12. They differ in a few
// signatures; behind them is one Device, for as long as anybody in this process uses the network.
//
// NCCL's threads call at the same time, on different comms. No call waits for another process, and
// whatever a call gives back is written in any case: NCCL leaves it uninitialised.
#include <cstdio>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "base/per_process.h"
#include "ext/nccl/abi.h"
#include "ext/nccl/abi_v10.h"
#include "ext/nccl/abi_v11.h"
#include "ext/nccl/abi_v12.h"
#include "ext/nccl/comm.h"
#include "ext/nccl/device.h"
#include "ext/nccl/logging.h"

namespace harp::nccl {
namespace {

using abi::DeviceHandle;

char device_name[] = "harp0";
// NCCL's own guess where a link does not say.
constexpr int kMbitsOfUnknownLinks = 10'000;
constexpr int kMaxComms = 65'536;

struct Network {
  std::mutex mutex;  // guards the rest
  // The users: communicators that have an end, and one for all of version 10.
  std::set<Owner> owners;
  Owner last_owner = kNobody;
  bool used_by_v10 = false;
  std::unique_ptr<Device> device;  // while there are users
};

constinit taco::PerProcess<Network> the_network;

// The end of the program, or dlclose(), which is all that version 10 knows of an end. Comms that
// are open then are in use by threads of NCCL's, which the program leaves running: they and the
// kernel end together, but what was sent arrives.
struct EndOfProgram {
  ~EndOfProgram() {
    Network& network = the_network();
    std::lock_guard lock(network.mutex);
    if (network.device == nullptr) return;
    if (network.owners.empty() && network.device->idle()) {
      network.device.reset();
    } else {
      network.device->flush();
    }
  }
};

// NCCL's pointer to a context is the number of its owner: it points to nothing.
Owner owner_of(void* context) { return reinterpret_cast<Owner>(context); }

Status use(Network& network) {
  if (network.device != nullptr) return {};
  auto opened = Device::open();
  if (!opened.ok()) return opened.status();
  network.device = std::move(opened).value();
  log_info("HARP sends by " + network.device->transport());
  // Made after all that HARP needs: what was made last ends first.
  static const EndOfProgram end;
  return {};
}

Result<Device*> device() {
  Network& network = the_network();
  std::lock_guard lock(network.mutex);
  if (network.device == nullptr) return taco::invalid("the network is not initialised");
  return network.device.get();
}

Result<Device*> device(int number) {
  auto opened = device();
  if (!opened.ok() || number == 0) return opened;
  return taco::invalid("there is no device " + std::to_string(number) + ": HARP's only one is 0");
}

abi::Result devices(int* ndev) {
  *ndev = 1;
  return abi::kSuccess;
}

template <class Properties>
abi::Result get_properties(int dev, Properties* props) {
  *props = {};
  const auto opened = device(dev);
  if (!opened.ok()) return fail("getProperties", opened.status());
  const Links& links = opened.value()->links();
  props->name = device_name;
  props->pciPath = links.pci.empty() ? nullptr : const_cast<char*>(links.pci.c_str());
  props->guid = links.number;
  props->ptrSupport = abi::kPointerHost;
  props->speed = links.mbits > 0 ? links.mbits : kMbitsOfUnknownLinks;
  props->maxComms = kMaxComms;
  props->maxRecvs = 1;
  props->vProps.ndevs = 1;
  props->maxP2pBytes = kMaxMessageBytes;
  props->maxCollBytes = kMaxMessageBytes;
  if constexpr (requires { props->maxMultiRequestSize; }) props->maxMultiRequestSize = 1;
  if constexpr (requires { props->railId; }) props->railId = props->planeId = -1;
  return abi::kSuccess;
}

abi::Result init_v10(abi::Logger logger, abi::ProfilerCallback) {
  log_by(logger);
  Network& network = the_network();
  std::lock_guard lock(network.mutex);
  if (network.used_by_v10) return abi::kSuccess;
  const Status used = use(network);
  if (!used.ok()) return fail("init", used);
  network.used_by_v10 = true;
  return abi::kSuccess;
}

abi::Result init(void** ctx, std::uint64_t, abi::CommConfig*, abi::Logger logger,
                 abi::ProfilerCallback) {
  *ctx = nullptr;
  log_by(logger);
  Network& network = the_network();
  std::lock_guard lock(network.mutex);
  const Status used = use(network);
  if (!used.ok()) return fail("init", used);
  network.owners.insert(++network.last_owner);
  *ctx = reinterpret_cast<void*>(network.last_owner);
  return abi::kSuccess;
}

// NCCL finalizes what it failed to initialise, too.
abi::Result finalize(void* ctx) {
  if (ctx == nullptr) return abi::kSuccess;
  Network& network = the_network();
  std::lock_guard lock(network.mutex);
  if (network.owners.erase(owner_of(ctx)) == 0) return abi::kSuccess;
  network.device->close_all_of(owner_of(ctx));
  if (network.owners.empty() && !network.used_by_v10) network.device.reset();
  return abi::kSuccess;
}

abi::Result listen_by_context(void* ctx, int dev, void* handle, void** listen_comm) {
  *listen_comm = nullptr;
  const auto opened = device(dev);
  if (!opened.ok()) return fail("listen", opened.status());
  const auto made = opened.value()->listen(owner_of(ctx), handle);
  if (!made.ok()) return fail("listen", made.status());
  *listen_comm = made.value();
  return abi::kSuccess;
}

abi::Result connect_by_context(void* ctx, int dev, void* handle, void** send_comm,
                               DeviceHandle** send_dev_comm) {
  *send_comm = nullptr;
  if (send_dev_comm != nullptr) *send_dev_comm = nullptr;
  const auto opened = device(dev);
  if (!opened.ok()) return fail("connect", opened.status());
  const auto made = opened.value()->connect(owner_of(ctx), handle);
  if (!made.ok()) return fail("connect", made.status());
  *send_comm = made.value();
  return abi::kSuccess;
}

abi::Result accept(void* listen_comm, void** recv_comm, DeviceHandle** recv_dev_comm) {
  *recv_comm = nullptr;
  if (recv_dev_comm != nullptr) *recv_dev_comm = nullptr;
  const auto opened = device();
  if (!opened.ok()) return fail("accept", opened.status());
  const auto made = opened.value()->accept(static_cast<Listening*>(listen_comm));
  if (!made.ok()) return fail("accept", made.status());
  *recv_comm = made.value();
  return abi::kSuccess;
}

abi::Result reg_mr(void* comm, void* data, std::size_t size, int type, void** mhandle) {
  *mhandle = nullptr;
  if (type != abi::kPointerHost) {
    return fail("regMr", Status(taco::Code::kUnsupported,
                                "memory of kind " + std::to_string(type) +
                                    ": HARP sends from the host's memory (1), by way of which "
                                    "NCCL sends what a GPU has"));
  }
  *mhandle = static_cast<Comm*>(comm)->add(data, size);
  return abi::kSuccess;
}

abi::Result reg_mr_dma_buf(void*, void*, std::size_t, int, std::uint64_t, int, void** mhandle) {
  *mhandle = nullptr;
  return fail("regMrDmaBuf", Status(taco::Code::kUnsupported,
                                    "HARP sends from the host's memory, not by dma-buf"));
}

abi::Result dereg_mr(void* comm, void* mhandle) {
  const Status removed = static_cast<Comm*>(comm)->remove(static_cast<const Region*>(mhandle));
  return removed.ok() ? abi::kSuccess : fail("deregMr", removed);
}

abi::Result post(const char* call, void* comm, Direction direction, void* data, std::size_t size,
                 void* mhandle, void** request) {
  const auto posted =
      static_cast<Comm*>(comm)->post(direction, data, size, static_cast<const Region*>(mhandle));
  if (!posted.ok()) return fail(call, posted.status());
  *request = posted.value();
  return abi::kSuccess;
}

abi::Result isend(void* send_comm, void* data, std::size_t size, int, void* mhandle, void*,
                  void** request) {
  *request = nullptr;
  return post("isend", send_comm, Direction::kSend, data, size, mhandle, request);
}

// *request may come in as a wish to be told of nothing, which nobody has to grant.
abi::Result irecv(void* recv_comm, int n, void** data, std::size_t* sizes, int*, void** mhandles,
                  void**, void** request) {
  *request = nullptr;
  if (n != 1) {
    return fail("irecv", taco::invalid(std::to_string(n) + " receives in one request: HARP said "
                                                           "that it takes one"));
  }
  return post("irecv", recv_comm, Direction::kReceive, data[0], sizes[0],
              mhandles == nullptr ? nullptr : mhandles[0], request);
}

abi::Result iflush(void*, int, void**, int*, void**, void** request) {
  *request = nullptr;
  return fail("iflush", Status(taco::Code::kUnsupported,
                               "what has arrived in the host's memory needs no flush"));
}

abi::Result test(void* request, int* done, int* sizes) {
  *done = 0;
  auto& asked = *static_cast<Request*>(request);
  const auto bytes = asked.comm->test(asked);
  if (!bytes.ok()) return fail("test", bytes.status());
  if (!bytes.value()) return abi::kSuccess;
  if (sizes != nullptr) *sizes = static_cast<int>(*bytes.value());
  *done = 1;
  return abi::kSuccess;
}

template <class Closed>
abi::Result close(const char* call, void* comm) {
  const auto opened = device();
  Status closed = opened.status();
  if (closed.ok()) closed = opened.value()->close(static_cast<Closed*>(comm));
  return closed.ok() ? abi::kSuccess : fail(call, closed);
}

abi::Result close_send(void* comm) { return close<Comm>("closeSend", comm); }
abi::Result close_recv(void* comm) { return close<Comm>("closeRecv", comm); }
abi::Result close_listen(void* comm) { return close<Listening>("closeListen", comm); }

abi::Result listen_v10(int dev, void* handle, void** listen_comm) {
  return listen_by_context(nullptr, dev, handle, listen_comm);
}
abi::Result connect_v10(int dev, abi::CommConfig*, void* handle, void** send_comm,
                        DeviceHandle** send_dev_comm) {
  return connect_by_context(nullptr, dev, handle, send_comm, send_dev_comm);
}

// The functions that have the same signature in every version.
template <class Net>
constexpr Net common_table() {
  Net net{};
  net.name = "HARP";
  net.devices = devices;
  net.getProperties = get_properties;
  net.accept = accept;
  net.regMr = reg_mr;
  net.regMrDmaBuf = reg_mr_dma_buf;
  net.deregMr = dereg_mr;
  net.isend = isend;
  net.irecv = irecv;
  net.iflush = iflush;
  net.test = test;
  net.closeSend = close_send;
  net.closeRecv = close_recv;
  net.closeListen = close_listen;
  return net;
}

template <class Net>
constexpr Net table_by_context() {
  Net net = common_table<Net>();
  net.init = init;
  net.listen = listen_by_context;
  net.connect = connect_by_context;
  net.finalize = finalize;
  return net;
}

constexpr abi::v10::Net table_v10() {
  auto net = common_table<abi::v10::Net>();
  net.init = init_v10;
  net.listen = listen_v10;
  net.connect = connect_v10;
  return net;
}

}  // namespace
}  // namespace harp::nccl

#define HARP_EXPORT extern "C" __attribute__((visibility("default")))
// NOLINTBEGIN(readability-identifier-naming): these are the names that NCCL looks for.

HARP_EXPORT constinit const harp::nccl::abi::v10::Net ncclNetPlugin_v10 = harp::nccl::table_v10();
HARP_EXPORT constinit const harp::nccl::abi::v11::Net ncclNetPlugin_v11 =
    harp::nccl::table_by_context<harp::nccl::abi::v11::Net>();
HARP_EXPORT constinit const harp::nccl::abi::v12::Net ncclNetPlugin_v12 =
    harp::nccl::table_by_context<harp::nccl::abi::v12::Net>();
// NOLINTEND(readability-identifier-naming)
