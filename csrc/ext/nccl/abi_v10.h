// Version 10 of the table, ncclNetPlugin_v10: NCCL 2.26 and 2.27.
#pragma once

#include "ext/nccl/abi.h"

namespace harp::nccl::abi::v10 {

struct VirtualDevice {
  int ndevs;
  int devs[4];
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
};
static_assert(offsetof(Properties, ptrSupport) == 24);
static_assert(offsetof(Properties, vProps) == 64);
static_assert(offsetof(Properties, maxP2pBytes) == 88);
static_assert(sizeof(Properties) == 104);

struct Net {
  const char* name;
  Result (*init)(Logger logger, ProfilerCallback profiler);
  Devices devices;
  Result (*getProperties)(int dev, Properties* props);
  Result (*listen)(int dev, void* handle, void** listen_comm);
  Result (*connect)(int dev, CommConfig* config, void* handle, void** send_comm,
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
};
static_assert(offsetof(Net, accept) == 6 * sizeof(void*));
static_assert(sizeof(Net) == 20 * sizeof(void*));

}  // namespace harp::nccl::abi::v10
