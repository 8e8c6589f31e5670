// The one network device that NCCL sees, which is all that HARP has in this process, and whatever
// was made with it. What NCCL has not closed when it finalizes the network ends with it.
//
// Any thread; nothing here waits for another process.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "base/status.h"
#include "ext/nccl/comm.h"
#include "ext/nccl/links.h"
#include "harp/harp.h"

namespace harp::nccl {

class Device {
 public:
  // As HARP's variables say (docs/environment.md).
  static Result<std::unique_ptr<Device>> open();
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const Links& links() const { return links_; }
  std::string transport() const { return endpoint_.transport(); }
  bool idle() const;  // nothing is open that was made with it

  // Writes the handle's 128 bytes.
  Result<Listener*> listen(void* handle);
  // Both are asked again until they give a connection; until then it is null.
  Result<Comm*> connect(void* handle);
  Result<Comm*> accept(Listener* listener);

  // kInvalidArgument: it is not open.
  Status close(Comm* comm);
  Status close(Listener* listener);

 private:
  explicit Device(Endpoint endpoint);
  Result<Meeting> dial(void* handle);
  Comm* keep(const Meeting& meeting, Direction direction);

  Endpoint endpoint_;
  const Links links_;
  mutable std::mutex mutex_;  // guards all below, and is not held while one of them ends
  std::map<Listener*, std::unique_ptr<Listener>> listeners_;
  std::map<Comm*, std::unique_ptr<Comm>> comms_;
  std::map<std::uint64_t, std::shared_ptr<Dialer>> dialers_;
  std::uint64_t last_dialer_ = 0;
};

}  // namespace harp::nccl
