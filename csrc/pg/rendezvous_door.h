// The c10d store as the rendezvous uses it: Status instead of exceptions, bounded waits, and texts
// that name the store. Owned by one meeting, used by one thread.
#pragma once

#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace taco::pg {

class StoreDoor {
 public:
  StoreDoor(c10::intrusive_ptr<c10d::Store> store, Time deadline);

  Status set(const std::string& key, const std::string& value);
  Result<std::string> get(const std::string& key);  // of a key that is there
  Result<std::int64_t> add(const std::string& key, std::int64_t value);
  void remove(const std::string& key);  // best effort: some stores cannot
  // Many at once: one round trip where the store knows how.
  Status set_all(const std::vector<std::string>& keys, const std::vector<std::string>& values);
  Result<std::vector<std::string>> get_all(const std::vector<std::string>& keys);  // all are there

  // Are all keys there?
  Result<bool> check(const std::vector<std::string>& keys);
  // Sleeps in the store until all keys are there (true), or until `until` or the deadline (false).
  // In slices, so that other threads' calls to the same store come in between; on the very
  // connection the program gave us, since opening another can take seconds where names of addresses
  // are looked up in vain.
  Result<bool> wait(const std::vector<std::string>& keys, Time until);

  const std::string& where() const { return where_; }  // "the store at 10.0.0.1:29500"
  const std::string& host() const { return host_; }    // "" unless it is a TCPStore
  Time deadline() const { return deadline_; }
  bool late() const { return monotonic_now() >= deadline_; }

 private:
  Status failure(const char* doing, const std::exception& error) const;

  c10::intrusive_ptr<c10d::Store> store_;
  Time deadline_;
  std::string where_ = "the store";
  std::string host_;
};

}  // namespace taco::pg
