#include "harp/shm/endpoint.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <mutex>
#include <new>
#include <optional>
#include <utility>

#include "base/cache_line.h"
#include "base/descriptors.h"
#include "base/log.h"
#include "base/random.h"
#include "harp/shm/admission.h"
#include "harp/shm/host.h"
#include "harp/shm/pair_link.h"
#include "harp/shm/pull.h"
#include "harp/shm/socket.h"

namespace taco::harp {
namespace {

constexpr std::size_t kBytesPerTurn = std::size_t{1} << 20;
constexpr Duration kRareEvents = kMillisecond;
// How long it does not listen where no descriptor is left, and after a look that found strangers,
// which takes so many at most: 800 a second, for each of which the kernel makes and ends a socket.
// So whoever connects without end takes less than a hundredth of a core, and no turn waits for him.
constexpr Duration kDeafness = kSecond, kRest = 20 * kMillisecond;
struct AcceptLimits {
  std::size_t accepts, strangers;
};
constexpr AcceptLimits kUsualLook{64, 16}, kWholeQueue{kShmBacklog, kShmBacklog};
// Connections that have not proved anything yet; each costs one descriptor.
constexpr std::size_t kMaxCallers = 1024;

class alignas(kCacheLine) HostEndpoint final : public ShmEndpoint {
 public:
  Status start(const ShmOptions& options);

  const ShmAddress& address() const override { return host_.address; }
  Status probe(const ShmAddress& peer) const override;
  ShmLink* open(const ShmAddress& peer, const std::string& description) override;
  void close(ShmLink* link) override;
  void release(Staging& staging) override { shm_release(host_, staging); }
  void stop() override;
  int doorbell_fd() const override { return host_.doorbell.get(); }
  int events_fd() const override { return host_.events.get(); }
  void on_events(Time now) override;
  bool poll(Time now) override;
  void flush() override;
  Time next_deadline() const override { return deaf_until_; }
  bool prepare_sleep() override;
  void cancel_sleep() override;
  void publish_core(int core) override;
  std::span<const int> peer_cores() override;
  const ShmStats& stats() const override { return host_.stats; }
  std::string pages() const override { return host_.arena.pages(); }
  std::string why_no_pull() const override { return host_.why_no_pull; }

 private:
  // Somebody connected. Without `greeting` yet: nothing is known of them. With it: a peer that
  // nobody here has opened a link to yet, but will.
  struct Caller {
    OwnFd socket;
    std::optional<ShmGreeting> greeting;
    Result<ShmPeerMemory> memory = ShmPeerMemory();
  };

  PairLink* find(std::uint32_t id);
  PairLink* link_with(std::uint64_t incarnation);
  void keep_back() {
    if (!kept_back_) kept_back_ = OwnFd(eventfd(0, EFD_CLOEXEC));
  }
  Result<OwnFd> accept_one();
  void accept_callers(const AcceptLimits& most);
  void rest_from_listening(Duration how_long);
  void hear_caller(int socket);
  void hear_of(PairLink& link, ShmEventKind kind);
  bool adopt(Caller& caller);
  void forget_adopted();
  bool move_bulk();
  void watch(int fd, ShmEventKind kind);

