#include "ext/nccl/device.h"

#include <string_view>
#include <utility>

#include "ext/nccl/handle.h"

namespace harp::nccl {
namespace {

// Ends outside the lock: a thread is joined by that, or transfers are given up.
template <class Key, class Value>
Value take(std::mutex& mutex, std::map<Key, Value>& all, Key key) {
  std::lock_guard lock(mutex);
  const auto known = all.find(key);
  if (known == all.end()) return nullptr;
  Value taken = std::move(known->second);
  all.erase(known);
  return taken;
}

}  // namespace

Result<std::unique_ptr<Device>> Device::open() {
  auto endpoint = Endpoint::open();
  if (!endpoint.ok()) return endpoint.status();
  return std::unique_ptr<Device>(new Device(std::move(endpoint).value()));
}

Device::Device(Endpoint endpoint)
    : endpoint_(std::move(endpoint)), links_(links_of(endpoint_.interfaces())) {}

// The Endpoint outlives what was made with it.
Device::~Device() {
  dialers_.clear();
  comms_.clear();
  listeners_.clear();
  endpoint_.close();
}

bool Device::idle() const {
  std::lock_guard lock(mutex_);
  return listeners_.empty() && comms_.empty() && dialers_.empty();
}

Result<Listener*> Device::listen(void* handle) {
  auto made = endpoint_.listen();
  if (!made.ok()) return made.status();
  auto owned = std::make_unique<Listener>(std::move(made).value());
  Listener* const listener = owned.get();
  write_handle(handle_for(listener->ticket()), handle);
  std::lock_guard lock(mutex_);
  listeners_.emplace(listener, std::move(owned));
  return listener;
}

Result<Comm*> Device::connect(void* handle) {
  const auto met = dial(handle);
  if (met.ok()) return keep(met.value(), Direction::kSend);
  if (met.status().code() == taco::Code::kTimeout) return static_cast<Comm*>(nullptr);
  return met.status();
}

// The handle says from the first call on which dialer is on its way.
Result<Meeting> Device::dial(void* handle) {
  Handle known = read_handle(handle);
  TACO_RETURN_IF_ERROR(check(known));
  std::shared_ptr<Dialer> dialer;
  if (known.dialer == 0) {
    auto made = endpoint_.dial(std::string_view(known.ticket.data(), known.ticket.size()));
    if (!made.ok()) return made.status();
    dialer = std::make_shared<Dialer>(std::move(made).value());
    std::lock_guard lock(mutex_);
    known.dialer = ++last_dialer_;
    dialers_.emplace(known.dialer, dialer);
    write_handle(known, handle);
  } else {
    std::lock_guard lock(mutex_);
    const auto found = dialers_.find(known.dialer);
    if (found == dialers_.end()) return taco::invalid("nobody is on the way with this handle");
    dialer = found->second;
  }
  auto met = dialer->wait(0);
  if (!met.ok() && met.status().code() == taco::Code::kTimeout) return met;
  take(mutex_, dialers_, known.dialer);
  known.dialer = 0;
  write_handle(known, handle);
  return met;
}

Result<Comm*> Device::accept(Listener* listener) {
  const auto met = listener->accept(0);
  if (met.ok()) return keep(met.value(), Direction::kReceive);
  if (met.status().code() == taco::Code::kTimeout) return static_cast<Comm*>(nullptr);
  return met.status();
}

Comm* Device::keep(const Meeting& meeting, Direction direction) {
  auto owned = std::make_unique<Comm>(endpoint_, meeting, direction);
  Comm* const comm = owned.get();
  std::lock_guard lock(mutex_);
  comms_.emplace(comm, std::move(owned));
  return comm;
}

Status Device::close(Comm* comm) {
  return take(mutex_, comms_, comm) == nullptr ? taco::invalid("this comm is not open") : Status();
}

Status Device::close(Listener* listener) {
  return take(mutex_, listeners_, listener) == nullptr
             ? taco::invalid("this listening comm is not open")
             : Status();
}

}  // namespace harp::nccl
