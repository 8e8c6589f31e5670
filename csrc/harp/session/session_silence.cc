// Where nothing answers. As long as all goes well, each address has one path, and most pairs of
// addresses have none. A peer that is not heard may yet be reached by a path that rests, or between
// two addresses that no path joins: of two hosts on one network each may lose another link. So each
// is tried in turn, at the pace of pings, and by both sides: the peer's addresses are those that it
// has published, and those that it told of to the side that leads.
#include <algorithm>

#include "harp/address.h"
#include "harp/session/session.h"

namespace taco::harp {

namespace {

// The peer may hear us by a path that is dead for us, and wait for what we acknowledge by another.
constexpr Duration kAckNewsWithin = 150 * kMillisecond;

}  // namespace

// A path that is live because there is no better one gets no answer. It moves if one comes from
// elsewhere.
void Session::look_elsewhere(Path& path) {
  if (!path.is_silent() || !path.probe_due()) return;
  for (const auto& other : paths_) other->end_rest();
  if (path.asks_where_heard()) return;
  const std::vector<AddressPair>& pairs = free_pairs();
  if (pairs.empty()) return;
  const std::uint32_t turn = path.unanswered() + static_cast<std::uint32_t>(path.id());
  path.challenge(pairs[turn % pairs.size()]);
  ready();
}

// A path that has not been proved since it was made, or since it moved, may lead to where the peer
// is no more. The peer need not know of it, so that nothing comes by it either: only the peer's
// word tells where it is by now. So every second challenge goes to the newest address that it has
// told of and that no path leads to.
void Session::ask_where_told(Path& path) {
  const bool is_unproved = leads() && path.standing() == Path::Standing::kProving;
  if (!is_unproved || path.challenges() % 2 != 0 || path.asks_where_heard()) return;
  for (const Endpoint& told : announced_) {
    const bool has_path = std::any_of(paths_.begin(), paths_.end(), [&](const auto& other) {
      return other->pair().remote == told;
    });
    if (has_path || !leads_from(path.pair().local, told)) continue;
    path.challenge({told, path.pair().local});
    return ready();
  }
}

bool Session::leads_from(std::uint32_t local, const Endpoint& remote) {
  const std::span<const NicAddress> addresses = host_.nic().addresses();
  return std::ranges::any_of(host_.ways_to(remote), [&](std::uint32_t way) {
    return same_host_address(addresses[way].endpoint, addresses[local].endpoint);
  });
}

// The main path may be dead without anybody having asked: acknowledgements are not answered.
void Session::doubt_where_acks_go() {
  Path& main = paths_.main();
  if (!main.is_live() || host_.now() - main.last_news() < kAckNewsWithin) return;
  main.probe();
  ready();
}

// The kernel is asked for routes, so not again before the next doubt; and no more than a peer's
// patience lasts for.
const std::vector<AddressPair>& Session::free_pairs() {
  if (free_pairs_) return *free_pairs_;
  std::vector<Endpoint> hosts;
  for (const Endpoint& remote : remotes()) {
    const bool is_known = std::ranges::any_of(
        hosts, [&](const Endpoint& host) { return same_host_address(host, remote); });
    if (!is_known) hosts.push_back(remote);
  }
  free_pairs_ = std::make_unique<std::vector<AddressPair>>();
  const std::span<const NicAddress> addresses = host_.nic().addresses();
  const bool has_one = std::ranges::all_of(addresses, [&](const NicAddress& address) {
    return same_host_address(address.endpoint, addresses.front().endpoint);
  });
  if (has_one && hosts.size() < 2) return *free_pairs_;
  const std::vector<std::vector<std::uint32_t>> ways = host_.ways_to_each(hosts);
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    for (const std::uint32_t local : ways[i]) {
      if (free_pairs_->size() == Handshake::kMaxWays) return *free_pairs_;
      if (is_free({hosts[i], local})) free_pairs_->push_back({hosts[i], local});
    }
  }
  return *free_pairs_;
}

bool Session::is_free(const AddressPair& pair) const {
  const auto is_there = [&](const AddressPair& other) {
    return between_same_hosts(other, pair, host_.nic().addresses());
  };
  if (!established()) return std::ranges::none_of(handshake_.ways(), is_there);
  return std::none_of(paths_.begin(), paths_.end(),
                      [&](const auto& path) { return is_there(path->pair()); });
}

}  // namespace taco::harp
