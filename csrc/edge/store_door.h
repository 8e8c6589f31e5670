// The c10d store as the rendezvous uses it: Status instead of exceptions, bounded waits, and texts
// that name the store. Owned by one rendezvous, used by one thread, whose waits heed what it is
// asked for meanwhile (base/heed.h).
//
// Waiting is looking again and again. The store's own wait would hold its connection, which other
// threads of the program use too, for the whole time; cut into slices it makes torch print a
// warning for each that ends with nothing. A connection of our own would be free of both, but
// opening one takes seconds where names of addresses are looked up in vain.
#pragma once

#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace taco::edge {

class StoreDoor {
 public:
  // `ranks` are at the store at the same time, and share what it can answer.
  StoreDoor(c10::intrusive_ptr<c10d::Store> store, Time deadline, int ranks);

  Status set(const std::string& key, const std::string& value);
  Result<std::int64_t> add(const std::string& key, std::int64_t value);
  void remove(const std::string& key);  // best effort: some stores cannot
  // Many at once: one round trip where the store knows how.
  Status set_all(const std::vector<std::string>& keys, const std::vector<std::string>& values);
  Result<std::vector<std::string>> get_all(const std::vector<std::string>& keys);  // all are there

  // Are all keys there?
  Result<bool> check(const std::vector<std::string>& keys);
  // The value under the key now, "" if there is none; in one round trip where the store knows how.
  Result<std::string> look(const std::string& key);

  // Returns once all keys are there (true), or it is `until` or the deadline (false). For the one
  // rank that gathers the others.
  Result<bool> wait(const std::vector<std::string>& keys, Time until);
  // Returns once the key has been deleted, the store fails, or it is `until`.
  void wait_until_gone(const std::string& key, Time until);
  // Returns what is under the key once it is there, "" if that is not before the deadline. For the
  // many that wait for one.
  Result<std::string> hear(const std::string& key);

  const std::string& where() const { return where_; }  // "the store at 10.0.0.1:29500"
  const std::string& host() const { return host_; }    // "" unless it is a TCPStore
  Time deadline() const { return deadline_; }
  bool late() const { return monotonic_now() >= deadline_; }

 private:
  Status failure(const char* doing, const std::exception& error) const;

  c10::intrusive_ptr<c10d::Store> store_;
  Time deadline_;
  int ranks_;
  bool swaps_ = false;  // its compareSet is known to work
  std::string where_ = "the store";
  std::string host_;
};

}  // namespace taco::edge
