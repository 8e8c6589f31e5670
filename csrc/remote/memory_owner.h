// The side of an endpoint whose memory the peer reads and writes. Each request is checked against
// the region that it names before a byte moves: its token, its bounds, and that it is registered
// still. Then the bytes are received right into the region, or sent from it, and the requester gets
// an answer.
//
//   a request     event                           then
//   -             it comes, and is refused        answering
//   -             it comes with its bytes         they are in place; answering
//   -             it comes, and they follow, or   moving
//                 are to be read
//   moving        the bytes are over, or were     answering
//                 cut off because the region is
//                 revoked
//   answering     the answer has arrived          done
//   any           the peer is lost                done
//
// An owner that has stopped refuses what comes until all that was asked is answered, and from then
// on drops it: else a peer that keeps asking would keep it from ending.
//
// Engine only.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "harp/transport.h"
#include "remote/handle.h"
#include "remote/message.h"

namespace taco::remote {

class MemoryOwner {
 public:
  // `own`: of this endpoint.
  explicit MemoryOwner(std::uint64_t own);
  ~MemoryOwner();

  void connect_st(harp::PeerId peer) { peer_ = peer; }

  // The memory outlives the region. `token` is random.
  Handle add_st(std::byte* memory, std::uint64_t bytes, const Token& token);
  // From now on every request for it is refused, and those that move its bytes end. `then` is
  // called once nothing touches the memory any more, perhaps within this call; at once for a region
  // that was revoked before.
  void revoke_st(std::uint64_t number, std::function<void()> then);

  // A request of the peer's.
  void take_st(const Request& request, harp::Transport& transport);

  // Refuses all that comes, with `why`, and revokes all regions. `then`: once every answer has
  // arrived. Nothing is open from then on: what comes is dropped, and the Parting that the caller
  // says is its answer.
  void stop_st(const Status& why, std::function<void()> then);
  // Gives the answers up that have not arrived, and answers nothing more. After stop_st() only.
  void abandon_st(const Status& why);
  bool is_idle_st() const { return open_ == 0 && held_.empty(); }

 private:
  struct Region {
    std::byte* memory = nullptr;
    std::uint64_t bytes = 0;
    Token token{};
    std::uint32_t moving = 0;  // requests
    bool is_revoked = false;
    std::function<void()> then;  // of a revoked one
  };
  struct Serving;
  // A request that waits until fewer answers are on their way.
  struct Held {
    Request request;
    std::vector<std::byte> carried;
  };

  Result<Region*> region_for(const Request& request);
  void serve(const Request& request);
  void move_bytes(Serving& serving, const Request& request);
  void moved(Serving& serving, const Status& status, std::uint64_t bytes);
  void answer(Serving& serving, const Status& status);
  void finish(Serving& serving);
  void tell_if_idle();
  void let_go(Serving& serving);
  Serving& take_serving();

  const std::uint64_t own_;
  harp::PeerId peer_ = 0;
  harp::Transport* transport_ = nullptr;
  std::uint64_t next_region_ = 1;
  std::map<std::uint64_t, Region> regions_;  // by number; revoked ones until nothing moves
  std::uint64_t last_number_ = 0;            // of the peer's requests
  std::size_t unanswered_ = 0;               // requests, those that are held among them
  std::size_t open_ = 0;                     // Servings in use
  std::vector<std::unique_ptr<Serving>> all_;
  std::vector<Serving*> free_;
  std::deque<Held> held_;
  Status stopped_;
  bool is_over_ = false;  // nothing is answered any more
  std::function<void()> when_idle_;
};

}  // namespace taco::remote
