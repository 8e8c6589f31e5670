#include <errno.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "base/far_future.h"
#include "base/file.h"
#include "harp/api/channels.h"
#include "harp/api/endpoint_state.h"
#include "harp/drivers/networks.h"
#include "harp/engine/engine_call.h"
#include "harp/engine/held_stacks.h"

namespace harp {
namespace {

using taco::Time;
using taco::harp::MessageKey;
using taco::harp::StackOptions;

const taco::harp::Member kUser{"harp endpoints", 1, 0};

Result<StackOptions> stack_options(const EndpointOptions& options) {
  auto made = StackOptions::from_env();
  if (!made.ok()) return made;
  made->master = options.towards;
  if (options.engine < 0 || options.engine >= made->engines) {
    return taco::invalid("EndpointOptions::engine is " + std::to_string(options.engine) +
                         ": this process has " + std::to_string(made->engines) +
                         " (TACO_HARP_ENGINES), counted from 0");
  }
  if (!options.driver.empty()) {
    const Status known = taco::harp::network_named(options.driver).status();
    if (!known.ok()) return known;
    made->driver = options.driver;
  }
  if (options.transport.empty()) return made;
  const std::map<std::string, StackOptions::Force> transports = {
      {"auto", StackOptions::Force::kAuto},
      {"shm", StackOptions::Force::kShm},
      {"udp", StackOptions::Force::kUdp}};
  const auto found = transports.find(options.transport);
  if (found == transports.end()) {
    return taco::invalid("EndpointOptions::transport is \"" + options.transport +
                         "\": expected auto, shm or udp");
  }
  made->transport = found->second;
  return made;
}

}  // namespace

Result<int> engines() {
  auto options = StackOptions::from_env();
  if (!options.ok()) return options.status();
  return options->engines;
}

void Endpoint::State::close() {
  if (!is_open.exchange(false)) return;
  if (stack->usable().ok()) {
    taco::harp::call_on_engine(stack->engine(), [&](taco::harp::Transport& transport) {
      const Status why(Code::kAborted, "the endpoint was closed");
      for (OpenTransfer* const each : transfers->list()) each->cancel_st(transport, why);
    });
    std::unique_lock lock(mutex);
    const std::vector<Connection> ended = std::exchange(given, {});
    lock.unlock();  // the engine is waited for
    for (const Connection& each : ended) end_given(each);
    lock.lock();
    for (const Peer peer : std::exchange(peers, {})) stack->release_peer(peer.id);
  }
  taco::harp::drop_stack(stack, kUser);
}

Status Endpoint::State::usable() const {
  if (!is_open) return Status(Code::kAborted, "the endpoint was closed");
  return stack->usable();
}

ChannelOfTwo Endpoint::State::channel_with(Peer peer, std::uint32_t channel) const {
  return {stack->incarnation(), stack->incarnation_of(peer.id), channel};
}

Result<MessageKey> Endpoint::State::next_key(Peer peer, std::uint32_t channel, bool sends) const {
  if (const auto key = channels().next(channel_with(peer, channel), sends)) return *key;
  return taco::invalid(channel_name(peer, channel) + " has ended here: go on with another one");
}

std::string Endpoint::State::channel_name(Peer peer, std::uint32_t channel) const {
  return "channel " + std::to_string(channel) + " with " + stack->describe(peer.id);
}

// Both sides may have listeners: the lowest bit says whose gave it.
std::uint32_t Endpoint::State::give_channel(Peer peer) const {
  const std::uint32_t whose = stack->incarnation() > stack->incarnation_of(peer.id) ? 1 : 0;
  return kFirstGivenChannel | channels().given() << 1 | whose;
}

Result<Peer> Endpoint::State::connect(std::string_view address) {
  TACO_RETURN_IF_ERROR(usable());
  const auto peer = stack->add_peer(address);
  if (!peer.ok()) return peer.status();
  {
    std::lock_guard lock(mutex);
    met.insert(peer.value());
    if (is_open) return peers.emplace_back(Peer{peer.value()});
  }
  stack->release_peer(peer.value());
  return usable();
}

void Endpoint::State::disconnect(Peer peer) {
  if (!stack->usable().ok()) return;  // nor is the mutex, in a forked child
  std::vector<Connection> ended;
  {
    std::lock_guard lock(mutex);
    const auto known = std::ranges::find(peers, peer.id, &Peer::id);
    if (known == peers.end()) return;
    peers.erase(known);
    if (std::ranges::count(peers, peer.id, &Peer::id) == 0) ended = take_given_by(peer);
  }
  for (const Connection& each : ended) end_given(each);
  stack->release_peer(peer.id);
}

// With the mutex.
std::vector<Connection> Endpoint::State::take_given_by(Peer peer) {
  std::vector<Connection> taken;
  std::erase_if(given, [&](const Connection& each) {
    if (each.peer.id != peer.id) return false;
    taken.push_back(each);
    return true;
  });
  return taken;
}

void Endpoint::State::keep(const Connection& connection) {
  std::lock_guard lock(mutex);
  given.push_back(connection);
}

void Endpoint::State::disconnect(const Connection& connection) {
  if (!stack->usable().ok()) return;
  {
    std::lock_guard lock(mutex);
    const auto known = std::ranges::find_if(given, [&](const Connection& each) {
      return each.peer.id == connection.peer.id && each.channel == connection.channel;
    });
    if (known == given.end()) return;
    given.erase(known);
  }
  end_given(connection);
  disconnect(connection.peer);
}

bool Endpoint::State::flush(Duration timeout) {
  constexpr Duration kBetweenLooks = taco::kMillisecond / 4;
  const taco::harp::Event never;
  const Time limit = taco::later(taco::monotonic_now(), timeout);
  while (usable().ok()) {
    if (is_idle(limit)) return true;
    const Time now = taco::monotonic_now();
    if (now >= limit) break;
    stack->engine().wait(never, std::min(limit, now + kBetweenLooks));
  }
  return false;
}

// Whom nobody is connected to any more may be owed something yet.
bool Endpoint::State::is_idle(Time until) {
  std::vector<std::uint32_t> all;
  {
    std::lock_guard lock(mutex);
    all.assign(met.begin(), met.end());
  }
  bool idle = true;
  const auto look = [&](taco::harp::Transport& transport) {
    for (const std::uint32_t peer : all) idle = idle && transport.is_idle_st(peer);
  };
  return taco::harp::call_on_engine(stack->engine(), look, until) && idle;
}

void Endpoint::State::end_given(const Connection& connection) const {
  const ChannelOfTwo which = channel_with(connection.peer, connection.channel);
  if (channels().end_given(which)) forget_messages(which);
}

Status Endpoint::State::end_channel(Peer peer, std::uint32_t channel) const {
  TACO_RETURN_IF_ERROR(usable());
  if (channel >= kFirstGivenChannel) {
    return taco::invalid(channel_name(peer, channel) +
                         " was given by a connection: disconnect() ends it");
  }
  const ChannelOfTwo which = channel_with(peer, channel);
  if (which.peer == 0) return taco::invalid(stack->describe(peer.id) + ": there is no such one");
  if (transfers->has_any_of(peer.id, group_of(which))) {
    return taco::invalid(channel_name(peer, channel) +
                         " cannot end: transfers are under way on it, wait for them first");
  }
  if (channels().end_own(which)) forget_messages(which);
  return {};
}

// Messages that nobody received would stay for as long as the Stack, and count against what the
// peer may have here.
void Endpoint::State::forget_messages(const ChannelOfTwo& which) const {
  const std::uint64_t group = group_of(which);
  taco::harp::call_on_engine(stack->engine(), [group](taco::harp::Transport& transport) {
    transport.forget_group_st(group);
  });
}

Endpoint::Endpoint(std::unique_ptr<State> state) : state_(std::move(state)) {}
Endpoint::Endpoint(Endpoint&&) noexcept = default;
Endpoint& Endpoint::operator=(Endpoint&&) noexcept = default;
Endpoint::~Endpoint() = default;

Result<Endpoint> Endpoint::open(const EndpointOptions& options) {
  const auto asked = stack_options(options);
  if (!asked.ok()) return asked.status();
  auto held = taco::harp::hold_stack(asked.value(), kUser, options.engine);
  if (!held.ok()) return held.status();
  return Endpoint(std::make_unique<State>(std::move(held->stack)));
}

std::string Endpoint::address() const { return state_->stack->address(); }
std::string Endpoint::transport() const { return state_->stack->transport_summary(); }

std::vector<Interface> Endpoint::interfaces() const {
  std::vector<Interface> interfaces;
  for (const auto& each : state_->stack->interfaces()) {
    interfaces.push_back({each.name, each.mbits, each.pci, each.hardware_address});
  }
  return interfaces;
}

Result<Peer> Endpoint::connect(std::string_view address) { return state_->connect(address); }

Result<Peer> Endpoint::meet(const std::string& own, const std::string& theirs, Duration timeout) {
  TACO_RETURN_IF_ERROR(state_->usable());
  if (!taco::write_file(own, address())) {
    return Status(Code::kRendezvous, own + " cannot be written: " + std::strerror(errno));
  }
  const std::string heard = taco::await_file(theirs, taco::later(taco::monotonic_now(), timeout));
  if (!heard.empty()) return connect(heard);
  return Status(Code::kRendezvous, "the other process did not come: there is no " + theirs);
}

void Endpoint::disconnect(Peer peer) { state_->disconnect(peer); }
void Endpoint::disconnect(const Connection& connection) { state_->disconnect(connection); }
Status Endpoint::end_channel(Peer peer, std::uint32_t channel) {
  return state_->end_channel(peer, channel);
}
std::string Endpoint::describe(Peer peer) const { return state_->stack->describe(peer.id); }

std::unique_ptr<Transfer::State> Endpoint::State::refuse(std::size_t bytes) const {
  Status why = usable();
  if (why.ok() && bytes > kMaxMessageBytes) {
    why = taco::invalid("a message of " + std::to_string(bytes) + " bytes: at most " +
                        std::to_string(kMaxMessageBytes) + " travel at once");
  }
  return why.ok() ? nullptr : std::make_unique<Transfer::State>(std::move(why));
}

Transfer Endpoint::send(Peer to, std::uint32_t channel, const void* data, std::size_t bytes) {
  if (auto refused = state_->refuse(bytes)) return Transfer(std::move(refused));
  const auto key = state_->next_key(to, channel, true);
  if (!key.ok()) return Transfer(std::make_unique<Transfer::State>(key.status()));
  auto made = std::make_unique<Transfer::State>();
  made->peer = to.id;
  made->sends = true;
  made->send.key = key.value();
  made->send.data = data;
  made->send.bytes = bytes;
  made->memory = registered_memory().covering(data, bytes);
  made->start(state_->stack, state_->transfers);
  return Transfer(std::move(made));
}

Transfer Endpoint::receive(Peer from, std::uint32_t channel, void* data, std::size_t bytes,
                           Read read) {
  if (auto refused = state_->refuse(bytes)) return Transfer(std::move(refused));
  const bool meanwhile = read == Read::kMeanwhile;
  if (meanwhile && reinterpret_cast<std::uintptr_t>(data) % alignof(std::uint64_t) != 0) {
    return Transfer(std::make_unique<Transfer::State>(taco::invalid(
        "memory that is read while a message comes must begin at a multiple of 8 bytes")));
  }
  const auto key = state_->next_key(from, channel, false);
  if (!key.ok()) return Transfer(std::make_unique<Transfer::State>(key.status()));
  auto made = std::make_unique<Transfer::State>();
  made->peer = from.id;
  made->receive.key = key.value();
  made->receive.sink =
      meanwhile ? taco::harp::Sink::place_by_line(data) : taco::harp::Sink::place(data);
  made->receive.max_bytes = bytes;
  made->memory = registered_memory().covering(data, bytes);
  made->start(state_->stack, state_->transfers);
  return Transfer(std::move(made));
}

bool Endpoint::flush(Duration timeout) { return state_->flush(timeout); }

bool Endpoint::poll() { return state_->usable().ok() && state_->stack->engine().poll(); }

void Endpoint::close() { state_->close(); }

}  // namespace harp
