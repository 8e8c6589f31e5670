#include "harp/engine/stack_core.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/conf_file.h"
#include "base/descriptors.h"
#include "base/env.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/names.h"
#include "base/random.h"
#include "harp/drivers/networks.h"
#include "harp/engine/host_identity.h"
#include "harp/engine/interfaces.h"
#include "harp/engine/routes.h"
#include "harp/engine/security_settings.h"
#include "harp/session/congestion.h"
#include "harp/session/sealing.h"

namespace taco::harp {

namespace {

// Ranks of one host that share TACO_PORT take the next free ones after it.
constexpr int kPortTries = 1024;

// `mtu`: 0 takes the interface's.
NicOptions::Local nic_local(const LocalPort& local, std::int64_t mtu, int paths,
                            const std::vector<Interface>& all) {
  const Interface& interface = local.interface;
  NicOptions::Local made;
  made.address = interface.address;
  made.mtu = mtu != 0 ? static_cast<std::size_t>(mtu) : interface.mtu;
  made.spare = local.port >= paths;
  if (shares_network(interface, all)) made.network = interface.network;
  return made;
}

// The addresses that a Nic may use beside those it has, after a change: as many ports of each
// address as at the start. Which ports they are, peers are told.
std::vector<NicOptions::Local> new_locals(const Network& network, const InterfaceWish& wish,
                                          std::int64_t mtu, int paths) {
  std::vector<NicOptions::Local> locals;
  const auto all = network.interfaces();
  if (!all.ok()) return locals;
  for (const Interface& each : interfaces_by_now(all.value(), wish, network.routes())) {
    for (const LocalPort& local : spread_ports({each}, ports_for(paths))) {
      locals.push_back(nic_local(local, mtu, paths, all.value()));
    }
  }
  return locals;
}

// The speed of the interface that has that address.
std::uint32_t mbits_of(const Network& network, const Endpoint& endpoint) {
  const auto all = network.interfaces();
  if (!all.ok()) return 0;
  const Interface* const holder = holder_of(all.value(), endpoint);
  return holder == nullptr ? 0 : holder->mbits;
}

RouterLookup routers_of(const Network& network) {
  return [&network](const Endpoint& destination) { return network.crosses_router(destination); };
}

}  // namespace

StackCore::StackCore(const StackOptions& options, int number)
    : options_(options), number_(number), generation_(fork_generation()) {}

Result<std::shared_ptr<Stack>> StackCore::create(const StackOptions& options, int number) {
  std::shared_ptr<StackCore> stack(new StackCore(options, number));
  TACO_RETURN_IF_ERROR(stack->start());
  return std::shared_ptr<Stack>(std::move(stack));
}

Status StackCore::start() {
  raise_descriptor_limit();
  const auto env = Env::get();
  if (!env.ok()) return env.status();
  EngineOptions engine;
  engine.spin_us = env.value().spin_us;
  engine.number = number_;
  if (!options_.cores.empty()) engine.core = options_.cores[options_.engine];
  const auto congestion = congestion_named(env.value().congestion);
  if (!congestion.ok()) return congestion.status().with_prefix("TACO_CONGESTION=");
  engine.congestion = congestion.value();
  const auto security = SecuritySettings::get();
  if (!security.ok()) return security.status();
  engine.security = security.value().level;
  engine.checksum = security.value().checksum;
  engine.job_key = security.value().job_key;
  engine.peer_timeout = options_.peer_timeout;
  own_.incarnation = random_value<decltype(own_.incarnation)>();
  own_.secret = random_value<decltype(own_.secret)>();
  engine.own = {own_.incarnation, own_.secret};
  engine.random = random_value<std::uint64_t>;
  own_.pid = static_cast<std::uint32_t>(getpid());
  own_.host_id = host_identity(options_.host_id);
  own_.host_name = host_name();

  auto network = network_named(options_.driver);
  if (!network.ok()) return network.status();
  network_ = std::move(network).value();
  engine.routes = [network = network_] { return network->routes(); };
  auto nic = open_network();
  if (!nic.ok()) return nic.status();
  auto shm = open_shm(engine.job_key);
  if (!shm.ok()) return shm.status();
  shm_ = shm.value().get();
  if (shm_ != nullptr) {
    own_.has_shm = true;
    own_.shm = shm_->address();
  }
  if (options_.transport == StackOptions::Force::kShm) interfaces_.clear();
  summary_ = summary();

  engine.about.pid = own_.pid;
  engine.about.engine = static_cast<std::uint32_t>(number_);
  statistics::set_text(engine.about.driver, network_->name());
  statistics::set_text(engine.about.security, name_of(engine.security));
  statistics::set_text(engine.about.congestion, engine.congestion->name);
  statistics::set_text(engine.about.transport, summary_);
  auto made = EngineCore::create(engine, std::move(nic).value(), std::move(shm).value(), peers_);
  if (!made.ok()) return made.status();
  engine_ = std::move(made).value();
  return {};
}

// One may have several addresses.
void StackCore::note_use_of(const Interface& interface) {
  if (std::ranges::find(interfaces_, interface.name, &UsedInterface::name) != interfaces_.end()) {
    return;
  }
  interfaces_.push_back(
      {interface.name, interface.mbits, interface.pci, interface.hardware_address});
}

std::string StackCore::summary() const {
  if (options_.transport == StackOptions::Force::kShm) return "shm";
  std::string names;
  for (const UsedInterface& each : interfaces_) append_name(names, each.name);
  return (shm_ != nullptr ? "shm+" : "") + std::string(network_->name()) + "(" + names + ")";
}

Result<std::unique_ptr<Nic>> StackCore::open_network() {
  const auto env = Env::get();
  const auto all = network_->interfaces();
  if (!all.ok()) return all.status();
  InterfaceWish wish{options_.interfaces, options_.excluded_interfaces, resolve(options_.master)};
  const auto chosen = choose_interfaces(all.value(), wish, network_->routes());
  if (!chosen.ok()) return chosen.status();

  NicOptions nic_options;
  nic_options.receive_buffer = static_cast<std::size_t>(env.value().socket_buffer);
  nic_options.engine = static_cast<std::uint32_t>(options_.engine);
  nic_options.engines = static_cast<std::uint32_t>(options_.engines);
  const int paths =
      ports_wanted(env.value().paths, env.value().port, wish.master, routers_of(*network_));
  nic_options.find_more = [network = network_, wish, mtu = env.value().mtu, paths] {
    return new_locals(*network, wish, mtu, paths);
  };
  std::vector<int> ports;
  for (const LocalPort& local : spread_ports(chosen.value(), ports_for(paths))) {
    const Interface& interface = local.interface;
    nic_options.locals.push_back(nic_local(local, env.value().mtu, paths, all.value()));
    ports.push_back(local.port);
    const NicOptions::Local& made = nic_options.locals.back();
    if (made.spare) continue;
    own_.paths.push_back({made.address, static_cast<std::uint32_t>(made.mtu), interface.mbits});
    note_use_of(interface);
  }
  const auto first_port = static_cast<int>(env.value().port);
  Status last;
  for (int i = 0; i < (first_port == 0 ? 1 : kPortTries) && first_port + i < 65'536; ++i) {
    for (std::size_t path = 0; path < ports.size(); ++path) {
      const int port = first_port == 0 ? 0 : std::min(first_port + i + ports[path], 65'535);
      set_port(nic_options.locals[path].address, static_cast<std::uint16_t>(port));
    }
    auto nic = network_->open(nic_options);
    if (!nic.ok()) {
      last = nic.status();
      continue;
    }
    for (std::size_t path = 0; path < own_.paths.size(); ++path) {
      own_.paths[path].endpoint = nic.value()->addresses()[path].endpoint;
    }
    return nic;
  }
  if (first_port == 0) return last;
  return last.with_prefix("TACO_PORT=" + std::to_string(first_port) +
                          conf_origin("TACO_PORT", std::to_string(first_port)) +
                          ": no port from there to " +
                          std::to_string(std::min(first_port + kPortTries - 1, 65'535)) +
                          " could be opened, name another one. The last try: ");
}

Result<std::unique_ptr<ShmEndpoint>> StackCore::open_shm(const JobKey& job_key) {
  if (options_.transport == StackOptions::Force::kUdp) return std::unique_ptr<ShmEndpoint>();
  const auto env = Env::get();
  ShmOptions options;
  options.secret = random_value<decltype(options.secret)>();
  options.job_key = job_key;
  options.incarnation = own_.incarnation;
  options.pull = env.value().cma ? ShmPull::kWhereFaster : ShmPull::kNever;
  auto endpoint = ShmEndpoint::create(options);
  if (endpoint.ok() || options_.transport == StackOptions::Force::kShm) return endpoint;
  TACO_LOG_WARNING("harp", "no shared memory on this host, UDP instead: %s",
                   endpoint.status().message().c_str());
  return std::unique_ptr<ShmEndpoint>();
}

StackCore::~StackCore() {
  close();
  if (generation_ == fork_generation()) return;
  // In a forked child: see EngineCore's destructor.
  static_cast<void>(engine_.release());
}

bool StackCore::reaches_memory_of(const Address& address) const {
  if (shm_ == nullptr || !address.has_shm || address.host_id != own_.host_id) return false;
  // Where there is no other way, one that does not listen (any more) is found out by its link, and
  // is missed by those that need it.
  if (options_.transport == StackOptions::Force::kShm) return true;
  const Status probe = shm_->probe(address.shm);
  if (!probe.ok()) {
    TACO_LOG_WARNING("harp",
                     "pid %u on %s has this host's identity, but its shared memory is not here; "
                     "UDP instead, as between hosts (is TACO_HOST_ID the same on two hosts?): %s",
                     address.pid, address.host_name.c_str(), probe.message().c_str());
  }
  return probe.ok();
}

// The addresses of this moment: those that the host has lost are left out, those that it has come
// to have are there. If nothing leads to other hosts, all is as at the start: it may come back.
std::vector<StackCore::Local> StackCore::locals_now() const {
  std::vector<Local> locals;
  const EngineCore::Addresses now = engine_->addresses();
  const auto is_in = [](std::uint32_t some, std::uint32_t i) { return (some >> i & 1) != 0; };
  for (std::uint32_t i = 0; i < own_.paths.size(); ++i) {
    if (!is_in(now.missing | now.late, i)) locals.push_back({own_.paths[i], i});
  }
  for (std::uint32_t i = 0; i < now.addresses.size() && locals.size() < kMaxPaths; ++i) {
    const NicAddress& late = now.addresses[i];
    if (!is_in(now.late & ~now.missing, i) || late.spare) continue;
    const std::size_t mtu = late.max_datagram + 1500 - max_datagram(late.endpoint, 1500);
    const auto own_mtu = static_cast<std::uint32_t>(mtu);
    locals.push_back({{late.endpoint, own_mtu, mbits_of(*network_, late.endpoint)}, i});
  }
  const bool leads_out = std::ranges::any_of(
      locals, [](const Local& local) { return !is_loopback(local.address.endpoint); });
  if (leads_out) return locals;
  locals.clear();
  for (std::uint32_t i = 0; i < own_.paths.size(); ++i) locals.push_back({own_.paths[i], i});
  return locals;
}

std::string StackCore::address() const {
  Address now = own_;
  if (generation_ != fork_generation()) return encode(now);
  now.paths.clear();
  for (const Local& local : locals_now()) now.paths.push_back(local.address);
  return encode(now);
}

Result<std::vector<Route>> StackCore::routes_to(const Address& peer, bool same_host) const {
  const std::vector<Local> locals = locals_now();
  std::vector<PathAddress> addresses;
  addresses.reserve(locals.size());
  for (const Local& local : locals) addresses.push_back(local.address);
  const auto env = Env::get();
  const bool is_auto = env.ok() && env.value().paths == 0;
  auto routes = choose_routes(addresses, peer, same_host, network_->routes(),
                              is_auto ? routers_of(*network_) : nullptr);
  if (!routes.ok()) return routes;
  for (Route& route : routes.value()) route.local_path = locals[route.local_path].local_path;
  return routes;
}

Reach StackCore::reach_of(const Address& address) const {
  if (address.incarnation == own_.incarnation) return Reach::kSelf;
  return reaches_memory_of(address) ? Reach::kMemory : Reach::kNetwork;
}

// Asks the kernel for routes, and for who listens on this host. Nobody knows the peer yet, so its
// hello does not wait meanwhile.
Result<PeerPlan> StackCore::plan_for(Address address) const {
  const Reach reach = reach_of(address);
  const bool far = reach == Reach::kNetwork;
  std::vector<Route> routes;
  if (far && options_.transport == StackOptions::Force::kShm) {
    return Status(Code::kRendezvous,
                  "TACO_TRANSPORT=shm, but pid " + std::to_string(address.pid) + " on " +
                      address.host_name +
                      " cannot be reached through shared memory: it is on another host or "
                      "in another network namespace, or does not use shared memory");
  }
  if (far) {
    // Equal identities that share no memory are two hosts (copies of one virtual machine, or
    // one TACO_HOST_ID for both): loopback would lead nowhere.
    const bool denied = shm_ != nullptr && address.has_shm;
    const bool same_host = address.host_id == own_.host_id && !denied;
    auto chosen = routes_to(address, same_host);
    if (!chosen.ok()) return chosen.status();
    routes = std::move(chosen).value();
    prepare_sealing(engine_->loop().security());
  }
  return PeerPlan{std::move(address), reach, std::move(routes)};
}

Result<PeerId> StackCore::add_peer(std::string_view bytes) {
  TACO_RETURN_IF_ERROR(usable());
  auto address = decode(bytes);
  if (!address.ok()) return address.status();
  const std::uint64_t incarnation = address.value().incarnation;
  bool is_new = false;
  auto added = peers_.add(
      incarnation, [&] { return plan_for(std::move(address).value()); },
      [&](PeerId id, PeerPlan plan) {
        is_new = true;
        auto peer = std::make_unique<Peer>(id, std::move(plan), engine_->loop().matching());
        peer->loop = &engine_->loop();
        peer->opening = peer->reach == Reach::kMemory;
        return peer;
      });
  if (!added.ok()) return added.status();
  Peer& peer = *added.value();
  if (is_new && peer.reach == Reach::kMemory) engine_->submit(peer, false);
  return peer.id;
}

void StackCore::release_peer(PeerId id) {
  if (generation_ != fork_generation()) return;
  if (peers_.release(id)) engine_->peers_released();
}

bool StackCore::is_local(PeerId id) const {
  return peers_.ask(id, false, [](const Peer& peer) { return peer.shares_host(); });
}

std::string StackCore::host_of(PeerId id) const {
  return peers_.ask(id, std::string(), [](const Peer& peer) { return peer.address.host_id; });
}

std::string StackCore::describe(PeerId id) const {
  return peers_.ask(id, "unknown peer " + std::to_string(id),
                    [](const Peer& peer) { return peer.description; });
}

std::uint64_t StackCore::incarnation_of(PeerId id) const {
  return peers_.ask(id, std::uint64_t{0},
                    [](const Peer& peer) { return peer.address.incarnation; });
}

void StackCore::set_observer(Service service, Observer* observer) {
  // On the engine, which does not end meanwhile. close(), which may be driving it, holds the lock.
  const bool ours = generation_ == fork_generation() && engine_ != nullptr;
  if (ours && engine_->in_engine()) return engine_->set_observer(service, observer);
  std::lock_guard lock(closing_);
  if (usable().ok()) engine_->set_observer(service, observer);
}

StackStats StackCore::stats() const {
  if (generation_ != fork_generation()) return {};
  std::lock_guard lock(closing_);
  return engine_->stats();
}

std::string StackCore::transport_summary() const { return summary_; }

Status StackCore::usable() const {
  if (generation_ != fork_generation()) {
    return Status(Code::kAborted,
                  "this process was forked from one that uses taco_torch: its transport stayed "
                  "with the parent; initialise a process group of its own here");
  }
  if (closed_.load()) return Status(Code::kAborted, "the transport was closed");
  return {};
}

void StackCore::close() {
  if (generation_ != fork_generation()) return;
  std::lock_guard lock(closing_);
  if (closed_.exchange(true) || engine_ == nullptr) return;
  engine_->close(kSecond);
}

}  // namespace taco::harp
