// NCCL's network plugins, as NCCL 2.26 to 2.32 call them: what the versions of the table have in
// common. Names of fields are NCCL's, so that they can be looked up there; layouts are asserted.
#pragma once

#include <cstddef>
#include <cstdint>

namespace harp::nccl::abi {

// ncclResult_t
enum Result : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

// ncclDebugLogLevel, and flags of ncclDebugLogSubSys
enum LogLevel : int { kLogWarn = 2, kLogInfo = 3 };
inline constexpr unsigned long kLogInit = 0x1, kLogNet = 0x10;
inline constexpr unsigned long kLogEverything = ~0ul;
// Unless NCCL_DEBUG_SUBSYS says otherwise, NCCL shows lines of these alone: INIT, ENV, BOOTSTRAP.
inline constexpr unsigned long kLogShown = 0x1 | 0x80 | 0x1000;
using Logger = void (*)(LogLevel level, unsigned long subsystems, const char* file, int line,
                        const char* format, ...);

// Events for NCCL's profiler: none are reported.
using ProfilerCallback = Result (*)(void** event, int type, void* parent, std::int64_t plugin,
                                    void* data);

inline constexpr std::size_t kHandleBytes = 128;
inline constexpr std::size_t kMaxRequests = 32;  // under way on a comm, times maxRecvs

// Kinds of memory: of the host, of a GPU, of a GPU by dma-buf.
enum Pointer : int { kPointerHost = 1, kPointerCuda = 2, kPointerDmaBuf = 4 };

// For plugins that a GPU's kernels drive.
struct DeviceHandle {
  int netDeviceType;
  int netDeviceVersion;
  void* handle;
  std::size_t size;
  int needsProxyProgress;
};
static_assert(sizeof(DeviceHandle) == 32);

struct CommConfig {
  int trafficClass;
};
static_assert(sizeof(CommConfig) == 4);

// A communicator tells in advance how it will use the network: from version 11 on.
struct CommAttributes {
  std::int32_t maxConcurrentPeers;
  std::int32_t minConcurrentPeers;
  std::int32_t maxFlowsPerPeer;
  std::int32_t minFlowsPerPeer;
};
struct NetAttributes {
  CommAttributes sendCommAttr;
  CommAttributes recvCommAttr;
  std::uint32_t op;
  std::uint32_t algo;
  std::uint32_t proto;
};
static_assert(sizeof(NetAttributes) == 44);

// Functions that are the same in all three versions of the table.
using Devices = Result (*)(int* ndev);
using Accept = Result (*)(void* listen_comm, void** recv_comm, DeviceHandle** recv_dev_comm);
using RegMr = Result (*)(void* comm, void* data, std::size_t size, int type, void** mhandle);
using RegMrDmaBuf = Result (*)(void* comm, void* data, std::size_t size, int type,
                               std::uint64_t offset, int fd, void** mhandle);
using DeregMr = Result (*)(void* comm, void* mhandle);
using Isend = Result (*)(void* send_comm, void* data, std::size_t size, int tag, void* mhandle,
                         void* phandle, void** request);
using Irecv = Result (*)(void* recv_comm, int n, void** data, std::size_t* sizes, int* tags,
                         void** mhandles, void** phandles, void** request);
using Iflush = Result (*)(void* recv_comm, int n, void** data, int* sizes, void** mhandles,
                          void** request);
using Test = Result (*)(void* request, int* done, int* sizes);
using Close = Result (*)(void* comm);
using GetDeviceMr = Result (*)(void* comm, void* mhandle, void** dptr_mhandle);
using IrecvConsumed = Result (*)(void* recv_comm, int n, void* request);

}  // namespace harp::nccl::abi
