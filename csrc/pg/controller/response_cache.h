// Numbers for requests that all ranks have agreed to before: a slot each. A rank that submits such
// a request again, unchanged, need not say what it is. All ranks fill, use and empty their slots in
// the same order, so that a slot is the same name on all of them; what this rank has waiting in one
// is its own. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/digest.h"
#include "base/list.h"
#include "pg/controller/request.h"

namespace taco::pg::controller {

// A request that this rank has submitted and that has not run.
struct Pending {
  Request request;
  std::uint64_t since_round = 0;  // the first round that it takes part in
  std::uint64_t order = 0;        // of submission on this rank
};

class ResponseCache {
 public:
  struct Slot {
    Request request;  // as this rank submits it; as another does where this one had joined
    std::vector<std::vector<std::int64_t>> rows;
    std::uint64_t bytes = 0;
    std::optional<Pending> waiting;
    std::uint32_t number = 0;
    Links<Slot> links;  // of those in use, the one that ran longest ago first
  };
  using Row = std::vector<std::uint64_t>;  // a bit for each slot

  // Bits of a row before the first slot's are for others.
  ResponseCache(std::size_t capacity, std::size_t first_bit)
      : capacity_(capacity),
        first_bit_(first_bit),
        waiting_row_(words_of(0)),
        used_row_(words_of(0)) {}

  Slot* find(std::string_view name);
  Slot& slot(std::uint32_t number) { return slots_[number]; }
  // Whether it has this number in use.
  bool is_used(std::uint32_t number) const;

  // A slot for what has just run under a name that has none, or null where there is no room for
  // any. The slot that ran longest ago makes room; what waits in it goes to `displaced`.
  Slot* insert(Request request, std::vector<std::vector<std::int64_t>> rows,
               std::optional<Pending>& displaced);
  // Gives back what waits in it.
  std::optional<Pending> erase(Slot& slot);
  void wait_in(Slot& slot, Request&& request, std::uint64_t since_round, std::uint64_t order);
  // It runs: nothing waits there any more, and others make room before it.
  void run(Slot& slot);
  // Takes back what waits, without running it.
  std::optional<Pending> take_waiting(Slot& slot);

  // Those in use, the one that ran longest ago first. The current one may be erased.
  List<Slot, &Slot::links>& used() { return used_; }
  const List<Slot, &Slot::links>& used() const { return used_; }
  const Row& waiting_row() const { return waiting_row_; }
  const Row& used_row() const { return used_row_; }
  std::size_t waiting() const { return waiting_; }
  // For the names and numbers of all slots ever filled, run and emptied, in order.
  std::uint64_t digest() const { return digest_; }

 private:
  std::size_t words_of(std::size_t slots) const { return (first_bit_ + slots + 63) / 64; }
  std::size_t bit_of(const Slot& slot) const { return first_bit_ + slot.number; }
  static void set(Row& row, std::size_t bit) { row[bit / 64] |= std::uint64_t{1} << bit % 64; }
  static void clear(Row& row, std::size_t bit) { row[bit / 64] &= ~(std::uint64_t{1} << bit % 64); }
  Slot* room(std::optional<Pending>& displaced);
  void note(const Slot& slot, bool is_used);

  const std::size_t capacity_, first_bit_;
  std::deque<Slot> slots_;  // deque: they do not move
  std::vector<std::uint32_t> free_;
  std::unordered_map<std::string_view, Slot*> by_name_;  // of slots' own texts
  List<Slot, &Slot::links> used_;
  Row waiting_row_, used_row_;
  std::size_t waiting_ = 0;
  std::uint64_t digest_ = kEmptyDigest;
};

}  // namespace taco::pg::controller
