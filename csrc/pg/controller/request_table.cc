#include "pg/controller/request_table.h"

#include <algorithm>
#include <utility>

namespace taco::pg::controller {

bool RequestTable::hear(int rank, Request request) {
  const auto [place, is_new] = entries_.try_emplace(request.name);
  Entry& entry = place->second;
  if (is_new) {
    entry.said.resize(static_cast<std::size_t>(world_));
    entry.first_heard = heard_count_++;
  }
  auto said = entry.said[static_cast<std::size_t>(rank)];
  if (said) return false;
  said = true;
  ++entry.count;
  if (!entry.is_listed) heard_.push_back(&place->first);
  entry.is_listed = true;
  const auto same = std::ranges::find(entry.variants, request, &Variant::request);
  if (same != entry.variants.end()) {
    same->ranks.insert(std::ranges::upper_bound(same->ranks, rank), rank);
  } else {
    entry.variants.push_back({.request = std::move(request), .ranks = {rank}});
  }
  return true;
}

bool RequestTable::is_complete(const Entry& entry, const std::vector<bool>& joined) const {
  if (entry.count == world_) return true;
  for (std::size_t rank = 0; rank < entry.said.size(); ++rank) {
    if (!entry.said[rank] && !joined[rank]) return false;
  }
  return true;
}

std::vector<RequestTable::Entry> RequestTable::take_complete(const std::vector<bool>& joined) {
  // A rank that joins completes others than those that were just heard of.
  const bool someone_joined = std::ranges::find(joined, true) != joined.end();
  if (someone_joined) {
    heard_.clear();
    for (const auto& each : entries_) heard_.push_back(&each.first);
  }
  std::vector<Entry> complete;
  for (const std::string* const name : std::exchange(heard_, {})) {
    const auto place = entries_.find(*name);
    place->second.is_listed = false;
    if (!is_complete(place->second, joined)) continue;
    complete.push_back(std::move(place->second));
    entries_.erase(place);
  }
  std::ranges::sort(complete, {}, &Entry::first_heard);
  return complete;
}

const RequestTable::Entry* RequestTable::find(const std::string& name) const {
  const auto found = entries_.find(name);
  return found == entries_.end() ? nullptr : &found->second;
}

}  // namespace taco::pg::controller
