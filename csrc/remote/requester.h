// The side of an endpoint that reads and writes the memory of its peer. A request is told to the
// owner, and is over once the owner has answered and no byte of it moves any more: then what was
// written is in place, or what was read is here.
//
//   a request     event                        then
//   queued        fewer than kMaxRequests     open: the owner is told, the receive of its answer
//   is
//                 are open                     posted, and the bytes are offered or received
//   open          a refusal comes              open; its bytes are cancelled
//   open          answer and bytes are over    done, with the refusal if there was one
//   any           fail_st()                    done, once nothing of it is open
//
// The open receive of the answer makes the engine watch over the peer's life. Engine only.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "harp/message_parts.h"
#include "harp/transport.h"
#include "remote/handle.h"
#include "remote/message.h"

namespace taco::remote {

// That one endpoint has open with its peer, at most; its owner refuses more.
inline constexpr std::size_t kMaxRequests = 64;

// A read or a write of any length. The caller keeps it, and its memory, until on_done.
struct Operation {
  Action action = Action::kRead;
  std::byte* memory = nullptr;
  std::uint64_t bytes = 0;
  Handle remote;
  void (*on_done)(Operation& operation, const Status& status) = nullptr;
  void* context = nullptr;

  // the requester's own
  std::uint64_t begun = 0;  // bytes
  std::uint32_t open = 0;   // requests
  Status status;
};

class Requester {
 public:
  // `own`: of this endpoint. Longer operations become several requests.
  explicit Requester(std::uint64_t own, std::uint64_t part_bytes = harp::kPartBytes);
  ~Requester();

  // `name`: of the peer, for messages.
  void connect_st(harp::PeerId peer, std::uint64_t endpoint, std::string name);
  // on_done may be called before this returns. After connect_st() only.
  void start_st(Operation& operation, harp::Transport& transport);
  // Ends all there is; what is started later ends with `why` at once.
  void fail_st(const Status& why);
  bool is_idle_st() const { return queue_.empty() && open_ == 0; }

 private:
  struct Open;

  void go_on();
  void begin(Operation& operation);
  void post(Open& request, Request told, std::byte* memory);
  void answered(Open& request, const Status& status);
  void moved(Open& request, const Status& status, std::uint64_t bytes);
  void cancel_bytes(Open& request, const Status& why);
  void finish_if_over(Open& request);
  void finish_if_over(Operation& operation);
  Status named(const Status& status) const;

  const std::uint64_t own_, part_bytes_;
  harp::PeerId peer_ = 0;
  std::uint64_t peer_endpoint_ = 0;
  std::string peer_name_;
  harp::Transport* transport_ = nullptr;
  std::uint64_t last_number_ = 0;
  Status failure_;
  std::deque<Operation*> queue_;  // those that are not begun in full
  std::size_t open_ = 0;
  std::vector<std::unique_ptr<Open>> all_;
  std::vector<Open*> free_;
};

}  // namespace taco::remote
