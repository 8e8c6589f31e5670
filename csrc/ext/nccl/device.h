// The one network device that NCCL sees, which is all that HARP has in this process, and whatever
// was made with it. What NCCL has not closed when it finalizes the network ends with it.
//
// Connections take the process's engines by turns (TACO_HARP_ENGINES). A single engine is driven by
// the threads of NCCL's that test requests; of several each has its own thread do it, so that as
// many cores carry what NCCL sends.
//
// Any thread; nothing here waits for another process.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "ext/nccl/comm.h"
#include "ext/nccl/links.h"
#include "harp/harp.h"

namespace harp::nccl {

// A listener, which NCCL calls a listening comm.
struct Listening {
  Endpoint& endpoint;
  Listener listener;
};

class Device {
 public:
  // As HARP's variables say (docs/environment.md).
  static Result<std::unique_ptr<Device>> open();
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const Links& links() const { return links_; }
  std::string transport() const { return endpoints_.front().transport(); }
  bool idle() const;  // nothing is open that was made with it

  // Writes the handle's 128 bytes.
  Result<Listening*> listen(void* handle);
  // Both are asked again until they give a connection; until then it is null.
  Result<Comm*> connect(void* handle);
  Result<Comm*> accept(Listening* listening);

  // kInvalidArgument: it is not open.
  Status close(Comm* comm);
  Status close(Listening* listening);

 private:
  // A process on its way to a listener.
  struct Dialing {
    Endpoint& endpoint;
    Dialer dialer;
  };

  explicit Device(std::vector<Endpoint> endpoints);
  Endpoint& next(std::size_t* turn);
  Result<std::shared_ptr<Dialing>> dial(void* handle);
  Comm* keep(Endpoint& endpoint, const Connection& connection, Direction direction);

  std::vector<Endpoint> endpoints_;  // one an engine
  const Links links_;
  mutable std::mutex mutex_;  // guards all below, and is not held while one of them ends
  std::map<Listening*, std::unique_ptr<Listening>> listenings_;
  std::map<Comm*, std::unique_ptr<Comm>> comms_;
  std::map<std::uint64_t, std::shared_ptr<Dialing>> dialings_;
  std::uint64_t last_dialing_ = 0;
  std::size_t listens_ = 0, dials_ = 0;  // so many have had an endpoint
};

}  // namespace harp::nccl
