// Wakes the owner of rings for what no descriptor tells of: frames that an interface has not given
// back yet, since poll() knows of the send ring alone, and queues that the kernel has not given up
// yet. So it is a timer, set while there is something to wait for.
//
// Owner thread only.
#pragma once

#include "base/clock.h"
#include "base/own_fd.h"
#include "base/status.h"

namespace taco::harp {

class WakeAlarm {
 public:
  Status start();
  int fd() const { return timer_.get(); }  // readable once it has gone off

  void set(Duration time);  // it goes off so long from now
  void clear();             // it does not, and its descriptor is not readable any more

 private:
  void set_timer(Duration time);

  OwnFd timer_;
  bool is_set_ = false;
};

}  // namespace taco::harp
