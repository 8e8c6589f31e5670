// Inside the in-memory network: what two processes have between them, and a process's stack.
// Included by loopback_stack.cc only.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <utility>

#include "harp/engine/services.h"
#include "support/loopback_stack.h"

namespace taco::testing {

using harp::MessageKey;
using harp::PeerId;
using harp::RecvRequest;
using harp::SendRequest;

struct KeyOrder {
  bool operator()(const MessageKey& a, const MessageKey& b) const {
    return a.group != b.group ? a.group < b.group : a.tag < b.tag;
  }
};

// One key of one directed pair of processes.
struct Entry {
  SendRequest* send = nullptr;
  RecvRequest* recv = nullptr;
  bool has_eager = false;
  bool offered = false;  // the receiver may be told, and any-source may match
  bool arrived = false;  // the receiver's engine has seen the eager message or the offer
  bool wanted = false;   // a want has been sent for this receive
  std::uint64_t send_signature = 0;
  std::vector<std::byte> eager;
};

struct Event {
  enum Type { kEager, kOffer, kWant, kMismatch, kNotice, kLost, kLeft } type;
  MessageKey key;
  std::uint64_t signature = 0;
  std::vector<std::byte> bytes;
  Status status;
};

struct Completion {
  SendRequest* send = nullptr;
  RecvRequest* recv = nullptr;
  Status status;
};

struct Pair {  // everything that goes from one process to another
  std::map<MessageKey, Entry, KeyOrder> entries;
  std::deque<Event> events;       // towards the receiver of data
  std::deque<Event> backwards;    // wants and mismatches, towards the sender of data
  std::vector<MessageKey> ready;  // matched: the receiver's engine moves the bytes
  std::map<MessageKey, SendRequest*, KeyOrder> refused;  // mismatched, not completed yet
  bool dead = false;
  bool silent = false;
  bool held = false;
  std::uint64_t notices = 0;  // ever sent this way
};

struct LoopbackState {
  LoopbackOptions options;
  mutable std::mutex mutex;
  std::mt19937_64 random;
  std::vector<std::shared_ptr<LoopbackStack>> stacks;
  std::vector<std::vector<Pair>> pairs;  // [from][to]

  void cut_locked(int a, int b, bool unmet = false);
  int size() const { return options.processes; }
  static int process_of(PeerId peer) { return static_cast<int>(peer) - 100; }
  bool shuffled() const { return options.seed != 0; }
};

class LoopbackStack final : public harp::Stack, public harp::Engine, public harp::Transport {
 public:
  LoopbackStack(LoopbackState* net, int self) : net_(net), self_(self) {
    address_ = "loopback " + std::to_string(self);
    thread_ = std::thread([this] { loop(); });
  }
  ~LoopbackStack() override { stop(); }

  // Stack
  std::string address() const override { return address_; }
  Result<PeerId> add_peer(std::string_view address) override {
    return LoopbackNetwork::peer_of(std::stoi(std::string(address.substr(9))));
  }
  void release_peer(PeerId) override {}
  bool is_local(PeerId peer) const override {
    return host_index(net_->process_of(peer)) == host_index(self_);
  }
  std::string host_of(PeerId peer) const override {
    return "host" + std::to_string(host_index(net_->process_of(peer)));
  }
  std::string describe(PeerId peer) const override {
    return "loopback process " + std::to_string(net_->process_of(peer));
  }
  std::string host() const override { return "host" + std::to_string(host_index(self_)); }
  std::uint64_t incarnation() const override { return 0xabc000u + self_; }
  std::uint64_t incarnation_of(PeerId peer) const override {
    return 0xabc000u + net_->process_of(peer);
  }
  harp::Engine& engine() override { return *this; }
  void set_observer(harp::Service service, harp::Observer* observer) override {
    std::lock_guard lock(net_->mutex);
    services_.set(service, observer);
  }
  harp::StackStats stats() const override { return {}; }
  std::string transport_summary() const override { return "loopback"; }
  void close() override;

