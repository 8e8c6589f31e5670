#include "support/loopback_stack.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "support/loopback_state.h"

namespace taco::testing {

bool LoopbackStack::wait(const harp::Event& event, Time deadline) {
  if (in_engine()) std::abort();
  std::unique_lock lock(waiters_mutex_);
  while (!event.is_set()) {
    Duration left = std::min<Duration>(deadline - monotonic_now(), kSecond);
    if (left <= 0) break;
    waiters_.wait_for(lock, std::chrono::nanoseconds(left), [&] { return event.is_set(); });
  }
  return event.is_set();
}

void LoopbackStack::send_st(PeerId peer, SendRequest& request) {
  check();
  std::lock_guard lock(net_->mutex);
  ++open;
  const int to = net_->process_of(peer);
  request.peer = peer;
  Pair& pair = outgoing(to);
  if (pair.dead) {
    finish(request, Status("loopback: already lost", PeerLoss{-1, other(to).address_, 0}));
    return;
  }
  Entry& entry = pair.entries[request.key];
  if (entry.send != nullptr || entry.has_eager) std::abort();  // a key is used once
  entry.send_signature = request.signature;
  if (request.bytes <= net_->options.eager_limit && entry.recv == nullptr) {
    const auto* bytes = static_cast<const std::byte*>(request.data);
    if (request.bytes > 0) entry.eager.assign(bytes, bytes + request.bytes);
    entry.has_eager = true;
    entry.offered = true;
    finish(request, Status());
    if (!pair.silent)
      pair.events.push_back({Event::kEager, request.key, request.signature, {}, {}});
  } else {
    entry.send = &request;
    entry.offered = true;
    if (!pair.silent)
      pair.events.push_back({Event::kOffer, request.key, request.signature, {}, {}});
  }
  other(to).wake_.notify_one();
}

void LoopbackStack::recv_st(PeerId peer, RecvRequest& request) {
  check();
  std::lock_guard lock(net_->mutex);
  ++open;
  const int from = net_->process_of(peer);
  request.peer = peer;
  Pair& pair = incoming(from);
  if (pair.dead) {
    finish(request, Status("loopback: already lost", PeerLoss{-1, other(from).address_, 0}));
    return;
  }
  Entry& entry = pair.entries[request.key];
  if (entry.recv != nullptr) std::abort();
  entry.recv = &request;
  if (entry.arrived) {
    match_locked(from, self_, request.key);
  } else if (request.max_bytes > net_->options.eager_limit) {
    entry.wanted = true;
    pair.backwards.push_back({Event::kWant, request.key, request.signature, {}, {}});
    other(from).wake_.notify_one();
  }
}

// Both sides are here: compare, then leave the bytes to the receiver's engine.
void LoopbackStack::match_locked(int from, int to, const MessageKey& key) {
  Pair& pair = net_->pairs[from][to];
  Entry& entry = pair.entries[key];
  if (entry.recv == nullptr || (!entry.has_eager && entry.send == nullptr)) return;
  if (std::find(pair.ready.begin(), pair.ready.end(), key) == pair.ready.end())
    pair.ready.push_back(key);
  other(to).wake_.notify_one();
}

void LoopbackStack::cancel_st(SendRequest& request, const Status& why) {
  check();
  std::lock_guard lock(net_->mutex);
  const int to = net_->process_of(request.peer);
  Pair& pair = outgoing(to);
  auto found = pair.entries.find(request.key);
  if (found == pair.entries.end() || found->second.send != &request) return;  // completing anyway
  Entry entry = std::move(found->second);
  pair.entries.erase(found);
  std::erase(pair.ready, request.key);
  finish(request, why);
  if (entry.recv != nullptr)
    other(to).finish(*entry.recv, Status(Code::kAborted, "the peer withdrew the message"));
}

void LoopbackStack::cancel_st(RecvRequest& request, const Status& why) {
  check();
  std::lock_guard lock(net_->mutex);
  Pair& pair = incoming(net_->process_of(request.peer));
  auto found = pair.entries.find(request.key);
  if (found == pair.entries.end() || found->second.recv != &request) return;
  found->second.recv = nullptr;
  std::erase(pair.ready, request.key);
  finish(request, why);
}

bool LoopbackStack::has_unmatched_st(PeerId peer, const MessageKey& key) const {
  check();
  std::lock_guard lock(net_->mutex);
  const Pair& pair = incoming(net_->process_of(peer));
  auto found = pair.entries.find(key);
  return !over_.contains(key.group) && found != pair.entries.end() && found->second.arrived &&
         found->second.recv == nullptr &&
         (found->second.has_eager || found->second.send != nullptr);
}

void LoopbackStack::solicit_st(PeerId, const MessageKey&) { check(); }  // all sends offer here

void LoopbackStack::forget_group_st(std::uint64_t group) {
  check();
  std::lock_guard lock(net_->mutex);
  over_.insert(group);
  for (int from = 0; from < net_->size(); ++from) {
    std::vector<MessageKey> arrived;
    for (const auto& [key, entry] : incoming(from).entries)
      if (key.group == group && entry.arrived) arrived.push_back(key);
    for (const MessageKey& key : arrived) drop_if_over(from, key);
  }
}

// An eager message of a group that is over here, which nobody receives. A large one is its
// sender's.
bool LoopbackStack::drop_if_over(int from, const MessageKey& key) {
  auto found = incoming(from).entries.find(key);
  if (!over_.contains(key.group) || found->second.recv != nullptr) return false;
  if (found->second.has_eager) incoming(from).entries.erase(found);
  return true;
}

void LoopbackStack::notify_st(PeerId peer, std::span<const std::byte> bytes) {
  check();
  if (bytes.size() > harp::kMaxNoticeBytes) std::abort();
  std::lock_guard lock(net_->mutex);
  const int to = net_->process_of(peer);
  Pair& pair = outgoing(to);
  ++pair.notices;
  if (pair.dead || pair.silent) return;
  pair.events.push_back({Event::kNotice, {}, 0, {bytes.begin(), bytes.end()}, {}});
  other(to).wake_.notify_one();
}

bool LoopbackStack::is_idle_st(PeerId peer) const {
  check();
  std::lock_guard lock(net_->mutex);
  return incoming(net_->process_of(peer)).ready.empty() &&
         std::none_of(completions_.begin(), completions_.end(), [&](const Completion& each) {
           return each.recv != nullptr && each.recv->peer == peer;
         });
}

void LoopbackStack::arm_st(harp::Timer& timer, Time deadline) {
  check();
  if (timer.heap_index == SIZE_MAX) timers_.push_back(&timer);
  timer.heap_index = 0;
  timer.deadline = deadline;
}

void LoopbackStack::disarm_st(harp::Timer& timer) {
  check();
  std::erase(timers_, &timer);
  timer.heap_index = SIZE_MAX;
}

Status LoopbackStack::loss_st(PeerId peer) const {
  check();
  std::lock_guard lock(net_->mutex);
  const int process = net_->process_of(peer);
  if (!incoming(process).dead) return Status();
  return Status("loopback: already lost", PeerLoss{-1, net_->stacks[process]->address_, 0});
}

void LoopbackStack::loop() {
  std::unique_lock lock(net_->mutex);
  while (true) {
    now_ = monotonic_now();
    if (Time until = stalled_until; until > now_) {
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::nanoseconds(until - now_));
      lock.lock();
      continue;
    }
    if (turn(lock)) continue;
    if (stopping_) return;
    Time next = kNever;
    for (const harp::Timer* timer : timers_) next = std::min(next, timer->deadline);
    Duration sleep = std::clamp<Duration>(next - monotonic_now(), 0, 100 * kMillisecond);
    if (sleep > 0) wake_.wait_for(lock, std::chrono::nanoseconds(sleep));
  }
}

