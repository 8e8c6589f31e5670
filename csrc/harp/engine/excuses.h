// By how much an engine that comes back late moves its deadlines: it blames nobody for what it was
// kept from hearing. Its own work is no excuse, or an engine that always has some would wait for
// ever. Nor is being kept away again and again, beyond some time: in the long run no deadline takes
// more than twice as long as it says.
//
// A pure value.
#pragma once

#include <algorithm>

#include "base/clock.h"

namespace taco::harp {

class Excuses {
 public:
  static constexpr Duration kAtOnce = 300 * kSecond;

  // A turn begins `late`, of which the engine has worked for so long itself.
  Duration grant(Time now, Duration late, Duration worked) {
    left_ = std::min(left_ + (now - since_), kAtOnce);
    since_ = now;
    const Duration away = std::max<Duration>(late - worked, 0);
    if (left_ <= 0) return 0;
    left_ = std::max(left_ - 2 * away, -kAtOnce);
    return away;
  }

 private:
  Duration left_ = kAtOnce;
  Time since_ = 0;
};

}  // namespace taco::harp
