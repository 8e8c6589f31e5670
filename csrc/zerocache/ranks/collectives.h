// The calls that the page store makes to a group of ranks that train one model together. Any group
// of processes can be put behind it; nothing here knows which.
//
// All ranks make the same calls in the same order, with spans of the same lengths. One thread at a
// time.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "base/status.h"

namespace taco::zerocache {

class Collectives {
 public:
  // A call that is under way. Its memory may be touched once wait() has returned, or the object is
  // gone, which waits too.
  class Work {
   public:
    virtual ~Work() = default;
    // Blocks. A failure is one of the group: a rank that died, say.
    virtual Status wait() = 0;
    // Instead: it is of no interest any more, and others may never come. Waits a little at most;
    // `memory`, that of the call, lasts until this is over.
    virtual void abandon(std::shared_ptr<const void> memory) {
      static_cast<void>(memory);
      static_cast<void>(wait());
    }
  };

  virtual ~Collectives() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Begins to give each rank the `own` of all, one after the other by rank, in `all`. Several may
  // be under way. `own` may be this rank's part of `all`, which is only read then: others may read
  // it meanwhile.
  virtual Result<std::unique_ptr<Work>> all_gather(std::span<const std::byte> own,
                                                   std::span<std::byte> all) = 0;

  // Begins to add up: of `all`, which has a part for each rank, one after the other by rank, `own`
  // becomes the sum over all ranks of what they gave for this one. Several may be under way. What
  // is added to what in which order depends on the lengths and the ranks alone, never on who came
  // first. As it is here it adds by rising rank, and has every rank get everything: a group that
  // can do better overrides it.
  virtual Result<std::unique_ptr<Work>> reduce_scatter(std::span<const float> all,
                                                       std::span<float> own);
};

}  // namespace taco::zerocache
