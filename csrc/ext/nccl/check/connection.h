// Connections by a network as NCCL's proxies have them: made without waiting, fed with requests, as
// many as there may be, and taken down in NCCL's order.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ext/nccl/check/fellows.h"
#include "ext/nccl/check/network.h"

namespace harp::nccl::check {

// Memory as NCCL's: of pages of its own.
class Buffer {
 public:
  explicit Buffer(std::size_t bytes);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::byte* data() const { return data_; }
  std::size_t size() const { return bytes_; }
  // A pattern that says which message it is, and that another one's does not look like.
  void fill(std::size_t at, std::size_t bytes, unsigned seed);
  // kMismatch: where it is not that pattern.
  Status expect(std::size_t at, std::size_t bytes, unsigned seed) const;

 private:
  std::byte* data_;
  std::size_t bytes_;
};

// Memory that is registered with a comm until end(), or until this object ends. A check that fails
// leaves requests under way, so theirs is taken back before it goes: this is made after it, and has
// ended before its comm is closed.
class Registered {
 public:
  static Result<Registered> with(Network& network, void* comm, void* data, std::size_t bytes);
  Registered(Registered&& other) noexcept
      : network_(other.network_),
        comm_(other.comm_),
        region_(std::exchange(other.region_, std::nullopt)) {}
  Registered& operator=(Registered&&) = delete;
  ~Registered() { static_cast<void>(end()); }

  void* region() const { return *region_; }
  Status end();  // idempotent

 private:
  Registered(Network& network, void* comm, void* region)
      : network_(&network), comm_(comm), region_(region) {}

  Network* network_;
  void* comm_;
  std::optional<void*> region_;  // none: it has ended
};

// To the next of the fellows and from the one before; a process alone has one with itself.
struct Ring {
  void* send = nullptr;
  void* receive = nullptr;
};

Result<Ring> open_ring(Network& network, void* context, Fellows& fellows);
// The end of that, for one who listens and has the next one's handle: until both comms are there.
Status connect_ring(Network& network, void* context, void* listening, std::string& next,
                    taco::Time deadline, Ring& ring);
Status close_ring(Network& network, const Ring& ring);

// A message that is sent or received until it is done; asks again where the network said "not now".
Result<std::size_t> finish(Network& network, void* request, taco::Time deadline);
Result<void*> send_soon(Network& network, void* comm, const void* data, std::size_t bytes,
                        void* region, taco::Time deadline);
Result<void*> receive_soon(Network& network, void* comm, void* data, std::size_t bytes,
                           void* region, taco::Time deadline);

}  // namespace harp::nccl::check
