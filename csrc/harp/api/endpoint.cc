#include <errno.h>
#include <openssl/crypto.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "base/far_future.h"
#include "base/file.h"
#include "base/mixed_bits.h"
#include "base/per_process.h"
#include "harp/api/endpoint_state.h"
#include "harp/drivers/networks.h"
#include "harp/engine/engine_call.h"
#include "harp/engine/held_stacks.h"
#include "harp/service.h"

namespace harp {
namespace {

using taco::Time;
using taco::harp::MessageKey;
using taco::harp::StackOptions;

// The group of a channel's messages. One that was given is of two processes alone, so that what
// belongs to it can be forgotten when it ends; programs' own channels are the same with everybody.
std::uint64_t group_of(std::uint64_t own, std::uint64_t peer, std::uint32_t channel) {
  if (channel < kFirstGivenChannel) {
    return taco::harp::group_id(taco::harp::Service::kMessages, channel);
  }
  constexpr std::uint64_t kGiven = std::uint64_t{1} << 59;  // beyond all programs' own
  const std::uint64_t both = taco::mixed_bits(std::min(own, peer)) ^ std::max(own, peer);
  return taco::harp::group_id(taco::harp::Service::kMessages,
                              kGiven | taco::mixed_bits(taco::mixed_bits(both) + channel));
}

// Counts the messages of each channel between two processes, in each direction. Endpoints of one
// process may share a Stack, and a key is used once in a Stack's life: so they share this, too, and
// it is kept for as long as there is the channel.
class ChannelNumbers {
 public:
  MessageKey next(std::uint64_t own, std::uint64_t peer, std::uint32_t channel, bool sends) {
    std::lock_guard lock(mutex_);
    const std::uint64_t number = next_[{own, peer, channel, sends}]++;
    return {group_of(own, peer, channel), number};
  }
  // One side of a given channel is done with it. True: the process has no other side of it, as it
  // has of one to itself.
  bool end(std::uint64_t own, std::uint64_t peer, std::uint32_t channel) {
    std::lock_guard lock(mutex_);
    const std::pair<std::uint64_t, std::uint32_t> itself{own, channel};
    if (own == peer && half_ended_.erase(itself) == 0) {
      half_ended_.insert(itself);
      return false;
    }
    next_.erase({own, peer, channel, false});
    next_.erase({own, peer, channel, true});
    return true;
  }
  // How many channels were given before.
  std::uint32_t given() { return given_.fetch_add(1, std::memory_order_relaxed); }

 private:
  std::mutex mutex_;
  std::map<std::tuple<std::uint64_t, std::uint64_t, std::uint32_t, bool>, std::uint64_t> next_;
  std::set<std::pair<std::uint64_t, std::uint32_t>> half_ended_;  // channels to this process itself
  std::atomic<std::uint32_t> given_{0};
};

constinit taco::PerProcess<ChannelNumbers> channel_numbers;

// libcrypto would take itself apart at exit(), under engines that run until the process has ended.
// Where the program itself has begun to use it before, it does.
void keep_crypto_library() { OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr); }

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
    for (const Connection& each : ended) end_channel(each);
    lock.lock();
    for (const Peer peer : std::exchange(peers, {})) stack->release_peer(peer.id);
  }
  taco::harp::drop_stack(stack, kUser);
}

Status Endpoint::State::usable() const {
  if (!is_open) return Status(Code::kAborted, "the endpoint was closed");
  return stack->usable();
}

MessageKey Endpoint::State::next_key(Peer peer, std::uint32_t channel, bool sends) const {
  return channel_numbers().next(stack->incarnation(), stack->incarnation_of(peer.id), channel,
                                sends);
}

// Both sides may have listeners: the lowest bit says whose gave it.
std::uint32_t Endpoint::State::give_channel(Peer peer) const {
  const std::uint32_t whose = stack->incarnation() > stack->incarnation_of(peer.id) ? 1 : 0;
  return kFirstGivenChannel | channel_numbers().given() << 1 | whose;
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
  {
    std::lock_guard lock(mutex);
    const auto known = std::ranges::find(peers, peer.id, &Peer::id);
    if (known == peers.end()) return;
    peers.erase(known);
  }
  stack->release_peer(peer.id);
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
  end_channel(connection);
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

// Messages that nobody received would stay for as long as the Stack, and count against what the
// peer may have here.
void Endpoint::State::end_channel(const Connection& connection) const {
  const std::uint64_t own = stack->incarnation(), peer = stack->incarnation_of(connection.peer.id);
  if (!channel_numbers().end(own, peer, connection.channel)) return;
  const std::uint64_t group = group_of(own, peer, connection.channel);
  taco::harp::call_on_engine(stack->engine(), [group](taco::harp::Transport& transport) {
    transport.forget_group_st(group);
  });
}

Endpoint::Endpoint(std::unique_ptr<State> state) : state_(std::move(state)) {}
Endpoint::Endpoint(Endpoint&&) noexcept = default;
Endpoint& Endpoint::operator=(Endpoint&&) noexcept = default;
Endpoint::~Endpoint() = default;

Result<Endpoint> Endpoint::open(const EndpointOptions& options) {
  keep_crypto_library();
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
  for (const auto& each : state_->stack->interfaces())
    interfaces.push_back({each.name, each.mbits});
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
  auto made = std::make_unique<Transfer::State>();
  made->peer = to.id;
  made->sends = true;
  made->send.key = state_->next_key(to, channel, true);
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
  auto made = std::make_unique<Transfer::State>();
  made->peer = from.id;
  made->receive.key = state_->next_key(from, channel, false);
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
