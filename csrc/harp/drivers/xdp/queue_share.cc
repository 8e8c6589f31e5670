#include "harp/drivers/xdp/queue_share.h"

#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>

namespace taco::harp {
namespace {

std::optional<std::uint32_t> count_in(std::string_view text) {
  std::uint32_t number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || stop != text.data() + text.size()) return std::nullopt;
  return number;
}

QueueShare share_of(std::string_view number, std::string_view shares) {
  const auto own = count_in(number), all = count_in(shares);
  const bool is_share = own && all && *own < *all;
  return is_share ? QueueShare{*own, *all} : QueueShare{};
}

}  // namespace

std::vector<std::uint32_t> QueueShare::of(std::uint32_t queues) const {
  std::vector<std::uint32_t> taken;
  for (std::uint32_t queue = number % queues; queue < queues; queue += shares) {
    taken.push_back(queue);
  }
  return taken;
}

QueueShare queue_share(const std::string& setting, const char* local_rank,
                       const char* local_world_size) {
  if (setting == "all") return {};
  if (setting != "auto") {
    const std::size_t slash = setting.find('/');
    return share_of(std::string_view(setting).substr(0, slash),
                    std::string_view(setting).substr(slash + 1));
  }
  if (local_rank == nullptr || local_world_size == nullptr) return {};
  return share_of(local_rank, local_world_size);
}

}  // namespace taco::harp
