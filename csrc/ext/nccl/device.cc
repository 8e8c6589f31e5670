#include "ext/nccl/device.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "ext/nccl/handle.h"

namespace harp::nccl {
namespace {

// Things that are taken end outside the lock: a thread is joined by that, or transfers given up.
template <class Key, class Value>
Value take(std::mutex& mutex, std::map<Key, Value>& all, Key key) {
  std::lock_guard lock(mutex);
  const auto known = all.find(key);
  if (known == all.end()) return {};
  Value taken = std::move(known->second);
  all.erase(known);
  return taken;
}

template <class Key, class Value, class Is>
std::vector<Value> take_all(std::mutex& mutex, std::map<Key, Value>& all, const Is& is_taken) {
  std::vector<Value> taken;
  std::lock_guard lock(mutex);
  for (auto each = all.begin(); each != all.end();) {
    if (!is_taken(each->second)) {
      ++each;
      continue;
    }
    taken.push_back(std::move(each->second));
    each = all.erase(each);
  }
  return taken;
}

}  // namespace

Result<std::unique_ptr<Device>> Device::open(taco::Duration round) {
  const auto engines = harp::engines();
  if (!engines.ok()) return engines.status();
  std::vector<Endpoint> endpoints;
  for (int engine = 0; engine < engines.value(); ++engine) {
    auto endpoint = Endpoint::open({.engine = engine});
    if (!endpoint.ok()) return endpoint.status();
    endpoints.push_back(std::move(endpoint).value());
  }
  return std::unique_ptr<Device>(new Device(std::move(endpoints), round));
}

Device::Device(std::vector<Endpoint> endpoints, taco::Duration round)
    : endpoints_(std::move(endpoints)),
      links_(links_of(endpoints_.front().interfaces())),
      round_(round) {}

// The Endpoints outlive what was made with them.
Device::~Device() {
  dialings_.clear();
  comms_.clear();
  listenings_.clear();
  for (Endpoint& endpoint : endpoints_) endpoint.close();
}

bool Device::idle() const {
  std::lock_guard lock(mutex_);
  return listenings_.empty() && comms_.empty() && dialings_.empty();
}

void Device::flush() {
  const taco::Time limit = taco::monotonic_now() + taco::kSecond;
  for (Endpoint& endpoint : endpoints_) {
    endpoint.flush(std::max<taco::Duration>(0, limit - taco::monotonic_now()));
  }
}

Endpoint& Device::next(std::size_t* turn) {
  std::lock_guard lock(mutex_);
  return endpoints_[(*turn)++ % endpoints_.size()];
}

Result<Listening*> Device::listen(Owner owner, void* handle) {
  end_given_up();
  Endpoint& endpoint = next(&listens_);
  auto made = endpoint.listen();
  if (!made.ok()) return made.status();
  std::unique_ptr<Listening> owned(new Listening{owner, endpoint, std::move(made).value()});
  Listening* const listening = owned.get();
  write_handle(handle_for(listening->listener.ticket()), handle);
  std::lock_guard lock(mutex_);
  listenings_.emplace(listening, std::move(owned));
  return listening;
}

Result<Comm*> Device::connect(Owner owner, void* handle) {
  end_given_up();
  const auto dialing = dial(owner, handle);
  if (!dialing.ok()) return dialing.status();
  const auto connected = dialing.value()->dialer.wait(0);
  if (!connected.ok() && connected.status().code() == taco::Code::kTimeout)
    return static_cast<Comm*>(nullptr);
  Handle known = read_handle(handle);
  take(mutex_, dialings_, known.dialer);
  known.dialer = 0;
  write_handle(known, handle);
  if (!connected.ok()) return connected.status();
  return keep(owner, dialing.value()->endpoint, connected.value(), Direction::kSend);
}

// The handle says from the first call on which dialer is on its way.
Result<std::shared_ptr<Device::Dialing>> Device::dial(Owner owner, void* handle) {
  Handle known = read_handle(handle);
  TACO_RETURN_IF_ERROR(check(known));
  if (known.dialer != 0) {
    std::lock_guard lock(mutex_);
    const auto found = dialings_.find(known.dialer);
    if (found == dialings_.end()) {
      return taco::invalid(
          "nobody is on the way with this handle; a connect that is not asked for in a minute has "
          "been given up, and begins again with the handle as the listener wrote it");
    }
    found->second->rounds = 0;
    return found->second;
  }
  Endpoint& endpoint = next(&dials_);
  auto made = endpoint.dial(std::string_view(known.ticket.data(), known.ticket.size()));
  if (!made.ok()) return made.status();
  std::shared_ptr<Dialing> dialing(new Dialing{owner, endpoint, std::move(made).value()});
  std::lock_guard lock(mutex_);
  known.dialer = ++last_dialing_;
  dialings_.emplace(known.dialer, dialing);
  write_handle(known, handle);
  return dialing;
}

Result<Comm*> Device::accept(Listening* listening) {
  end_given_up();
  const auto accepted = listening->listener.accept(0);
  if (accepted.ok()) {
    return keep(listening->owner, listening->endpoint, accepted.value(), Direction::kReceive);
  }
  if (accepted.status().code() == taco::Code::kTimeout) return static_cast<Comm*>(nullptr);
  return accepted.status();
}

Comm* Device::keep(Owner owner, Endpoint& endpoint, const Connection& connection,
                   Direction direction) {
  const Drives drives = endpoints_.size() == 1 ? Drives::kWhoTests : Drives::kItsThread;
  auto owned = std::make_unique<Comm>(endpoint, connection, direction, drives);
  Comm* const comm = owned.get();
  std::lock_guard lock(mutex_);
  comms_.emplace(comm, OpenComm{owner, std::move(owned)});
  return comm;
}

Status Device::close(Comm* comm) {
  end_given_up();
  return take(mutex_, comms_, comm).comm == nullptr ? taco::invalid("this comm is not open")
                                                    : Status();
}

Status Device::close(Listening* listening) {
  end_given_up();
  return take(mutex_, listenings_, listening) == nullptr
             ? taco::invalid("this listening comm is not open")
             : Status();
}

void Device::close_all_of(Owner owner) {
  const auto is_its = [owner](const auto& each) { return each->owner == owner; };
  take_all(mutex_, dialings_, is_its);
  take_all(mutex_, comms_, [owner](const OpenComm& each) { return each.owner == owner; });
  take_all(mutex_, listenings_, is_its);
}

void Device::end_given_up() {
  const taco::Time now = taco::monotonic_now();
  {
    std::lock_guard lock(mutex_);
    if (now < round_ends_at_) return;
    round_ends_at_ = now + round_;
  }
  take_all(mutex_, dialings_, [](const std::shared_ptr<Dialing>& dialing) {
    return ++dialing->rounds > kRoundsUnasked;
  });
}

}  // namespace harp::nccl
