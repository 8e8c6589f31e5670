// Decides which stripes of parameters a rank holds at a moment, and which it gathers next: those in
// use, and then those that the program will use next, as it did in earlier runs, up to so many.
// Where nothing is known of what comes, those that were used last are kept. Everything else is
// given up.
//
// That follows from the program's own sequence of uses alone, not from any clock or speed: ranks
// whose programs do the same hold and gather the same.
//
// Pure. One thread at a time. Cost of a use: O(uses that are looked ahead).
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "zerocache/ranks/stripes.h"
#include "zerocache/schedule/follower.h"

namespace taco::zerocache {

class GatherOrder {
 public:
  // All stripes in use are held, however many they are; beside them, as many as make `most`
  // together.
  explicit GatherOrder(std::size_t most) : max_(most) {}

  // Runs of a name are expected to have the same uses.
  void begin_run(const std::string& name);
  void end_run();
  // Forgets all that was learned; open uses stay open.
  void forget();

  void begin(OperatorKey key, std::vector<StripeId> stripes);
  // Ends the open use of that key that began last. False: there is none.
  bool end(OperatorKey key);

  // All stripes to hold: those in use, then those that will be, in that order, or that were.
  std::span<const StripeId> wanted() const { return wanted_; }
  // The first so many of wanted() are in use.
  std::size_t in_use() const { return in_use_; }
  bool uses(StripeId stripe) const { return place_of(stripe) < in_use_; }
  bool wants(StripeId stripe) const { return place_of(stripe) < wanted_.size(); }
  // The stripes wanted and not held, if it is time to gather them: when half of the room for what
  // comes next is empty. `holds(stripe)`. So ranks gather now and then, not before every use.
  template <class Holds>
  std::vector<StripeId> due(const Holds& holds) const {
    std::vector<StripeId> missing;
    const std::size_t room = max_ > in_use_ ? max_ - in_use_ : 0;
    for (std::size_t i = in_use_; i < wanted_.size(); ++i) {
      if (holds(wanted_[i])) continue;
      if (missing.empty() && i - in_use_ > room / 2) return {};
      missing.push_back(wanted_[i]);
    }
    return missing;
  }

 private:
  void use(StripeId stripe);
  void look_ahead();
  bool want(StripeId stripe, std::size_t most);
  // The stripe's place in wanted_; its size if it is not there.
  std::size_t place_of(StripeId stripe) const {
    const bool is = stripe < places_.size() && places_[stripe] < wanted_.size() &&
                    wanted_[places_[stripe]] == stripe;
    return is ? places_[stripe] : wanted_.size();
  }

  const std::size_t max_;
  std::map<std::string, Follower> runs_;
  Follower* run_ = nullptr;
  std::vector<std::pair<OperatorKey, std::vector<StripeId>>> open_;
  std::vector<StripeId> last_used_;  // in this run, the last of them first
  std::vector<StripeId> wanted_;
  std::vector<std::size_t> places_;  // by stripe: in wanted_, if it is there
  std::size_t in_use_ = 0;
};

}  // namespace taco::zerocache
