// The c10d store as the rendezvous uses it: Status instead of exceptions, bounded waits, and texts
// that name the store. Owned by one meeting, used by one thread.
#pragma once

#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace taco::pg {

class StoreDoor {
 public:
  // Works on a clone: a wait here must not block another thread's set() on the same connection.
  StoreDoor(const c10::intrusive_ptr<c10d::Store>& store, Time deadline);
  ~StoreDoor();
  StoreDoor(const StoreDoor&) = delete;

  Status set(const std::string& key, const std::string& value);
  // True when all keys are there, false when `slice` or the deadline has passed first.
  Result<bool> wait(const std::vector<std::string>& keys, Duration slice);
  // Keys that are there by now.
  Result<bool> check(const std::string& key);
  Result<std::string> get(const std::string& key);
  Result<std::int64_t> add(const std::string& key, std::int64_t value);
  void remove(const std::string& key);  // best effort: some stores cannot

  const std::string& where() const { return where_; }  // "the store at 10.0.0.1:29500"
  const std::string& host() const { return host_; }    // "" unless it is a TCPStore
  bool late() const { return monotonic_now() >= deadline_; }

 private:
  Status failure(const char* doing, const std::exception& error) const;

  c10::intrusive_ptr<c10d::Store> store_;
  std::chrono::milliseconds saved_timeout_;
  Time deadline_;
  std::string where_ = "the store";
  std::string host_;
};

}  // namespace taco::pg
