#include "zerocache/torch/operand_parts.h"

#include <algorithm>
#include <utility>

namespace taco::zerocache {

Uses::Part OperandParts::part_of(const Pages& pages) {
  auto found = parts_.find(pages);
  if (found == parts_.end()) {
    if (parts_.size() >= kMax) make_room();
    std::vector<Uses::Parameter> parameters;
    std::vector<Run> runs;
    for (const auto& [parameter, first, count] : pages) {
      parameters.push_back(parameter);
      runs.push_back({first, count});
    }
    const Uses::Part part = uses_.add_part(std::move(parameters), std::move(runs));
    found = parts_.emplace(pages, Known{part, 0}).first;
  }
  found->second.asked = ++asked_;
  return found->second.part;
}

// Half of them go at once, those that were asked for before the others, so that a look at all of
// them is rare.
void OperandParts::make_room() {
  std::vector<std::uint64_t> times;
  for (const auto& [pages, known] : parts_) times.push_back(known.asked);
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  std::erase_if(parts_, [&](const auto& each) {
    return each.second.asked < *middle && uses_.forget_part(each.second.part);
  });
}

}  // namespace taco::zerocache
