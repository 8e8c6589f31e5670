// A network plugin as NCCL sees it: a shared object with a table of functions, whichever version.
// It is called the way NCCL calls it, and distrusted: whatever a function must write is filled with
// rubbish before, each call's time is taken, and a failure tells the call, its code, and what the
// plugin had logged.
//
// One object is one loaded plugin. Calls by several threads are as good as the plugin is.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "ext/nccl/abi.h"

namespace harp::nccl::check {

using taco::Duration;
using taco::Result;
using taco::Status;

// The properties that all versions have.
struct Properties {
  std::string name;
  std::string pci;
  std::uint64_t guid = 0;
  int pointers = 0;
  int mbits = 0;
  float latency = 0;
  int max_comms = 0;
  int max_receives = 0;
  int device_type = 0;
  int virtual_devices = 0, first_virtual_device = 0;
  int max_virtual_devices = 0;  // that the table has room for
  std::size_t max_bytes = 0, max_collective_bytes = 0;
  std::optional<int> max_multi_requests;
};

class Network {
 public:
  // The table's version, or 0: the newest that the plugin has.
  static Result<std::unique_ptr<Network>> load(const std::string& path, int version);
  virtual ~Network() = default;

  int version() const { return version_; }
  std::string name() const { return name_; }

  // For one communicator; its context is kept in `ctx`. Version 10 has no end.
  virtual Status init(void** ctx) = 0;
  virtual Status finalize(void* ctx) = 0;
  virtual Result<Properties> properties(int device) = 0;
  virtual Result<void*> listen(void* ctx, int device, void* handle) = 0;
  virtual Result<void*> connect(void* ctx, int device, void* handle) = 0;  // null: not yet

  Result<int> devices();
  Result<void*> accept(void* listen_comm);  // null: not yet
  Result<void*> register_memory(void* comm, void* data, std::size_t bytes);
  Status deregister(void* comm, void* region);
  // The memory of the request is given to `request`, as a proxy does: null, or the wish for none.
  // Null: not now.
  Result<void*> send(void* comm, const void* data, std::size_t bytes, void* region);
  Result<void*> receive(void* comm, void* data, std::size_t bytes, void* region);
  // The bytes of the request, once it is done.
  Result<std::optional<std::size_t>> test(void* request);
  Status close_send(void* comm);
  Status close_receive(void* comm);
  Status close_listen(void* comm);
  // Takes the plugin out of the process, as NCCL does after the last communicator. False: the
  // system keeps it, since a thread has still to end something of it.
  Result<bool> unload();

  // The longest that any call took, and its name.
  std::string slowest_call() const;
  Duration longest_call() const { return longest_.load(); }
  // The last warning of the plugin's.
  static std::string last_warning();

 protected:
  struct Calls {
    abi::Devices devices;
    abi::Accept accept;
    abi::RegMr regMr;
    abi::DeregMr deregMr;
    abi::Isend isend;
    abi::Irecv irecv;
    abi::Test test;
    abi::Close closeSend, closeRecv, closeListen;
  };

  Network(void* library, int version, std::string name, const Calls& calls)
      : library_(library), version_(version), name_(std::move(name)), calls_(calls) {}
  // Takes its time.
  Status call(const char* name, const std::function<abi::Result()>& function);

 private:
  void* library_;
  const int version_;
  const std::string name_;
  const Calls calls_;
  std::atomic<Duration> longest_{0};
  std::atomic<const char*> slowest_{""};
};

}  // namespace harp::nccl::check
