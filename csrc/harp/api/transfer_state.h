// The state behind a harp::Transfer: one request, from when it is posted until the engine is done
// with it.
#pragma once

#include <memory>

#include "harp/api/registered_memory.h"
#include "harp/engine/stack.h"
#include "harp/harp.h"
#include "harp/transport.h"

namespace harp {

struct Transfer::State final : taco::harp::Task {
  State() = default;
  // One that has failed before it began.
  explicit State(Status why) : status(std::move(why)) { finished.set(); }

  void start(std::shared_ptr<taco::harp::Stack> by);
  void cancel();

  std::shared_ptr<taco::harp::Stack> stack;
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
