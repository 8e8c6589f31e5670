// An endpoint as a program has it: memory that it registers for one peer, a process of any job, and
// reads and writes of memory that this peer has registered for it.
//
// Any thread, without the GIL; what waits says so. Nothing of the engine's may call in here. In a
// forked child every call says at once that the transport stayed with its parent (kAborted), except
// those that give something back, which have nothing to do there.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/fork.h"
#include "harp/engine/stack.h"
#include "remote/directory.h"
#include "remote/endpoint_core.h"

namespace taco::remote {

// A read or a write under way. It goes on when nobody holds it any more.
class Transfer final : public harp::Task, public std::enable_shared_from_this<Transfer> {
 public:
  Transfer(std::shared_ptr<harp::Stack> stack, std::shared_ptr<EndpointCore> core);

  bool done() const { return event_.is_set(); }
  const Status& status() const { return status_; }  // once it is done
  // Drives the engine until it is done, and returns its status. kTimeout at the deadline: then it
  // goes on.
  Status wait(Time deadline);
  // On a completion thread, once; soon, if it is done already. kAborted, and never: it stayed with
  // the parent of this process.
  Status on_complete(std::function<void()> callback);

  void run_st(harp::Transport& transport) override;

 private:
  friend class Endpoint;
  void finish_st(const Status& status);

  const std::shared_ptr<harp::Stack> stack_;
  const std::shared_ptr<EndpointCore> core_;
  Operation operation_;
  std::shared_ptr<Transfer> self_;  // while the engine has it
  harp::Event event_;
  Status status_;
  const std::uint32_t generation_ = fork_generation();
  std::mutex mutex_;
  std::vector<std::function<void()>> callbacks_;  // guarded by mutex_, until it is done
};
using TransferPtr = std::shared_ptr<Transfer>;

class Endpoint {
 public:
  // `id` is a group's of kRemoteMemory (harp/service.h), random, and this endpoint's for ever.
  static Result<std::shared_ptr<Endpoint>> open(std::shared_ptr<harp::Stack> stack,
                                                std::uint64_t id);
  Endpoint(std::shared_ptr<harp::Stack> stack, std::uint64_t id);
  ~Endpoint();  // drop()

  std::uint64_t id() const { return core_->id(); }
  // The process of that address, and the endpoint there. Waits for nobody: the peer may connect
  // later. kInvalidArgument: it is connected already.
  Status connect(std::string_view process, std::uint64_t endpoint);
  bool connected() const;  // and nothing is known of the peer's end
  std::string describe_peer() const;

  // The memory stays where it is until the handle's region is revoked, or this is closed.
  Result<Handle> add(std::byte* memory, std::uint64_t bytes);
  // Returns once nothing of the peer's touches the memory. kTimeout: it may yet; try again.
  Status revoke(std::uint64_t region, Time deadline);

  // The memory stays until the transfer is done. kInvalidArgument: the handle is another
  // endpoint's than the peer's, or stands for fewer bytes; there is no peer.
  Result<TransferPtr> start(Action action, std::byte* memory, std::uint64_t bytes,
                            const Handle& remote);

  // Waits for the transfers that were started here, and until the peer has its answers; then there
  // is nothing of this endpoint any more. kTimeout, with nothing lost: transfers are under way
  // still. Idempotent.
  Status close(Time deadline);
  // close() in a moment, and without what is under way, which fails. Whatever else than ok: the
  // engine hangs, and may touch memory yet.
  Status drop();

 private:
  enum class Stage : std::uint8_t { kOpen, kClosing, kClosed };

  static constexpr std::size_t kFewTransfers = 64;

  Status usable() const;
  // Why the function has not run, and never will.
  Status on_engine(std::function<void(harp::Transport&)> function) const;
  void note_started(const TransferPtr& transfer);
  Status drain(Time deadline);
  Status leave(Time deadline);

  const std::shared_ptr<harp::Stack> stack_;
  const std::shared_ptr<EndpointCore> core_;
  const std::shared_ptr<Directory> directory_;
  mutable std::mutex mutex_;  // guards what follows; not held in a wait for the peer
  Stage stage_ = Stage::kOpen;
  bool is_connected_ = false;
  harp::PeerId peer_ = 0;
  std::uint64_t peer_endpoint_ = 0;
  std::vector<std::weak_ptr<Transfer>> started_;  // that may not be done
  std::size_t tidy_at_ = kFewTransfers;           // when it has so many, those that are go
  std::mutex closing_;                            // one close at a time
};

}  // namespace taco::remote
