#include "zerocache/schedule/trace.h"

#include <algorithm>

namespace taco::zerocache {

Trace::Trace(std::vector<Use> uses) : uses_(std::move(uses)) {
  std::size_t pages = 0;
  for (const Use& use : uses_) {
    for (const Access& access : use.accesses) {
      pages = std::max<std::size_t>(pages, std::size_t{access.page} + 1);
    }
  }
  first_of_.assign(pages + 1, 0);
  for (const Use& use : uses_) {
    for (const Access& access : use.accesses) ++first_of_[access.page + 1];
  }
  for (std::size_t page = 0; page < pages; ++page) first_of_[page + 1] += first_of_[page];
  positions_.resize(first_of_[pages]);
  std::vector<std::uint32_t> next(first_of_.begin(), first_of_.end());
  for (Position at = 0; at < size(); ++at) {
    for (const Access& access : this->at(at).accesses) positions_[next[access.page]++] = at;
    places_[this->at(at).key].push_back(at);
  }
  update_starts();
}

Position Trace::next_use(PageId page, Position from) const {
  if (std::size_t{page} + 1 >= first_of_.size()) return kNeverUsed;
  const auto begin = positions_.begin() + first_of_[page];
  const auto end = positions_.begin() + first_of_[page + 1];
  const auto found = std::lower_bound(begin, end, from);
  return found == end ? kNeverUsed : *found;
}

std::span<const Position> Trace::places_of(OperatorKey key) const {
  const auto found = places_.find(key);
  if (found == places_.end()) return {};
  return found->second;
}

void Trace::set_compute(Position position, Duration compute) {
  uses_[static_cast<std::size_t>(position)].compute = compute;
}

void Trace::update_starts() {
  starts_.assign(1, 0);
  for (const Use& use : uses_) starts_.push_back(starts_.back() + use.compute);
}

}  // namespace taco::zerocache
