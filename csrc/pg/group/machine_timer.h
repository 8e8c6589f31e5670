// A timer that calls a member function of the machine it is a part of. It learns of the transport
// when it is first armed. Engine only.
#pragma once

#include "harp/transport.h"

namespace taco::pg {

template <class Machine>
class MachineTimer {
 public:
  using Expiry = void (Machine::*)(Time now);
  MachineTimer(Machine& machine, Expiry expiry) : machine_(machine), expiry_(expiry) {
    timer_.on_expiry = [](harp::Timer& timer, Time now) {
      MachineTimer& self = *static_cast<MachineTimer*>(timer.context);
      (self.machine_.*self.expiry_)(now);
    };
    timer_.context = this;
  }
  MachineTimer(const MachineTimer&) = delete;
  MachineTimer& operator=(const MachineTimer&) = delete;

  void arm_st(harp::Transport& transport, Time deadline) {
    transport_ = &transport;
    transport.arm_st(timer_, deadline);
  }
  void again_st(Time deadline) { transport_->arm_st(timer_, deadline); }  // it was armed before
  harp::Transport& transport() const { return *transport_; }              // likewise
  void disarm_st() {
    if (transport_ != nullptr) transport_->disarm_st(timer_);
  }

 private:
  Machine& machine_;
  const Expiry expiry_;
  harp::Timer timer_;
  harp::Transport* transport_ = nullptr;
};

}  // namespace taco::pg
