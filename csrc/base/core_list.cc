#include "base/core_list.h"

#include <sched.h>

#include <algorithm>

#include "base/parse_number.h"

namespace taco {
namespace {

std::optional<int> core_from(std::string_view text) {
  const auto core = parse_number<int>(text);
  return core && *core >= 0 && *core < CPU_SETSIZE ? core : std::nullopt;
}

}  // namespace

std::optional<std::vector<int>> cores_from(std::string_view list) {
  std::vector<int> cores;
  for (std::size_t at = 0; at <= list.size();) {
    const std::size_t comma = std::min(list.find(',', at), list.size());
    const std::string_view part = list.substr(at, comma - at);
    const std::size_t dash = std::min(part.find('-'), part.size());
    const auto first = core_from(part.substr(0, dash));
    const auto last = dash == part.size() ? first : core_from(part.substr(dash + 1));
    if (!first || !last || *first > *last) return std::nullopt;
    for (int core = *first; core <= *last; ++core) {
      if (std::ranges::count(cores, core) != 0) return std::nullopt;
      cores.push_back(core);
    }
    at = comma + 1;
  }
  return cores;
}

}  // namespace taco
