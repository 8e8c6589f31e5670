// Operations that all ranks of a process set have submitted, whatever the order on each of them.
// The ranks talk in rounds. In a round every rank contributes a row of bits, which are combined by
// AND: one for each request that all ranks know by a number (its slot in the cache), others say
// whether somebody has something that needs words. Only then all gather each other's words:
// requests that are not in the cache, or whose shape has changed. All ranks hear the same and keep
// the same tables, so all come to the same responses in the same order, and no rank decides for the
// others.
//
// A rank that has joined gives zeros for sums and averages that it has not submitted, and submits
// nothing more until all have joined. Other kinds fail on all ranks meanwhile, where it is missing.
//
// Memory: the requests that ranks have pending, cache_slots requests with their rows, and
// kMaxWordsBytes (pg/controller/words.h) from each rank during a round.
//
// A pure machine: no thread, no clock, no communicator. One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "pg/controller/request.h"

namespace taco::pg::controller {

struct NegotiationOptions {
  int rank = 0, world = 1;
  std::uint64_t fusion_bytes = 64 << 20;  // HOROVOD_FUSION_THRESHOLD; 0: nothing is fused
  std::size_t cache_slots = 1024;         // HOROVOD_CACHE_CAPACITY; 0: every request needs words
};

class Negotiation {
 public:
  explicit Negotiation(NegotiationOptions options);
  ~Negotiation();
  Negotiation(const Negotiation&) = delete;
  Negotiation& operator=(const Negotiation&) = delete;

  // kInvalidArgument: this name is pending already on this rank, the rank has joined, or the
  // request is impossible (check_request).
  Status submit(Request request);
  // True while something of this rank is pending, a join included, or a flag is raised. A round may
  // wait for a rank as long as this is false there: nothing can be agreed on without it.
  bool wants_round() const;

  // A round, in this order. What is submitted in between takes part in the next one.
  enum class Flag : std::uint8_t { kShutdown, kTellWaiting };
  void raise(Flag flag);              // in the next round, and in no other
  std::vector<std::uint64_t> bits();  // this rank's row; of the same length on all ranks
  bool words_follow(const std::vector<std::uint64_t>& combined);  // by AND; the same on all ranks
  std::string words() const;                                      // this rank's, if they follow
  // How many bytes of words each rank says it has, before anybody makes room for them. kInternal:
  // no rank has as many, or as few; the text names it and the number.
  Status check_sizes(const std::vector<std::int64_t>& bytes_by_rank) const;
  // All ranks' words, by rank. kInternal: they are no words, or of ranks whose tables differ (never
  // with ranks of one version). No further round is possible then.
  Status hear(const std::vector<std::string_view>& words_by_rank);
  std::vector<Response> responses();  // in the order in which they must run

  bool shutdown_asked() const;  // in the last round, by any rank
  std::uint64_t round() const;  // how many have begun
  struct Waiting {
    std::string name;
    bool is_join = false;
    std::uint64_t since_round = 0;  // the first that it took part in
    std::vector<int> missing;       // ranks that have not submitted it; known after kTellWaiting
  };
  // Requests of this rank that have not run, oldest first.
  std::vector<Waiting> waiting() const;
  // Ranks that have joined, in rank order.
  std::vector<int> joined() const;
  // A number for the tables that are the same on all ranks. Ranks that differ in it differ in them.
  std::uint64_t digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace taco::pg::controller