  // Engine
  void submit(harp::Task& task, bool) override {
    std::lock_guard lock(net_->mutex);
    tasks_.push_back(&task);
    wake_.notify_one();
  }
  bool wait(const harp::Event& event, Time deadline) override;
  bool poll() override { return false; }  // its thread never leaves
  void wake_waiters() override {
    std::lock_guard lock(waiters_mutex_);
    waiters_.notify_all();
  }
  harp::Transport& transport() override { return *this; }
  bool in_engine() const override { return std::this_thread::get_id() == thread_.get_id(); }

  // Transport
  void send_st(PeerId peer, SendRequest& request) override;
  void recv_st(PeerId peer, RecvRequest& request) override;
  void cancel_st(SendRequest& request, const Status& why) override;
  void cancel_st(RecvRequest& request, const Status& why) override;
  void release_st(harp::Staging&) override {}
  bool has_unmatched_st(PeerId peer, const MessageKey& key) const override;
  void solicit_st(PeerId peer, const MessageKey& key) override;
  void forget_group_st(std::uint64_t group) override;
  void notify_st(PeerId peer, std::span<const std::byte> bytes) override;
  bool is_idle_st(PeerId peer) const override;
  Time now_st() const override { return now_; }
  void arm_st(harp::Timer& timer, Time deadline) override;
  void disarm_st(harp::Timer& timer) override;
  bool is_local_st(PeerId peer) const override { return is_local(peer); }
  Status loss_st(PeerId peer) const override;

  void stop();
  void lose_locked(int other, const Status& why);
  void leave_locked();

  std::atomic<Time> stalled_until{0};
  std::atomic<std::size_t> open{0};
  std::condition_variable wake_;

 private:
  int host_index(int process) const {
    return net_->options.processes_per_host ? process / net_->options.processes_per_host : 0;
  }
  Pair& outgoing(int to) { return net_->pairs[self_][to]; }
  Pair& incoming(int from) { return net_->pairs[from][self_]; }
  const Pair& incoming(int from) const { return net_->pairs[from][self_]; }
  LoopbackStack& other(int process) { return *net_->stacks[process]; }
  void check() const {
    if (!in_engine()) std::abort();  // an _st function without the token
  }
  std::size_t draw(std::size_t n) { return net_->shuffled() ? net_->random() % n : 0; }

  void loop();
  bool turn(std::unique_lock<std::mutex>& lock);
  bool run_tasks(std::unique_lock<std::mutex>& lock);
  bool run_completions(std::unique_lock<std::mutex>& lock);
  bool take_event(std::unique_lock<std::mutex>& lock);
  bool drop_if_over(int from, const MessageKey& key);
  bool move_bytes();
  bool fire_timers(std::unique_lock<std::mutex>& lock);
  void handle(std::unique_lock<std::mutex>& lock, int from, const Event& event);
  void refuse_send(std::unique_lock<std::mutex>& lock, int to, const Event& event);
  void match_locked(int from, int to, const MessageKey& key);
  void finish(SendRequest& request, const Status& status) {
    completions_.push_back({&request, nullptr, status});
    wake_.notify_one();
  }
  void finish(RecvRequest& request, const Status& status) {
    completions_.push_back({nullptr, &request, status});
    wake_.notify_one();
  }

  LoopbackState* net_;
  const int self_;
  std::string address_;
  harp::Services services_;
  std::deque<harp::Task*> tasks_;
  std::deque<Completion> completions_;
  std::vector<harp::Timer*> timers_;
  std::set<std::uint64_t> over_;  // groups
  Time now_ = monotonic_now();
  bool stopping_ = false;
  bool left_ = false;
  std::mutex waiters_mutex_;
  std::condition_variable waiters_;
  std::thread thread_;
};

}  // namespace taco::testing