bool LoopbackStack::turn(std::unique_lock<std::mutex>& lock) {
  bool busy = run_tasks(lock);
  busy |= run_completions(lock);
  busy |= take_event(lock);
  busy |= move_bytes();
  busy |= fire_timers(lock);
  return busy;
}

bool LoopbackStack::run_tasks(std::unique_lock<std::mutex>& lock) {
  std::deque<harp::Task*> tasks;
  tasks.swap(tasks_);
  lock.unlock();
  for (harp::Task* task : tasks) task->run_st(*this);
  lock.lock();
  return !tasks.empty();
}

bool LoopbackStack::run_completions(std::unique_lock<std::mutex>& lock) {
  std::deque<Completion> completions;
  completions.swap(completions_);
  lock.unlock();
  for (Completion& completion : completions) {
    --open;
    if (completion.send) completion.send->on_done(*completion.send, completion.status);
    if (completion.recv) completion.recv->on_done(*completion.recv, completion.status);
  }
  lock.lock();
  return !completions.empty();
}

bool LoopbackStack::take_event(std::unique_lock<std::mutex>& lock) {
  std::vector<std::pair<int, bool>> sources;
  for (int peer = 0; peer < net_->size(); ++peer) {
    const Pair& from = incoming(peer);
    // A goodbye comes after everything said before it has been delivered.
    const bool early =
        !from.events.empty() && from.events.front().type == Event::kLeft && !from.ready.empty();
    if (!from.events.empty() && !early) sources.emplace_back(peer, false);
    if (!outgoing(peer).backwards.empty()) sources.emplace_back(peer, true);
  }
  if (sources.empty()) return false;
  auto [peer, backwards] = sources[draw(sources.size())];
  auto& queue = backwards ? outgoing(peer).backwards : incoming(peer).events;
  Event event = std::move(queue.front());
  queue.pop_front();
  handle(lock, peer, event);
  return true;
}

