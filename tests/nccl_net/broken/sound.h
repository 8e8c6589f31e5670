// A broken plugin is the sound one with one fault: it hands out a copy of its table of version 11
// with some functions replaced by its own, which call those of the sound one.
#pragma once

#include <dlfcn.h>

#include <cstdlib>

#include "ext/nccl/abi_v11.h"

namespace harp::nccl::broken {

using abi::Result;

inline const abi::v11::Net& sound() {
  static const auto* const table = [] {
    void* const library = dlopen(SOUND_PLUGIN, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) std::abort();
    return static_cast<const abi::v11::Net*>(dlsym(library, "ncclNetPlugin_v11"));
  }();
  return *table;
}

}  // namespace harp::nccl::broken

// BROKEN_PLUGIN(net) { net.test = ...; }
#define BROKEN_PLUGIN(net)                                                                       \
  static harp::nccl::abi::v11::Net broken_table();                                               \
  extern "C" __attribute__((visibility("default"))) harp::nccl::abi::v11::Net ncclNetPlugin_v11; \
  harp::nccl::abi::v11::Net ncclNetPlugin_v11 = broken_table();                                  \
  static void break_table(harp::nccl::abi::v11::Net& net);                                       \
  static harp::nccl::abi::v11::Net broken_table() {                                              \
    harp::nccl::abi::v11::Net net = harp::nccl::broken::sound();                                 \
    break_table(net);                                                                            \
    return net;                                                                                  \
  }                                                                                              \
  static void break_table(harp::nccl::abi::v11::Net& net)