  ShmHost host_;
  OwnFd listener_;
  OwnFd kept_back_;  // gives way to one caller where no other descriptor is left
  std::vector<Caller> callers_;
  std::vector<std::unique_ptr<PairLink>> links_;
  std::uint32_t next_id_ = 1;
  std::vector<int> peer_cores_;
  std::size_t turn_ = 0;      // whose bulk data goes first
  Time looked_ = 0;           // for rare events
  Time deaf_until_ = kNever;  // kNever: it listens
  bool sleeping_ = false;
  mutable std::mutex listed_mutex_;
  mutable std::string listed_;  // as last read; guarded by listed_mutex_
};

Status HostEndpoint::start(const ShmOptions& options) {
  host_.pull = options.pull;
  host_.huge_pages = huge_pages_by_default();
  host_.watch_processes = options.watch_processes;
  host_.address.secret = options.secret;
  host_.job_key = options.job_key;
  host_.address.incarnation = options.incarnation;
  host_.address.name = random_value<decltype(host_.address.name)>();
  host_.probe_word = random_value<decltype(host_.probe_word)>();

  const std::size_t blocks = std::max<std::size_t>(options.arena_bytes / kShmBlockBytes, 8);
  auto arena = Arena::create("taco-arena", kShmFirstBlock + blocks * kShmBlockBytes,
                             Arena::Sharing::kShared);
  if (!arena.ok()) return arena.status();
  host_.arena = std::move(arena).value();
  host_.arena_fd = OwnFd(host_.arena.fd());
  host_.arena.disown_fd();
  TACO_RETURN_IF_ERROR(host_.arena.commit(0, kShmFirstBlock));
  host_.page = new (host_.arena.data()) ShmPage;
  host_.blocks = std::make_unique<ShmBlocks>(host_.arena);
  auto scratch = Arena::create("taco-scratch", kShmScratchBytes, Arena::Sharing::kPrivate);
  if (!scratch.ok()) return scratch.status();
  host_.scratch = std::move(scratch).value();

  host_.doorbell = OwnFd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  host_.events = OwnFd(epoll_create1(EPOLL_CLOEXEC));
  if (!host_.doorbell || !host_.events)
    return Status(Code::kResource, "shared memory: doorbell: " + system_error_text(errno));
  auto listener = shm_listen(host_.address.name);
  if (!listener.ok()) return listener.status();
  listener_ = std::move(listener).value();
  watch(listener_.get(), kShmListener);
  keep_back();
  if (options.pull == ShmPull::kNever) {
    host_.why_no_pull = "switched off by TACO_CMA=0";
    return Status();
  }
  if (options.pull == ShmPull::kWhereFaster && !host_.huge_pages) {
    host_.pull = ShmPull::kNever;
    host_.why_no_pull = "slower than staging unless transparent huge pages are on for everything";
    return Status();
  }
  // Last: nobody is to be let into this memory for nothing.
  shm_allow_pulls();
  return Status();
}

void HostEndpoint::watch(int fd, ShmEventKind kind) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = std::uint64_t{kind} << 32 | static_cast<std::uint32_t>(fd);
  epoll_ctl(host_.events.get(), EPOLL_CTL_ADD, fd, &event);
}

Status HostEndpoint::probe(const ShmAddress& peer) const {
  {
    // One look at the list tells of all the ranks of a group, whose names no other socket can have:
    // a connection each would cost as many as there are pairs.
    std::lock_guard lock(listed_mutex_);
    if (!shm_is_listed(listed_, peer.name)) listed_ = shm_list_sockets();
    if (shm_is_listed(listed_, peer.name)) return Status();
  }
  auto socket = shm_connect(peer.name);
  // A full queue is a listener too.
  if (socket.status().code() == Code::kTimeout) return Status();
  return socket.status();
}

// A caller may bring what it said long ago, and somebody who hears that may open further links.
ShmLink* HostEndpoint::open(const ShmAddress& peer, const std::string& description) {
  links_.push_back(std::make_unique<PairLink>(host_, peer, description, next_id_++));
  PairLink* const opened = links_.back().get();
  for (std::size_t i = 0; i < callers_.size(); ++i) {
    if (adopt(callers_[i])) break;
  }
  forget_adopted();
  return opened;
}

void HostEndpoint::forget_adopted() {
  std::erase_if(callers_, [](const Caller& caller) { return !caller.socket; });
}

// Gives a caller that has proved itself to its link. False when there is no such link yet.
bool HostEndpoint::adopt(Caller& caller) {
  if (!caller.greeting) return false;
  PairLink* const link = link_with(caller.greeting->incarnation);
  if (link == nullptr) return false;
  epoll_ctl(host_.events.get(), EPOLL_CTL_DEL, caller.socket.get(), nullptr);
  ShmPeerProcess process = shm_peer_process(caller.socket.get(), host_.watch_processes);
  const ShmGreeting greeting = *caller.greeting;
  link->on_greeting(greeting, std::move(caller.memory), std::move(process),
                    std::move(caller.socket));
  return true;
}

void HostEndpoint::close(ShmLink* link) {
  std::erase_if(links_, [&](const auto& one) { return one.get() == link; });
}

// Processes that have connected since the engine said its goodbyes were told nothing, and this one
// may live on for long: their links are told now.
void HostEndpoint::stop() {
  deaf_until_ = kNever;
  callers_.clear();
  listener_.reset();
  for (const auto& link : links_) link->leave();
  flush();
}

PairLink* HostEndpoint::find(std::uint32_t id) {
  for (const auto& link : links_)
    if (link->id() == id) return link.get();
  return nullptr;
}

PairLink* HostEndpoint::link_with(std::uint64_t incarnation) {
  for (const auto& link : links_)
    if (link->peer().incarnation == incarnation) return link.get();
  return nullptr;
}

void HostEndpoint::on_events(Time now) {
  host_.now = now;
  looked_ = now;
  if (now >= deaf_until_) {
    deaf_until_ = kNever;
    watch(listener_.get(), kShmListener);
  }
  epoll_event events[32];
  const int count = epoll_wait(host_.events.get(), events, 32, 0);
  for (int i = 0; i < count; i++) {
    const auto value = static_cast<std::uint32_t>(events[i].data.u64);
    const auto kind = static_cast<ShmEventKind>(events[i].data.u64 >> 32);
    if (kind == kShmListener) {
      accept_callers(kUsualLook);
    } else if (kind == kShmCaller) {
      hear_caller(static_cast<int>(value));
    } else if (PairLink* link = find(value); link != nullptr) {
      hear_of(*link, kind);
    }
  }
}

// Where both have called, one takes the other's greeting and hangs up: its own call, which has been
// waiting here since before that, says all there is to say. Behind many others it is heard too
// late, and the end of the connection would pass for a refusal.
void HostEndpoint::hear_of(PairLink& link, ShmEventKind kind) {
  if (kind == kShmProcess) return link.on_process_ended();
  if (!link.is_connected() && listener_) accept_callers(kWholeQueue);
  link.on_socket();
}

// Where no descriptor is left, the one that is kept for this lets a caller be heard, and told so.
Result<OwnFd> HostEndpoint::accept_one() {
  auto socket = shm_accept(listener_.get());
  if (socket.ok()) {
    keep_back();
    return socket;
  }
  kept_back_.reset();
  return shm_accept(listener_.get());
}

// A process of another user is told nothing, and costs as little as can be: there may be many.
void HostEndpoint::accept_callers(const AcceptLimits& most) {
  std::size_t strangers = 0;
  for (std::size_t accepted = 0; accepted < most.accepts; ++accepted) {
    if (strangers == most.strangers) break;
    auto socket = accept_one();
    if (!socket.ok()) {
      TACO_LOG_WARNING("harp", "%s", socket.status().message().c_str());
      return rest_from_listening(kDeafness);
    }
    if (!*socket) break;
    if (!shm_peer_process(socket->get(), /*watch=*/false).same_user) {
      ++strangers;
      continue;
    }
    if (callers_.size() >= kMaxCallers) callers_.erase(callers_.begin());
    const int fd = socket->get();
    callers_.emplace_back().socket = std::move(*socket);
    watch(fd, kShmCaller);
    hear_caller(fd);
  }
  if (strangers > 0) rest_from_listening(kRest);
}

// A connection that waits to be accepted would wake us without end.
void HostEndpoint::rest_from_listening(Duration how_long) {
  epoll_ctl(host_.events.get(), EPOLL_CTL_DEL, listener_.get(), nullptr);
  deaf_until_ = host_.now + how_long;
}

// A greeting that proves to know our secret becomes a link; anything else is shown the door.
void HostEndpoint::hear_caller(int socket) {
  const auto at = std::find_if(callers_.begin(), callers_.end(),
                               [&](const Caller& one) { return one.socket.get() == socket; });
  if (at == callers_.end()) return;
  ShmReceived received = shm_receive_greeting(socket);
  if (received.state == ShmReceived::State::kNothing) return;
  const bool proved = received.greeting.version == kShmVersion &&
                      shm_proves(received.greeting.proof, host_.address,
                                 received.greeting.incarnation, host_.job_key);
  const bool known = proved && received.state == ShmReceived::State::kGreeting;
  // The end of a connection that waits for its link to be opened: the greeting stays good, since
  // what it brought was published before.
  const bool waiting = at->greeting.has_value();
  if (received.state == ShmReceived::State::kNoRoom) {
    TACO_LOG_WARNING("harp", "refused a peer on this host: no file descriptor is left for it: %s",
                     descriptor_limit_text().c_str());
    host_.refuse(socket);
    if (PairLink* link = proved ? link_with(received.greeting.incarnation) : nullptr) {
      link->on_no_descriptor();  // a peer greets once
    }
  }
  if (!known) {
    if (waiting)
      epoll_ctl(host_.events.get(), EPOLL_CTL_DEL, socket, nullptr);
    else
      callers_.erase(at);
    return;
  }
  if (waiting) return;
  at->greeting = received.greeting;
  at->memory = shm_map(std::move(received.files));
  adopt(*at);
  forget_adopted();
}

bool HostEndpoint::poll(Time now) {
  host_.now = now;
  if (now - looked_ >= kRareEvents) on_events(now);
  flush();  // what was said since the last turn
  // An observer that hears of something may open links: so these are counted by index.
  bool something = false;
  for (std::size_t i = 0; i < links_.size(); ++i) something |= links_[i]->drain();
  something |= move_bulk();
  for (std::size_t i = 0; i < links_.size(); ++i) {
    something |= links_[i]->run_deferred();
    links_[i]->flush();
  }
  return something;
}

// In steps, each link in turn, until nothing can move or the turn is over: small messages that
// arrive meanwhile wait no longer than that.
bool HostEndpoint::move_bulk() {
  std::size_t total = 0;
  for (std::size_t moved = 1; moved != 0 && total < kBytesPerTurn; total += moved) {
    moved = 0;
    for (std::size_t i = 0; i < links_.size(); i++) {
      PairLink& link = *links_[(turn_ + i) % links_.size()];
      moved += link.work();
      link.flush();  // the peer may go on with what was just published
    }
    turn_++;
  }
  return total != 0;
}

void HostEndpoint::flush() {
  for (const auto& link : links_) link->flush();
}

bool HostEndpoint::prepare_sleep() {
  std::atomic<std::uint32_t>& sleep = host_.page->sleep;
  flush();
  sleep.store(sleep.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  sleeping_ = true;
  for (const auto& link : links_) {
    if (!link->has_input()) continue;
    cancel_sleep();
    return false;
  }
  shm_count(host_.stats.sleeps);
  return true;
}

void HostEndpoint::cancel_sleep() {
  if (!sleeping_) return;
  sleeping_ = false;
  std::atomic<std::uint32_t>& sleep = host_.page->sleep;
  sleep.store(sleep.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

void HostEndpoint::publish_core(int core) {
  std::atomic<std::int32_t>& published = host_.page->core;
  // Written when it changes only: the line stays with the peers that read it.
  if (published.load(std::memory_order_relaxed) != core) {
    published.store(core, std::memory_order_relaxed);
  }
}

std::span<const int> HostEndpoint::peer_cores() {
  peer_cores_.clear();
  for (const auto& link : links_) peer_cores_.push_back(link->peer_core());
  return peer_cores_;
}

}  // namespace

Result<std::unique_ptr<ShmEndpoint>> ShmEndpoint::create(const ShmOptions& options) {
  auto endpoint = std::make_unique<HostEndpoint>();
  TACO_RETURN_IF_ERROR(endpoint->start(options));
  return std::unique_ptr<ShmEndpoint>(std::move(endpoint));
}

}  // namespace taco::harp
