// Wakes the owner of a ring that was full. What it lacks are frames that the interface has not
// given back yet, and of those no descriptor tells: poll() knows of the send ring alone. So it is a
// timer, set while there is something to wait for.
//
// Owner thread only.
#pragma once

#include "base/clock.h"
#include "base/own_fd.h"
#include "base/status.h"

namespace taco::harp {

class RoomAlarm {
 public:
  // A wire of 10 Gbit/s needs six times as long for a ring of frames.
  static constexpr Duration kPeriod = 100 * kMicrosecond;

  Status start();
  int fd() const { return timer_.get(); }  // readable once it has gone off

  void set();    // it goes off a period from now
  void clear();  // it does not, and its descriptor is not readable any more

 private:
  void settle(Duration time);

  OwnFd timer_;
  bool is_set_ = false;
};

}  // namespace taco::harp
