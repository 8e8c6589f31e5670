// The state behind a harp::Transfer: one request, from when it is posted until the engine is done
// with it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/list.h"
#include "harp/api/ends_unless_copied.h"
#include "harp/api/registered_memory.h"
#include "harp/engine/stack.h"
#include "harp/harp.h"
#include "harp/transport.h"

namespace harp {

class OpenTransfer : public taco::harp::Task {
 public:
  // On the engine. Nothing where it is done.
  virtual void cancel_st(taco::harp::Transport& transport, const Status& why) = 0;
  // Whether it is with that peer, in that group of messages.
  virtual bool is_of(taco::harp::PeerId with, std::uint64_t group) const = 0;

  taco::Links<OpenTransfer> links;  // OpenTransfers' own
};

// Those of one Endpoint that are under way. The engine takes out what is done.
class OpenTransfers {
 public:
  void add(OpenTransfer& transfer) {
    std::lock_guard lock(mutex_);
    all_.push_back(transfer);
  }
  void remove(OpenTransfer& transfer) {
    std::lock_guard lock(mutex_);
    all_.erase(transfer);
  }
  bool has_any_of(taco::harp::PeerId peer, std::uint64_t group) {
    std::lock_guard lock(mutex_);
    return std::any_of(all_.begin(), all_.end(),
                       [&](const OpenTransfer& each) { return each.is_of(peer, group); });
  }
  std::vector<OpenTransfer*> list() {
    std::lock_guard lock(mutex_);
    std::vector<OpenTransfer*> listed;
    for (OpenTransfer& each : all_) listed.push_back(&each);
    return listed;
  }

 private:
  std::mutex mutex_;
  taco::List<OpenTransfer, &OpenTransfer::links> all_;
};

struct Transfer::State final : OpenTransfer, EndsUnlessCopied<Transfer::State> {
  State() = default;
  // One that has failed before it began.
  explicit State(Status why) : status(std::move(why)) { finished.set(); }

  void start(std::shared_ptr<taco::harp::Stack> by, std::shared_ptr<OpenTransfers> among);
  void cancel();
  void cancel_st(taco::harp::Transport& transport, const Status& why) override;
  bool is_of(taco::harp::PeerId with, std::uint64_t group) const override {
    return peer == with && (sends ? send.key : receive.key).group == group;
  }

  std::shared_ptr<taco::harp::Stack> stack;
  std::shared_ptr<OpenTransfers> open;
  taco::harp::PeerId peer = 0;
  bool sends = false;
  taco::harp::SendRequest send;
  taco::harp::RecvRequest receive;
  RegisteredMemory::Kept memory;  // that it lies in, until it is done
  taco::harp::Event finished;
  Status status;  // once it is finished

 private:
  void run_st(taco::harp::Transport& transport) override;
  void finish(const Status& why);
};

}  // namespace harp
