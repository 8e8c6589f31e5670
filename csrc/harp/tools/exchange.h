// Blocking sends and receives over a Stack, for tools and tests: a handful of requests posted
// together and waited for together.
//
// One Exchange a batch; any thread that may call Engine::wait.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "harp/engine/stack.h"

namespace taco::harp {

class Exchange final : public Task {
 public:
  explicit Exchange(Stack& stack) : engine_(stack.engine()) {}
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  Exchange& send(PeerId peer, MessageKey key, const void* data, std::size_t bytes,
                 std::uint64_t signature = 0) {
    auto& entry = sends_.emplace_back(std::make_unique<Entry<SendRequest>>());
    entry->peer = peer;
    entry->request.key = key;
    entry->request.signature = signature;
    entry->request.data = data;
    entry->request.bytes = bytes;
    return *this;
  }
  Exchange& recv(PeerId peer, MessageKey key, Sink sink, std::size_t max_bytes,
                 std::uint64_t signature = 0) {
    auto& entry = recvs_.emplace_back(std::make_unique<Entry<RecvRequest>>());
    entry->peer = peer;
    entry->request.key = key;
    entry->request.signature = signature;
    entry->request.sink = sink;
    entry->request.max_bytes = max_bytes;
    return *this;
  }

  // The first failure, or ok. On kTimeout everything still open has been cancelled. May be called
  // again, with the same requests under new keys.
  Status run(Duration timeout = 60 * kSecond) {
    start(true);
    return finish(timeout);
  }
  // In two steps: others may work in between.
  void start(bool caller_will_wait = false) {
    done_ = std::make_unique<Event>();
    status_ = Status();
    engine_.submit(*this, caller_will_wait);
  }
  Status finish(Duration timeout = 60 * kSecond) {
    if (!engine_.wait(*done_, monotonic_now() + timeout)) {
      engine_.submit(canceller_, true);
      engine_.wait(*done_, monotonic_now() + 10 * kSecond);
    }
    return status_;
  }
  bool done() const { return done_->is_set(); }

  SendRequest& sent(std::size_t index) { return sends_[index]->request; }
  RecvRequest& received(std::size_t index) { return recvs_[index]->request; }
  // For another round.
  void set_tag(std::uint64_t tag) {
    for (auto& entry : sends_) entry->request.key.tag = tag;
    for (auto& entry : recvs_) entry->request.key.tag = tag;
  }

 private:
  template <class Request>
  struct Entry {
    PeerId peer = 0;
    Request request;
    bool open = false;
  };
  struct Canceller final : Task {
    explicit Canceller(Exchange& owner) : owner(owner) {}
    void run_st(Transport& transport) override { owner.cancel_st(transport); }
    Exchange& owner;
  };

  void run_st(Transport& transport) override {
    open_ = sends_.size() + recvs_.size();
    if (open_ == 0) return complete();
    for (auto& entry : recvs_) post(*entry);
    for (auto& entry : recvs_) transport.recv_st(entry->peer, entry->request);
    for (auto& entry : sends_) post(*entry);
    for (auto& entry : sends_) transport.send_st(entry->peer, entry->request);
  }
  template <class Request>
  void post(Entry<Request>& entry) {
    entry.open = true;
    entry.request.context = this;
    entry.request.on_done = [](Request& request, const Status& status) {
      static_cast<Exchange*>(request.context)->on_done(request, status);
    };
  }
  void on_done(SendRequest& request, const Status& status) {
    for (auto& entry : sends_) {
      if (&entry->request == &request) entry->open = false;
    }
    finished(status);
  }
  void on_done(RecvRequest& request, const Status& status) {
    for (auto& entry : recvs_) {
      if (&entry->request == &request) entry->open = false;
    }
    finished(status);
  }
  void finished(const Status& status) {
    if (!status.ok() && status_.ok()) status_ = status;
    if (--open_ == 0) complete();
  }
  void complete() {
    // Once the event is set, the waiter may end this object's life.
    Engine& engine = engine_;
    done_->set();
    engine.wake_waiters();
  }
  void cancel_st(Transport& transport) {
    const Status why(Code::kTimeout, "the exchange took too long");
    for (auto& entry : sends_) {
      if (entry->open) transport.cancel_st(entry->request, why);
    }
    for (auto& entry : recvs_) {
      if (entry->open) transport.cancel_st(entry->request, why);
    }
  }

  Engine& engine_;
  Canceller canceller_{*this};
  std::vector<std::unique_ptr<Entry<SendRequest>>> sends_;
  std::vector<std::unique_ptr<Entry<RecvRequest>>> recvs_;
  std::size_t open_ = 0;
  Status status_;
  std::unique_ptr<Event> done_;
};

}  // namespace taco::harp