void LoopbackStack::handle(std::unique_lock<std::mutex>& lock, int from, const Event& event) {
  harp::Observer& observer = services_;
  const PeerId peer = LoopbackNetwork::peer_of(from);
  if (event.type == Event::kEager || event.type == Event::kOffer) {
    auto found = incoming(from).entries.find(event.key);
    if (found == incoming(from).entries.end()) return;
    found->second.arrived = true;
    if (drop_if_over(from, event.key)) {
      // The observer hears of it all the same.
    } else if (found->second.recv != nullptr)
      return match_locked(from, self_, event.key);
  } else if (event.type == Event::kWant) {
    auto found = outgoing(from).entries.find(event.key);
    if (found == outgoing(from).entries.end()) return;  // it has been matched already
    const Entry& entry = found->second;
    if (entry.send != nullptr || entry.has_eager || entry.recv == nullptr) return;
  } else if (event.type == Event::kMismatch) {
    return refuse_send(lock, from, event);
  }
  lock.unlock();
  switch (event.type) {
    case Event::kEager:
    case Event::kOffer:
      observer.on_unmatched_st(peer, event.key, event.signature, true);
      break;
    case Event::kWant:
      observer.on_unmatched_st(peer, event.key, event.signature, false);
      break;
    case Event::kMismatch:
      break;
    case Event::kNotice:
      observer.on_notice_st(peer, event.bytes);
      break;
    case Event::kLost:
      observer.on_peer_lost_st(peer, event.status);
      break;
    case Event::kLeft:
      observer.on_peer_left_st(peer);
      break;
  }
  lock.lock();
}

void LoopbackStack::refuse_send(std::unique_lock<std::mutex>& lock, int to, const Event& event) {
  auto found = outgoing(to).refused.find(event.key);
  if (found == outgoing(to).refused.end()) return;
  SendRequest& send = *found->second;
  outgoing(to).refused.erase(found);
  const std::uint64_t ours = send.signature;
  lock.unlock();
  services_.on_mismatch_st(LoopbackNetwork::peer_of(to), event.key, ours, event.signature);
  lock.lock();
  finish(send, Status(Code::kMismatch, "signatures differ"));
}

bool LoopbackStack::move_bytes() {
  std::vector<int> sources;
  for (int from = 0; from < net_->size(); ++from)
    if (!incoming(from).ready.empty() && !incoming(from).held) sources.push_back(from);
  if (sources.empty()) return false;
  if (net_->shuffled() && draw(3) == 0) return true;  // later
  const int from = sources[draw(sources.size())];
  Pair& pair = incoming(from);
  const std::size_t index = draw(pair.ready.size());
  const MessageKey key = pair.ready[index];
  pair.ready.erase(pair.ready.begin() + index);
  auto node = pair.entries.extract(key);
  Entry& entry = node.mapped();
  RecvRequest& recv = *entry.recv;
  Status verdict;
  const std::size_t bytes = entry.has_eager ? entry.eager.size() : entry.send->bytes;
  if (entry.send_signature != recv.signature) {
    verdict = Status(Code::kMismatch, "signatures differ");
    const std::uint64_t receiving = recv.signature;
    if (entry.send != nullptr) {  // its engine reports it and completes it
      pair.backwards.push_back({Event::kMismatch, key, receiving, {}, {}});
      pair.refused[key] = std::exchange(entry.send, nullptr);
      other(from).wake_.notify_one();
    }
    net_->mutex.unlock();
    services_.on_mismatch_st(LoopbackNetwork::peer_of(from), key, receiving, entry.send_signature);
    net_->mutex.lock();
  } else if (bytes > recv.max_bytes) {
    verdict = Status(Code::kMismatch, "message longer than the receive");
  } else if (bytes > 0) {
    const void* data = entry.has_eager ? entry.eager.data() : entry.send->data;
    recv.sink.consume(recv.sink, 0, data, bytes);
  }
  recv.bytes = bytes;
  finish(recv, verdict);
  if (entry.send != nullptr) other(from).finish(*entry.send, verdict);
  return true;
}

bool LoopbackStack::fire_timers(std::unique_lock<std::mutex>& lock) {
  now_ = monotonic_now();
  for (harp::Timer* timer : timers_) {
    if (timer->deadline > now_) continue;
    std::erase(timers_, timer);
    timer->heap_index = SIZE_MAX;
    lock.unlock();
    timer->on_expiry(*timer, now_);
    lock.lock();
    return true;
  }
  return false;
}

