// A witness of what becomes of requests, for a timeline (pg/controller/timeline.h). All calls come
// from the controller's thread, which waits for them: they are short and take no lock that others
// hold for long. Whoever made the listener shares it with the controller. `set` is the process set
// of what they tell: names are unique within one.
#pragma once

#include "base/clock.h"
#include "pg/controller/request.h"

namespace taco::pg::controller {

class Listener {
 public:
  virtual ~Listener() = default;
  virtual void negotiating(int set, const Request& request, Time now) = 0;  // submitted here
  virtual void agreed(int set, const Response& response, Time now) = 0;
  // Begins a part of the response's work, and ends the one before. `what` is a literal, which is
  // kept: "MEMCPY_IN_FUSION_BUFFER", ...
  virtual void activity(int set, const Response& response, const char* what, Time now) = 0;
  // Before whoever waits for its requests hears of it.
  virtual void ended(int set, const Response& response, Time now) = 0;
  // It ends, also before that is told, without having been agreed on.
  virtual void given_up(int set, const Request& request, Time now) = 0;
  virtual void cycle(Time now) = 0;  // a round begins
};

}  // namespace taco::pg::controller
