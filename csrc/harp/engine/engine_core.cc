#include "harp/engine/engine_core.h"

#include <errno.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/descriptors.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/thread.h"
#include "harp/engine/engine_call.h"
#include "harp/engine/engine_cores.h"

namespace taco::harp {

EngineCore::EngineCore(const EngineOptions& options, std::unique_ptr<Nic> nic,
                       std::unique_ptr<ShmEndpoint> shm, PeerTable& peers)
    : options_(options),
      nic_(std::move(nic)),
      shm_(std::move(shm)),
      peers_(peers),
      duty_(static_cast<Driven&>(*this), token_,
            options.core < 0 ? Duty::Drivers::kThreadAndCallers : Duty::Drivers::kThreadAlone),
      loop_(options_, token_, *nic_, shm_.get(), peers),
      generation_(fork_generation()) {
  released_.engine = this;
}

Result<std::unique_ptr<EngineCore>> EngineCore::create(const EngineOptions& options,
                                                       std::unique_ptr<Nic> nic,
                                                       std::unique_ptr<ShmEndpoint> shm,
                                                       PeerTable& peers) {
  std::unique_ptr<EngineCore> engine(
      new EngineCore(options, std::move(nic), std::move(shm), peers));
  TACO_RETURN_IF_ERROR(engine->start());
  return engine;
}

Status EngineCore::start() {
  if (shm_ == nullptr) bell_ = OwnFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  const int bell = shm_ == nullptr ? bell_.get() : shm_->doorbell_fd();
  if (bell < 0) return Status(Code::kResource, "eventfd failed: " + system_error_text(errno));
  for (std::unique_ptr<WaitSet>* slot : {&thread_set_, &caller_set_}) {
    auto set = WaitSet::create(bell);
    if (!set.ok()) return set.status();
    *slot = std::move(set).value();
    if (shm_ != nullptr) TACO_RETURN_IF_ERROR((*slot)->add_event(shm_->events_fd()));
  }
  TACO_RETURN_IF_ERROR(alarm_.start());
  TACO_RETURN_IF_ERROR(thread_set_->add(alarm_.fd()));
  TACO_RETURN_IF_ERROR(watch_descriptors());
  loop_.set_now(monotonic_now());
  choose_spin();
  show_statistics();
  const std::string name = "taco-engine-" + std::to_string(options_.number);
  auto thread = start_thread(name.c_str(), [this] {
    duty_.run();
    leave_crypto_library(NoForkMeanwhile());  // packets that were refused have left errors there
  });
  if (!thread.ok()) return thread.status();
  thread_ = std::move(thread).value();
  return options_.core < 0 ? Status() : pin_to_core(thread_, options_.core);
}

// Where the kernel has no memory for one that has come later, it is heard when it is looked at, now
// and then.
Status EngineCore::watch_descriptors() {
  const std::span<const NicDescriptor> all = nic_->descriptors();
  while (watched_ < all.size()) {
    const int fd = all[watched_++].fd;
    TACO_RETURN_IF_ERROR(thread_set_->add(fd));
    TACO_RETURN_IF_ERROR(caller_set_->add(fd));
  }
  return {};
}

// They are for people to look at: an engine runs without them.
void EngineCore::show_statistics() {
  auto page = statistics::Page::create(options_.about);
  if (!page.ok()) {
    return TACO_LOG_WARNING("harp", "harp-stat cannot see this process: %s",
                            page.status().message().c_str());
  }
  statistics_ = std::make_unique<StatPublisher>(loop_, shm_.get(), &duty_, std::move(page).value());
}

// Never runs in a forked child, where the thread does not exist and the descriptors are closed: the
// Stack leaves the engine alone there.
EngineCore::~EngineCore() { close(0); }

// In a forked child nobody runs tasks, and the descriptors that would wake somebody are closed:
// their numbers may be another file's by now.
void EngineCore::submit(Task& task, bool caller_will_wait) {
  if (generation_ != fork_generation()) return;
  queue_.push(task);
  if (!caller_will_wait) duty_.submitted();
}

bool EngineCore::wait(const Event& event, Time deadline) {
  if (generation_ != fork_generation()) return event.is_set();
  return duty_.wait(event, deadline);
}

bool EngineCore::poll() {
  if (generation_ != fork_generation()) return false;
  return duty_.poll();
}

bool EngineCore::turn_st(Who who) {
  const Time now = monotonic_now();
  loop_.begin_turn_st(now, loop_.is_late_st(now) ? own_work_.since() : 0);
  own_work_.begin_turn(now);
  WaitSet& wait_set = set_of(who);
  wait_set.consume_kicks();
  bool worked = run_submitted();
  if (worked) loop_.transmit_eager_st();
  if (wait_set.take_event()) shm_->on_events(loop_.now());
  if (shm_ != nullptr) {
    if (who == Who::kCaller) keep_apart();
    worked |= shm_->poll(loop_.now());
    if (peers_.local_count() != local_peers_) choose_spin();
  }
  worked |= loop_.turn_st();
  if (nic_->descriptors().size() != watched_) {
    const Status watched = watch_descriptors();
    if (!watched.ok()) TACO_LOG_WARNING("harp", "a new address: %s", watched.message().c_str());
  }
  if (left_ != nullptr && !loop_.any_link_busy_st()) {
    std::exchange(left_, nullptr)->set();
    duty_.wake_waiters();
  }
  if (statistics_ != nullptr) statistics_->on_turn_st();
  return worked;
}

bool EngineCore::run_submitted() {
  if (queue_.empty()) return false;
  for (Task* task = queue_.take_all(); task != nullptr;) {
    // The task may be submitted again, or end its life, as soon as it has begun.
    Task* next = SubmitQueue::next(*task);
    task->run_st(loop_);
    task = next;
  }
  return true;
}

// The engine's thread works beside the program, wherever there is room; a caller stays out of the
// way of other drivers.
void EngineCore::keep_apart() {
  int core = sched_getcpu();
  const Time now = loop_.now();
  if (placement_.is_due(now)) core = placement_.look(now, core, shm_->peer_cores());
  shm_->publish_core(core);
}

// Between two looks the core is always given away: whoever we wait for may need this very one, and
// on an idle core giving it away costs next to nothing. Measured on 2 busy cores, half a round trip
// of 8 B over UDP: 47 us when polling 40 us without, 4.8 us with.
//
// A caller polls for longer than a small operation takes. A rank that sleeps is woken on whatever
// core suits the scheduler; it often puts three of four ranks on one of two cores, and as pollers
// never look idle, there they stay. Measured, 4 hosts on 2 cores, all_reduce of 8 B: 300 us when
// polling 20 us, 250 at 50, 120 at 200, 105 at 400, and large messages no slower. The engine's
// thread works beside the program, so it polls briefly, unless it has a core of its own.
void EngineCore::choose_spin() {
  local_peers_ = peers_.local_count();
  const auto cores = static_cast<std::size_t>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
  const bool crowded = local_peers_ + 1 > cores;
  Duration caller = 400 * kMicrosecond;
  Duration thread = crowded ? 20 * kMicrosecond : 50 * kMicrosecond;
  if (options_.core >= 0) thread = caller;
  if (options_.spin_us >= 0) caller = thread = options_.spin_us * kMicrosecond;
  duty_.set_spin(caller, thread);
}

void EngineCore::block(Who who, Time deadline) {
  if (who == Who::kCaller && shm_ != nullptr) shm_->publish_core(-1);
  set_of(who).block(deadline);
  was_woken_.store(true, std::memory_order_relaxed);
}

bool EngineCore::prepare_sleep_st() {
  if (!queue_.empty() || !loop_.may_sleep_st()) return false;
  if (!asleep_ && shm_ != nullptr && !shm_->prepare_sleep()) return false;
  asleep_ = true;
  watch_for_room();
  loop_.expect_turn_st(next_deadline_st());
  return true;
}

// A thread that comes back before any has slept has missed nothing that the next looks do not find.
void EngineCore::cancel_sleep_st() {
  if (was_woken_.load(std::memory_order_relaxed)) {
    was_woken_.store(false, std::memory_order_relaxed);
    nic_->look_everywhere_st();
  }
  if (!asleep_) return;
  asleep_ = false;
  if (shm_ != nullptr) shm_->cancel_sleep();
}

// Peers on this host are not told, so they ring no bell; what this process has said meanwhile they
// are told of all the same.
bool EngineCore::prepare_doze_st(Time until) {
  if (!queue_.empty() || !loop_.is_quiet_st()) return false;
  if (shm_ != nullptr) shm_->flush();
  leave_until_st(until);
  return true;
}

// While an address is full, room in it is something to wake up for.
void EngineCore::watch_for_room() {
  const bool full = loop_.has_ready() && loop_.nic_full();
  if (!full && room_watch_.is_empty()) return;
  for (const NicDescriptor& each : nic_->descriptors()) {
    if (each.local_path == NicDescriptor::kNoAddress) continue;
    const bool watch = full && nic_->is_full_st(each.local_path);
    if (!room_watch_.change(each.local_path, each.fd, watch)) continue;
    thread_set_->watch_writable(each.fd, watch);
    caller_set_->watch_writable(each.fd, watch);
  }
}

void EngineCore::set_observer(Service service, Observer* observer) {
  if (closed_.load() && !in_engine()) return;
  call_on_engine(*this, [&](Transport&) { loop_.services().set(service, observer); });
}

void EngineCore::peers_released() {
  if (closed_.load() || released_.queued.exchange(true)) return;
  submit(released_, false);
}

void EngineCore::Released::run_st(Transport&) {
  queued.store(false);
  engine->loop_.take_released_st();
}

EngineCore::Addresses EngineCore::addresses() {
  Addresses now;
  const auto copy = [&](Transport&) {
    now.addresses.assign(nic_->addresses().begin(), nic_->addresses().end());
    now.missing = nic_->missing_st();
    now.late = loop_.late();
  };
  if (!closed_.load() || in_engine()) call_on_engine(*this, copy);
  return now;
}

StackStats EngineCore::stats() {
  if (closed_.load()) return {};
  StackStats stats;
  call_on_engine(*this, [&](Transport&) { loop_.add_to_st(stats); });
  stats.sleeps = duty_.sleeps();
  if (shm_ != nullptr) {
    const ShmStats& shm = shm_->stats();
    stats.shm_bytes = shm.bytes_sent.load(std::memory_order_relaxed);
    stats.shm_messages = shm.messages_sent.load(std::memory_order_relaxed);
    stats.doorbells = shm.doorbells.load(std::memory_order_relaxed);
    stats.shm_links = shm.links.load(std::memory_order_relaxed);
  }
  return stats;
}

void EngineCore::close(Duration linger) {
  if (closed_.exchange(true)) return;
  if (generation_ != fork_generation() || !thread_.joinable()) return;
  Event left;
  call_on_engine(*this, [&](Transport&) {
    loop_.leave_st();
    left_ = &left;
  });
  duty_.wait(left, monotonic_now() + linger);
  call_on_engine(*this, [&](Transport&) {
    left_ = nullptr;
    loop_.end_st(Status(Code::kAborted, "the transport was closed"));
    if (shm_ != nullptr) shm_->stop();
    statistics_.reset();
  });
  duty_.stop();
  thread_.join();
  duty_.see_callers_off();
}

}  // namespace taco::harp
