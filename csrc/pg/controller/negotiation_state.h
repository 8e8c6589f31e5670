// The tables of a negotiation, and the steps of a round (pg/controller/negotiation.h, which says
// what they are for). Included by its sources alone.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "pg/controller/fusion.h"
#include "pg/controller/negotiation.h"
#include "pg/controller/request_table.h"
#include "pg/controller/response_cache.h"
#include "pg/controller/words.h"

namespace taco::pg::controller {

// The first bits of a row. AND makes one of them 0 where any rank says 0.
inline constexpr std::uint64_t kSilent = 1;       // this rank needs no words
inline constexpr std::uint64_t kGoesOn = 2;       // it asks for no shutdown
inline constexpr std::uint64_t kAsksNothing = 4;  // nor for what waits
inline constexpr std::size_t kFirstSlotBit = 3;

struct Negotiation::State {
  explicit State(const NegotiationOptions& chosen)
      : options(chosen),
        cache(chosen.cache_slots, kFirstSlotBit),
        table(chosen.world),
        joined(static_cast<std::size_t>(chosen.world)) {}

  enum class Join : std::uint8_t { kNone, kSubmitted, kUnsaid, kSaid };
  using Slot = ResponseCache::Slot;

  const NegotiationOptions options;

  // The same on all ranks.
  ResponseCache cache;  // but for what waits in its slots
  RequestTable table;
  std::vector<bool> joined;
  int joined_count = 0;
  std::uint64_t events = kEmptyDigest;
  std::uint64_t round = 0;

  // This rank's. A request waits in its slot or, if it goes by words, here: said or not yet.
  std::unordered_map<std::string, Pending> spoken;
  std::deque<const Pending*> unsaid;  // in `spoken`
  Join join_state = Join::kNone;
  Pending join;
  std::uint64_t submitted = 0;  // ever: the next one's order
  bool raises_shutdown = false, raises_question = false;

  // The round that is on.
  std::size_t to_say = 0;  // of `unsaid`, so much as was there when it began
  std::size_t said = 0;    // of these, by the words
  bool says_join = false;
  bool shutdown_asked = false, waiting_asked = false;
  std::string words;
  std::vector<Agreed> agreed;
  // By a request's order: who missed when last asked.
  std::unordered_map<std::uint64_t, std::vector<int>> missing;

  bool has_joined() const { return joined[static_cast<std::size_t>(options.rank)]; }
  void speak(Pending pending);
  void forget_slot(Slot& slot);
  void say_what_waits();
  void run_slots(const std::vector<std::uint64_t>& combined);
  void run_slot(Slot& slot);
  void write_words();

  Result<std::vector<Words>> read(const std::vector<std::string_view>& words_by_rank) const;
  Status hear_rank(int rank, Words& words);
  void settle(RequestTable::Entry& entry);
  void remember(const Agreed& agreed);
  void end_join(int last_joined);
  using Holders = std::unordered_map<std::string, std::vector<bool>>;  // ranks, by name
  Holders holders(const std::vector<Words>& words);
  void note_missing(const Holders& holders);
  std::vector<int> missing_of(const std::string& name, const Holders& holders) const;
  std::vector<const Pending*> pending() const;  // oldest first
};

}  // namespace taco::pg::controller
