// All that has been said by words and has not run: by which ranks, in which variants. The same on
// all ranks of a process set. It holds no more than what the ranks have pending. One thread at a
// time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "pg/controller/agreement.h"
#include "pg/controller/request.h"

namespace taco::pg::controller {

class RequestTable {
 public:
  struct Entry {
    std::vector<Variant> variants;  // in the order in which they were heard
    std::vector<bool> said;         // by which ranks
    int count = 0;                  // of them
    std::uint64_t first_heard = 0;  // in the order of all
    bool is_listed = false;         // among those heard of since the last take_complete()
  };

  explicit RequestTable(int world) : world_(world) {}

  // False: this rank has said that already.
  bool hear(int rank, Request request);
  // Removes entries that all ranks have said but those that have joined, in the order in which
  // they were first heard of.
  std::vector<Entry> take_complete(const std::vector<bool>& joined);
  const Entry* find(const std::string& name) const;
  std::size_t size() const { return entries_.size(); }

 private:
  bool is_complete(const Entry& entry, const std::vector<bool>& joined) const;

  const int world_;
  std::unordered_map<std::string, Entry> entries_;
  std::vector<const std::string*> heard_;  // of since the last take_complete()
  std::uint64_t heard_count_ = 0;
};

}  // namespace taco::pg::controller
