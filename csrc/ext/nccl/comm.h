// One connection of NCCL's, in one direction: a channel between two processes, and at most
// abi::kMaxRequests requests under way on it.
//
// A request that test() has found done is final: a send's memory is not read again, nor is a
// receive's written. A send is done when the other process has the message, or this one a copy of
// it, as of small ones: the end of the network, or of the program by exit(), waits until the other
// has that, for a second at most.
//
// One thread posts and tests; any other may register memory meanwhile, or take a registration back.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/status.h"
#include "ext/nccl/abi.h"
#include "harp/harp.h"

namespace harp::nccl {

class Comm;

// Memory that NCCL has registered with a Comm.
struct Region {
  void* data;
  std::size_t bytes;
};

struct Request {
  Comm* comm = nullptr;
  const Region* region = nullptr;
  std::optional<Transfer> transfer;  // none: the request is free, or its memory was taken back
  bool in_use = false;
};

enum class Direction { kSend, kReceive };

// The thread that drives the engine of a Comm.
enum class Drives { kWhoTests, kItsThread };

class Comm {
 public:
  Comm(Endpoint& endpoint, const Connection& connection, Direction direction, Drives drives);
  // Gives up what is under way, and drops what has arrived, or still does, and nobody received.
  ~Comm();
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  Region* add(void* data, std::size_t bytes);
  // Requests under way in the region are given up: once this returns, nothing reads or writes it.
  // kInvalidArgument: it is none of this Comm's.
  Status remove(const Region* region);

  // A message of exactly so many bytes, or of at most so many. Null: all requests are under way.
  Result<Request*> post(Direction direction, void* data, std::size_t bytes, const Region* region);
  // The bytes of a message that is there, after which the request is free; nothing: not yet.
  Result<std::optional<std::size_t>> test(Request& request);

 private:
  Request* free_request();
  Result<std::optional<std::size_t>> outcome(Request& request);
  Status failed(Status why);

  Endpoint& endpoint_;
  const Connection connection_;
  const Direction direction_;
  const Drives drives_;
  std::mutex mutex_;  // guards all below
  std::vector<std::unique_ptr<Region>> regions_;
  std::array<Request, abi::kMaxRequests> requests_;
  std::size_t next_ = 0;  // where a free request is looked for first
  Status failure_;        // the first one, by which the connection has ended
};

}  // namespace harp::nccl
