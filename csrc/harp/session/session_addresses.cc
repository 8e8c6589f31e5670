// Addresses that a process has come to have in the middle of a job. The side that does not lead
// tells of its own; the one that leads opens paths: one to each address of the peer's to which
// there is none, from one of its own from which there is none.
#include <algorithm>

#include "base/log.h"
#include "harp/address.h"
#include "harp/session/session.h"

namespace taco::harp {

void Session::on_addresses_added() {
  if (life_.ended() || life_.peer_left() || !established()) return;
  if (leads()) {
    open_new_paths();
  } else {
    tell_new_addresses();
  }
  update_timer();
}

void Session::tell_new_addresses() {
  const std::span<const NicAddress> addresses = host_.nic().addresses();
  for (told_ = std::max(told_, static_cast<std::uint8_t>(host_.first_new()));
       told_ < addresses.size(); ++told_) {
    const Endpoint& own = addresses[told_].endpoint;
    wire::PathOpen open{};
    open.local = told_;
    open.port = wire_port_of(own);
    open.address = mapped_address(own);
    record(
        [](wire::Writer& writer, const void* what) {
          return writer.path_open(*static_cast<const wire::PathOpen*>(what));
        },
        &open);
  }
}

std::vector<Endpoint> Session::remotes() const {
  std::vector<Endpoint> all = host_.published_by(peer_incarnation_);
  all.insert(all.end(), told_us_.begin(), told_us_.end());
  return all;
}

void Session::on_path_open(const wire::PathOpen& open) {
  const Endpoint there = endpoint_from(open.address, open.port);
  const bool is_known = std::ranges::count(told_us_, there) != 0;
  if (!leads() || is_known || !is_usable(there) ||
      std::distance(told_us_.begin(), told_us_.end()) >= static_cast<std::ptrdiff_t>(kMaxPaths))
    return;
  told_us_.push_front(there);
  on_addresses_added();
}

void Session::open_new_paths() {
  const std::span<const NicAddress> addresses = host_.nic().addresses();
  for (const Endpoint& remote : remotes()) {
    const bool is_used = std::any_of(paths_.begin(), paths_.end(), [&](const auto& path) {
      return same_host_address(path->pair().remote, remote);
    });
    const std::optional<std::uint32_t> local = is_used ? std::nullopt : host_.way_to(remote);
    if (!local || paths_.count() == PathSet::kMost) continue;
    const bool is_taken = std::any_of(paths_.begin(), paths_.end(), [&](const auto& path) {
      return same_host_address(addresses[path->pair().local].endpoint, addresses[*local].endpoint);
    });
    if (is_taken) continue;
    const auto id = static_cast<wire::PathId>(paths_.count());
    const Path& opened = open_path(id, {remote, *local});
    TACO_LOG_DEBUG("harp", "%s: path %u from %s to %s", description_.c_str(),
                   static_cast<unsigned>(opened.id()),
                   to_string(addresses[*local].endpoint).c_str(), to_string(remote).c_str());
  }
}

}  // namespace taco::harp
