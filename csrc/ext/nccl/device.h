// The one network device that NCCL sees, which is all that HARP has in this process, and whatever
// was made with it. What a communicator has not closed when it finalizes the network ends with it.
//
// NCCL gives a connect up by asking for it no more. Communicators of version 10 have no end, and
// others may live for long: so a connect that nobody has asked for in so many rounds has been given
// up. Rounds pass only while NCCL calls: a process that was stopped finds its own again.
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

// Whose something is: a communicator's that has an end, or nobody's that will say so.
using Owner = std::uint64_t;
inline constexpr Owner kNobody = 0;

// A listener, which NCCL calls a listening comm.
struct Listening {
  const Owner owner;
  Endpoint& endpoint;
  Listener listener;
};

class Device {
 public:
  // As HARP's variables say (docs/environment.md).
  static constexpr taco::Duration kRound = 15 * taco::kSecond;
  static constexpr int kRoundsUnasked = 4;
  static Result<std::unique_ptr<Device>> open(taco::Duration round = kRound);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const Links& links() const { return links_; }
  std::string transport() const { return endpoints_.front().transport(); }
  bool idle() const;  // nothing is open that was made with it
  // Waits until what is sent has arrived, for a second at most.
  void flush();

  // Writes the handle's 128 bytes.
  Result<Listening*> listen(Owner owner, void* handle);
  // Both are asked again until they give a connection; until then it is null. A comm is its
  // listener's owner's.
  Result<Comm*> connect(Owner owner, void* handle);
  Result<Comm*> accept(Listening* listening);

  // kInvalidArgument: it is not open.
  Status close(Comm* comm);
  Status close(Listening* listening);
  // All that is the owner's.
  void close_all_of(Owner owner);

 private:
  // A process on its way to a listener.
  struct Dialing {
    const Owner owner;
    Endpoint& endpoint;
    Dialer dialer;
    int rounds = 0;  // that have passed since it was asked for
  };
  struct OpenComm {
    Owner owner;
    std::unique_ptr<Comm> comm;
  };

  Device(std::vector<Endpoint> endpoints, taco::Duration round);
  Endpoint& next(std::size_t* turn);
  Result<std::shared_ptr<Dialing>> dial(Owner owner, void* handle);
  Comm* keep(Owner owner, Endpoint& endpoint, const Connection& connection, Direction direction);
  void end_given_up();

  std::vector<Endpoint> endpoints_;  // one an engine
  const Links links_;
  mutable std::mutex mutex_;  // guards all below, and is not held while one of them ends
  std::map<Listening*, std::unique_ptr<Listening>> listenings_;
  std::map<Comm*, OpenComm> comms_;
  std::map<std::uint64_t, std::shared_ptr<Dialing>> dialings_;
  std::uint64_t last_dialing_ = 0;
  const taco::Duration round_;
  taco::Time round_ends_at_ = 0;
  std::size_t listens_ = 0, dials_ = 0;  // so many have had an endpoint
};

}  // namespace harp::nccl
