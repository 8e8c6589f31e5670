// Keeps ranks that are to do the same thing together. Before they exchange anything, all say what
// they are about to do, in a few bytes; only when all have said the same do they begin. So ranks
// whose programs part (a branch that depends on the data, an exception on one of them) all hear of
// that, by an error that says who was about to do what, and none waits for what will never come.
//
//   announce(A)   what was announced before begins; then the ranks are told of A
//   wait()        what was announced last begins, once all have announced it
//
// So a rank's calls of the group are an announcement, what was announced, the next announcement,
// and so on, whatever its program does: where programs part, announcements match announcements. And
// nobody waits for an announcement before it is needed: pages that will be needed are announced
// while others compute.
//
// A run is what is repeated, a training step for example. Where ranks have parted it is over for
// all: everything fails until the next begin_run().
//
// One thread at a time. A caller that uses the group for something else while ranks are in step
// comes here first, with barrier().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/status.h"
#include "zerocache/ranks/collectives.h"

namespace taco::zerocache {

// The action that a rank is about to take.
struct Intent {
  std::string what;          // for messages: "gather page 3 (h.0.weight)"
  std::uint64_t digest = 0;  // of what has to be alike on all ranks
  Status own;                // what keeps this rank from it
  // By calls of the group; where all ranks can. May be empty, as drop may.
  std::function<Status()> start = nullptr;
  // Nothing comes of it, because of that.
  std::function<void(const Status&)> drop = nullptr;
};

class Lockstep {
 public:
  explicit Lockstep(Collectives& ranks) : ranks_(ranks) {}
  // Waits for nobody.
  ~Lockstep();
  Lockstep(const Lockstep&) = delete;
  Lockstep& operator=(const Lockstep&) = delete;

  // Waits as wait() does, and whatever the ranks have done before is forgotten. Fails where the
  // group has.
  Status begin_run(const std::string& name);
  // Something happens on all ranks alike that they do not exchange anything for. If it does not,
  // the next announcement tells.
  void note(std::uint64_t event);

  // Waits as wait() does. A failure of what was announced before is reported by wait() alone.
  void announce(Intent intent);
  // Waits until all have announced it. OK if all have announced the same, and all could, or if
  // nothing is announced. kMismatch, on all, if they are about to do different things, or have come
  // here by different ways; else a failure of one of them, on all.
  Status wait();
  // announce() and wait(): all ranks are here, and `own` is OK on all of them.
  Status barrier(const std::string& what, const Status& own);
  // This rank cannot go on with the run: others learn why from their next announcement. Waits for
  // them only as far as something was announced before.
  void give_up(const Status& why);

  // Why nothing can be done before the next run; OK if it can.
  const Status& ended() const { return ended_; }
  // The group has failed.
  void fail(const Status& status);
  // Runs that ended so.
  std::uint64_t endings() const { return endings_; }

 private:
  struct Announcement {
    std::uint64_t digest = 0;
    std::uint32_t code = 0;  // of Code
    std::uint32_t ends_run = 0;
  };
  struct Pending {
    Intent intent;
    Announcement own;
    std::vector<Announcement> all;
    std::string place;                        // how this rank came there
    std::unique_ptr<Collectives::Work> work;  // goes first
  };
  Status judge(const Pending& pending);
  Status mismatch(const Pending& pending, std::size_t other);
  void announce(Intent intent, bool ends_run);
  Status end_run(const Status& why);

  Collectives& ranks_;
  Digest digest_;  // of what was noted in this run
  std::string run_;
  std::uint64_t noted_ = 0, endings_ = 0;
  Status ended_, broken_;
  std::unique_ptr<Pending> pending_;
};

}  // namespace taco::zerocache
