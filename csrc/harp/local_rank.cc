#include "harp/local_rank.h"

#include <cstdlib>
#include <optional>
#include <string>

#include "base/parse_number.h"

namespace taco::harp {
namespace {

constexpr char kRank[] = "LOCAL_RANK", kRanks[] = "LOCAL_WORLD_SIZE";

std::string said(const char* name, int number) {
  return std::string(name) + "=\"" + std::to_string(number) + "\"";
}

// Nothing where the variable is not set.
Result<std::optional<int>> number_in(const char* name, const char* chooses) {
  const char* const value = std::getenv(name);
  std::optional<int> number;
  if (value == nullptr || *value == '\0') return number;
  number = parse_number<int>(value);
  if (number && *number >= 0) return number;
  return invalid(std::string(name) + "=\"" + value + "\" is no number, and says " + chooses +
                 ": set it as torchrun does, or unset it");
}

}  // namespace

Result<LocalRank> LocalRank::from_env(const char* chooses) {
  const auto rank = number_in(kRank, chooses);
  if (!rank.ok()) return rank.status();
  const auto ranks = number_in(kRanks, chooses);
  if (!ranks.ok()) return ranks.status();
  const LocalRank self{rank.value().value_or(0), ranks.value().value_or(1)};
  const std::string remedy =
      std::string(", and they say ") + chooses + ": set both as torchrun does, or neither";
  if (!rank.value() && self.ranks > 1) {
    return invalid(said(kRanks, self.ranks) + " is set and " + kRank + " is not" + remedy);
  }
  if (self.rank < self.ranks) return self;
  if (!ranks.value()) {
    return invalid(said(kRank, self.rank) + " is set and " + kRanks + " is not" + remedy);
  }
  return invalid(said(kRank, self.rank) + " is not below " + said(kRanks, self.ranks) + remedy);
}

}  // namespace taco::harp
