// One peer reached through shared memory. Made and owned by a ShmEndpoint; owner thread only.
#pragma once

#include <string>

#include "harp/link.h"

namespace taco::harp {

class ShmLink : public Link {
 public:
  // Before the first use of the link, once.
  virtual void attach(LinkEvents& events) = 0;

  // Connects if that has not happened yet, so that the peer's death is noticed. Every send or want
  // does it; a receive that waits for an eager message says nothing to the link, so whoever posts
  // it calls this. Cheap when done already.
  virtual void connect() = 0;

  virtual bool is_connected() const = 0;
  // "pid 77 on this host"; before the connection, "a process on this host".
  virtual std::string describe() const = 0;
};

}  // namespace taco::harp