// Fails whatever is open between this process and `lost`, in both directions, on this side.
void LoopbackStack::lose_locked(int lost, const Status& why) {
  for (Pair* pair : {&outgoing(lost), &incoming(lost)}) {
    pair->dead = true;
    pair->ready.clear();
    if (pair == &outgoing(lost))
      for (auto& [key, send] : std::exchange(pair->refused, {})) finish(*send, why);
    for (auto& [key, entry] : pair->entries) {
      if (pair == &outgoing(lost) && entry.send != nullptr) {
        finish(*entry.send, why);
        entry.send = nullptr;
      }
      if (pair == &incoming(lost) && entry.recv != nullptr) {
        finish(*entry.recv, why);
        entry.recv = nullptr;
      }
    }
  }
  incoming(lost).events.clear();
  incoming(lost).events.push_back({Event::kLost, {}, 0, {}, why});
  wake_.notify_one();
}

void LoopbackStack::leave_locked() {
  if (left_) return;
  left_ = true;
  for (int to = 0; to < net_->size(); ++to) {
    if (to == self_ || outgoing(to).dead) continue;
    outgoing(to).events.push_back({Event::kLeft, {}, 0, {}, {}});
    other(to).wake_.notify_one();
  }
}

void LoopbackStack::close() {
  std::lock_guard lock(net_->mutex);
  leave_locked();
}

void LoopbackStack::stop() {
  {
    std::lock_guard lock(net_->mutex);
    stopping_ = true;
    wake_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

LoopbackNetwork::LoopbackNetwork(const LoopbackOptions& options)
    : state_(std::make_shared<LoopbackState>()) {
  state_->options = options;
  state_->random.seed(options.seed);
  state_->pairs.resize(options.processes);
  for (auto& row : state_->pairs) row.resize(options.processes);
  std::lock_guard lock(state_->mutex);  // engines start turning when all of them exist
  for (int i = 0; i < options.processes; ++i)
    state_->stacks.push_back(std::make_shared<LoopbackStack>(state_.get(), i));
}

LoopbackNetwork::~LoopbackNetwork() {
  for (auto& stack : state_->stacks) stack->stop();
}

std::shared_ptr<harp::Stack> LoopbackNetwork::stack(int process) const {
  return state_->stacks[process];
}

void LoopbackState::cut_locked(int a, int b, bool unmet) {
  if (pairs[a][b].dead) return;
  for (auto [self, lost] : {std::pair{a, b}, std::pair{b, a}}) {
    const PeerLoss loss{-1, stacks[lost]->address(), unmet ? -1.0 : 0.0, unmet};
    stacks[self]->lose_locked(lost, Status("the loopback peer went dark", loss));
  }
}

void LoopbackNetwork::cut(int a, int b) {
  std::lock_guard lock(state_->mutex);
  state_->cut_locked(a, b);
}

void LoopbackNetwork::mend(int a, int b) {
  std::lock_guard lock(state_->mutex);
  state_->pairs[a][b].dead = state_->pairs[b][a].dead = false;
}

void LoopbackNetwork::kill(int process) {
  std::lock_guard lock(state_->mutex);  // at one moment: the victim can accuse nobody
  for (int peer = 0; peer < state_->size(); ++peer)
    if (peer != process) state_->cut_locked(process, peer);
}

void LoopbackNetwork::miss(int process) {
  std::lock_guard lock(state_->mutex);
  for (int peer = 0; peer < state_->size(); ++peer)
    if (peer != process) state_->cut_locked(process, peer, true);
}

void LoopbackNetwork::silence(int from, int to) {
  std::lock_guard lock(state_->mutex);
  state_->pairs[from][to].silent = true;
}

void LoopbackNetwork::hold(int from, int to, bool held) {
  std::lock_guard lock(state_->mutex);
  state_->pairs[from][to].held = held;
  state_->stacks[to]->wake_.notify_one();
}

void LoopbackNetwork::stall(int process, Duration duration) {
  state_->stacks[process]->stalled_until = monotonic_now() + duration;
}

std::uint64_t LoopbackNetwork::notices(int from, int to) const {
  std::lock_guard lock(state_->mutex);
  return state_->pairs[from][to].notices;
}

std::size_t LoopbackNetwork::unheard(int from, int to) const {
  std::lock_guard lock(state_->mutex);
  return state_->pairs[from][to].events.size();
}

std::size_t LoopbackNetwork::open_requests() const {
  std::size_t total = 0;
  for (auto& stack : state_->stacks) total += stack->open;
  return total;
}

}  // namespace taco::testing
