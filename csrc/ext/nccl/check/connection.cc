#include "ext/nccl/check/connection.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>

namespace harp::nccl::check {
namespace {

using taco::Code;

Status late(const char* what, const Network& network) {
  return {Code::kTimeout, std::string("no ") + what +
                              " in time; the plugin has logged: " + Network::last_warning() +
                              "; the slowest call so far was " + network.slowest_call()};
}

// Not 4,096's neighbour: a message that lies a page off looks wrong.
std::byte pattern(std::size_t at, unsigned seed) {
  return static_cast<std::byte>((at * 2'654'435'761u + seed * 97u) >> 13);
}

}  // namespace

Buffer::Buffer(std::size_t bytes) : bytes_(bytes) {
  constexpr std::size_t kPage = 4096;
  const std::size_t whole = (std::max<std::size_t>(bytes, 1) + kPage - 1) / kPage * kPage;
  data_ = static_cast<std::byte*>(aligned_alloc(kPage, whole));
  std::memset(data_, 0xEE, whole);
}

Buffer::~Buffer() { free(data_); }

void Buffer::fill(std::size_t at, std::size_t bytes, unsigned seed) {
  for (std::size_t i = 0; i < bytes; ++i) data_[at + i] = pattern(i, seed);
}

Status Buffer::expect(std::size_t at, std::size_t bytes, unsigned seed) const {
  for (std::size_t i = 0; i < bytes; ++i) {
    if (data_[at + i] == pattern(i, seed)) continue;
    return {Code::kMismatch,
            "byte " + std::to_string(i) + " of " + std::to_string(bytes) + " is not what was sent"};
  }
  return {};
}

Result<Registered> Registered::with(Network& network, void* comm, void* data, std::size_t bytes) {
  const auto region = network.register_memory(comm, data, bytes);
  if (!region.ok()) return region.status();
  return Registered(network, comm, region.value());
}

Status Registered::end() {
  if (!region_) return {};
  return network_->deregister(comm_, *std::exchange(region_, std::nullopt));
}

Result<Ring> open_ring(Network& network, void* context, Fellows& fellows) {
  std::string handle(abi::kHandleBytes, '\x5A');
  const auto listening = network.listen(context, 0, handle.data());
  if (!listening.ok()) return listening.status();
  const auto handles = fellows.all_gather(handle);
  if (!handles.ok()) return handles.status();
  std::string next = handles.value()[static_cast<std::size_t>(fellows.next())];
  Ring ring;
  TACO_RETURN_IF_ERROR(
      connect_ring(network, context, listening.value(), next, fellows.deadline(), ring));
  return ring;
}

Status connect_ring(Network& network, void* context, void* listening, std::string& next,
                    taco::Time deadline, Ring& ring) {
  while (ring.send == nullptr || ring.receive == nullptr) {
    if (ring.send == nullptr) {
      const auto connected = network.connect(context, 0, next.data());
      if (!connected.ok()) return connected.status();
      ring.send = connected.value();
    }
    if (ring.receive == nullptr) {
      const auto accepted = network.accept(listening);
      if (!accepted.ok()) return accepted.status();
      ring.receive = accepted.value();
      if (ring.receive != nullptr) TACO_RETURN_IF_ERROR(network.close_listen(listening));
    }
    if (taco::monotonic_now() > deadline) return late("connection", network);
    std::this_thread::yield();
  }
  return {};
}

Status close_ring(Network& network, const Ring& ring) {
  TACO_RETURN_IF_ERROR(network.close_send(ring.send));
  return network.close_receive(ring.receive);
}

Result<std::size_t> finish(Network& network, void* request, taco::Time deadline) {
  for (;;) {
    const auto bytes = network.test(request);
    if (!bytes.ok()) return bytes.status();
    if (bytes.value()) return *bytes.value();
    if (taco::monotonic_now() > deadline) return late("end of a request", network);
  }
}

Result<void*> send_soon(Network& network, void* comm, const void* data, std::size_t bytes,
                        void* region, taco::Time deadline) {
  for (;;) {
    auto request = network.send(comm, data, bytes, region);
    if (!request.ok() || request.value() != nullptr) return request;
    if (taco::monotonic_now() > deadline) return late("room for a send", network);
  }
}

Result<void*> receive_soon(Network& network, void* comm, void* data, std::size_t bytes,
                           void* region, taco::Time deadline) {
  for (;;) {
    auto request = network.receive(comm, data, bytes, region);
    if (!request.ok() || request.value() != nullptr) return request;
    if (taco::monotonic_now() > deadline) return late("room for a receive", network);
  }
}

}  // namespace harp::nccl::check
