// The ranks of a process set in one thread: each has its negotiation, and a round of them all is
// one call. Whatever must be the same on all ranks is compared each time.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "pg/controller/negotiation.h"

namespace taco::pg::controller {

class NegotiatingRanks {
 public:
  explicit NegotiatingRanks(int world, NegotiationOptions options = {});

  int world() const { return static_cast<int>(ranks_.size()); }
  Negotiation& operator[](int rank) { return *ranks_[static_cast<std::size_t>(rank)]; }
  // The same on all of them, which must take it.
  void submit(const Request& request);

  // Runs a round, and returns what each rank is to run after it.
  std::vector<std::vector<Response>> round();
  // Called between the bits and the words of each round.
  std::function<void()> in_between = [] {};

  bool words_followed() const { return words_followed_; }  // in the last round
  // Tells how ranks differed for the first time; "": they never did.
  const std::string& failure() const { return failure_; }
  void fail(const std::string& text);

 private:
  bool hear_words(const std::vector<std::uint64_t>& combined);
  void compare(const std::vector<std::vector<Response>>& responses);

  std::vector<std::unique_ptr<Negotiation>> ranks_;
  bool words_followed_ = false;
  std::string failure_;
};

Request make_request(Kind kind, std::string name, std::vector<Shape> shapes = {});

}  // namespace taco::pg::controller
