// The life of a group: its generations, one after the other. Most groups have one. A group that can
// be reconfigured begins without any, and each reconfiguration puts one in place of the last: the
// members of both keep their sessions, keys and paths, which belong to the process's Stack; what
// only the last needed is given back. Where a reconfiguration fails, the last goes on as it was.
//
// Any thread, without the GIL.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "edge/roster.h"
#include "pg/c10d/generation.h"

namespace taco::pg {

struct Reconfiguration {
  std::int64_t uuid = 0;
  std::vector<std::string> handles;
  bool in_order = true;  // by rank; otherwise the ranks are for us to choose
  Duration timeout = 0;  // 0: as long as it takes
};

class Succession {
 public:
  // Joins the ranks through the store: its only generation.
  Status begin(const c10::intrusive_ptr<c10d::Store>& store, const GroupRendezvousOptions& options);
  // Waits for advance() to be called.
  Status begin_apart(const c10::intrusive_ptr<c10d::Store>& store,
                     const GroupRendezvousOptions& options);

  // Null: none yet, or none any more.
  std::shared_ptr<Generation> current() const { return current_.load(); }
  // This rank, for others that make the next one with it; nothing if there never is a next one.
  std::optional<std::string> handle() const;

  // The next generation, or why there is none. All of its members call it; operations of the
  // current one have ended, or it has failed.
  Result<std::shared_ptr<Generation>> advance(const Reconfiguration& to);

  // The end, also of an advance() under way. Returns the failure that nobody has heard of.
  Status close(Duration linger);

 private:
  Status destroyed() const;
  Status call_roll(const std::shared_ptr<Generation>& next, std::uint64_t digest, Duration timeout);

  const void* tree_ = nullptr;
  GroupRendezvousOptions options_;
  std::atomic<std::shared_ptr<edge::Roster>> roster_;
  // One thread at a time; a handler of a signal may come to close() in the midst of advance().
  std::recursive_mutex advancing_;
  std::atomic<bool> closed_{false};
  std::atomic<std::shared_ptr<Generation>> current_, coming_;
};

}  // namespace taco::pg
