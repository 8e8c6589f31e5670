#include "ext/nccl/comm.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

namespace harp::nccl {
namespace {

// By NCCL's protocols LL and LL128 a GPU reads the buffer while the message comes. Nothing says by
// which protocol a message goes; the buffers that NCCL has for these two are aligned.
Read reading_of(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data) % sizeof(std::uint64_t) == 0 ? Read::kMeanwhile
                                                                             : Read::kWhenDone;
}

}  // namespace

Comm::Comm(Endpoint& endpoint, const Connection& connection, Direction direction, Drives drives)
    : endpoint_(endpoint), connection_(connection), direction_(direction), drives_(drives) {
  for (Request& request : requests_) request.comm = this;
}

Comm::~Comm() {
  for (Request& request : requests_) request.transfer.reset();
  endpoint_.disconnect(connection_);
}

Region* Comm::add(void* data, std::size_t bytes) {
  std::lock_guard lock(mutex_);
  return regions_.emplace_back(std::make_unique<Region>(Region{data, bytes})).get();
}

Status Comm::remove(const Region* region) {
  std::lock_guard lock(mutex_);
  const auto known = std::ranges::find(regions_, region, &std::unique_ptr<Region>::get);
  if (known == regions_.end()) return taco::invalid("this memory is not registered with this comm");
  for (Request& request : requests_) {
    if (request.region == region) request.transfer.reset();
  }
  regions_.erase(known);
  return {};
}

Result<Request*> Comm::post(Direction direction, void* data, std::size_t bytes,
                            const Region* region) {
  std::lock_guard lock(mutex_);
  if (direction != direction_) {
    return taco::invalid(direction_ == Direction::kSend ? "this comm is one for sends"
                                                        : "this comm is one for receives");
  }
  if (!failure_.ok()) return failure_;
  Request* const request = free_request();
  if (request == nullptr) return request;
  request->transfer.emplace(direction_ == Direction::kSend
                                ? endpoint_.send(connection_.peer, connection_.channel, data, bytes)
                                : endpoint_.receive(connection_.peer, connection_.channel, data,
                                                    bytes, reading_of(data)));
  request->region = region;
  request->in_use = true;
  return request;
}

Result<std::optional<std::size_t>> Comm::test(Request& request) {
  {
    std::lock_guard lock(mutex_);
    auto done = outcome(request);
    if (!done.ok() || done.value() || drives_ == Drives::kItsThread) return done;
  }
  endpoint_.poll();
  std::lock_guard lock(mutex_);
  return outcome(request);
}

Request* Comm::free_request() {
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    Request& candidate = requests_[next_];
    next_ = (next_ + 1) % requests_.size();
    if (!candidate.in_use) return &candidate;
  }
  return nullptr;
}

Result<std::optional<std::size_t>> Comm::outcome(Request& request) {
  if (!request.in_use) return taco::invalid("this request was found done before");
  if (!request.transfer) {
    return failed(Status(taco::Code::kAborted, "the memory of a request was deregistered"));
  }
  if (!request.transfer->done()) return std::optional<std::size_t>();
  const auto bytes = request.transfer->wait(0);
  if (!bytes.ok()) return failed(bytes.status());
  request.transfer.reset();
  request.region = nullptr;
  request.in_use = false;
  return std::optional<std::size_t>(bytes.value());
}

Status Comm::failed(Status why) {
  if (failure_.ok()) {
    failure_ = why.with_prefix(
        (direction_ == Direction::kSend ? "the connection to " : "the connection from ") +
        endpoint_.describe(connection_.peer) + " has failed: ");
  }
  return failure_;
}

}  // namespace harp::nccl
