#include "harp/drivers/xdp/queue_share.h"

#include <string_view>

#include "base/parse_number.h"

namespace taco::harp {
namespace {

QueueShare share_of(std::string_view number, std::string_view shares) {
  const auto own = parse_number<std::uint32_t>(number), all = parse_number<std::uint32_t>(shares);
  const bool is_share = own && all && *own < *all;
  return is_share ? QueueShare{*own, *all} : QueueShare{};
}

}  // namespace

QueueShare QueueShare::of_engine(std::uint32_t engine, std::uint32_t of_rank) const {
  return {number * of_rank + engine, shares * of_rank, of_rank};
}

std::vector<std::uint32_t> QueueShare::of(std::uint32_t queues) const {
  std::vector<std::uint32_t> taken;
  for (std::uint32_t queue = number % queues; queue < queues; queue += shares) {
    taken.push_back(queue);
  }
  return taken;
}

QueueShare queue_share(const std::string& setting, LocalRank self) {
  if (setting == "all") return {};
  if (setting == "auto") {
    return {static_cast<std::uint32_t>(self.rank), static_cast<std::uint32_t>(self.ranks)};
  }
  const std::size_t slash = setting.find('/');
  return share_of(std::string_view(setting).substr(0, slash),
                  std::string_view(setting).substr(slash + 1));
}

}  // namespace taco::harp
