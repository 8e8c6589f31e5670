// Version 12 of the table, ncclNetPlugin_v12: NCCL 2.30 to 2.32. Version 11 with more devices to a
// virtual one, and two numbers by which a network of several rails names them.
#pragma once

#include "ext/nccl/abi.h"

namespace harp::nccl::abi::v12 {

struct VirtualDevice {
  int ndevs;
  int devs[8];
};

struct Properties {
  char* name;
  char* pciPath;
  std::uint64_t guid;
  int ptrSupport;
  int regIsGlobal;
  int forceFlush;
  int speed;
  int port;
  float latency;
  int maxComms;
  int maxRecvs;
  int netDeviceType;
  int netDeviceVersion;
  VirtualDevice vProps;
  std::size_t maxP2pBytes;
  std::size_t maxCollBytes;
  int maxMultiRequestSize;
  std::int16_t railId;
  std::int16_t planeId;
};
static_assert(offsetof(Properties, vProps) == 64);
static_assert(offsetof(Properties, maxP2pBytes) == 104);
static_assert(offsetof(Properties, railId) == 124);
static_assert(sizeof(Properties) == 128);

struct Net {
  const char* name;
  Result (*init)(void** ctx, std::uint64_t id, CommConfig* config, Logger logger,
                 ProfilerCallback profiler);
  Devices devices;
  Result (*getProperties)(int dev, Properties* props);
  Result (*listen)(void* ctx, int dev, void* handle, void** listen_comm);
  Result (*connect)(void* ctx, int dev, void* handle, void** send_comm,
                    DeviceHandle** send_dev_comm);
  Accept accept;
  RegMr regMr;
  RegMrDmaBuf regMrDmaBuf;
  DeregMr deregMr;
  Isend isend;
  Irecv irecv;
  Iflush iflush;
  Test test;
  Close closeSend;
  Close closeRecv;
  Close closeListen;
  GetDeviceMr getDeviceMr;
  IrecvConsumed irecvConsumed;
  Result (*makeVDevice)(int* d, VirtualDevice* props);
  Result (*finalize)(void* ctx);
  Result (*setNetAttr)(void* ctx, NetAttributes* attributes);
};
static_assert(offsetof(Net, accept) == 6 * sizeof(void*));
static_assert(offsetof(Net, finalize) == 20 * sizeof(void*));
static_assert(sizeof(Net) == 22 * sizeof(void*));

}  // namespace harp::nccl::abi::v12
