// The session's paths: how they come, how they are given up, and what that means for what they
// carried.
#include <algorithm>
#include <span>
#include <vector>

#include "base/log.h"
#include "harp/address.h"
#include "harp/session/session.h"

namespace taco::harp {

namespace {

// Challenges without an answer after which people are told, 1.55 s after the first one.
constexpr std::uint32_t kInVain = 6;
// A path that is not proved by then is reported as such.
constexpr Duration kOpening = 2 * kSecond;

std::string text_of(const Path& path, const Nic& nic) {
  return to_string(nic.addresses()[path.pair().local].endpoint) + " to " +
         to_string(path.pair().remote);
}

}  // namespace

// The side that leads opens them; the other one learns of each by its first challenge.
void Session::open_paths() {
  free_pairs_.reset();
  paths_.choose_main();
  const std::vector<AddressPair> others = handshake_.take_other_ways(paths_.first().pair());
  paths_due_ = static_cast<std::uint8_t>(std::min(1 + others.size(), PathSet::kMaxPaths));
  tell_paths_by_ = host_.now() + kOpening;
  tell_paths();
  if (!leads()) return tell_addresses(host_.late());
  for (std::size_t i = 0; i < others.size() && paths_.count() < PathSet::kMaxPaths; ++i) {
    open_path(static_cast<wire::PathId>(i + 1), others[i]);
  }
  if (host_.late() != 0) open_new_paths();
  group_paths();
}

Path& Session::open_path(wire::PathId id, const AddressPair& pair) {
  Path& path =
      paths_.add(std::make_unique<Path>(id, pair, leads(), congestion_, host_, send_credit_));
  path.open_unproven(agreed(pair));
  return path;
}

Path::Agreed Session::agreed(const AddressPair& pair) const {
  const std::size_t own = host_.nic().addresses()[pair.local].max_datagram;
  return {handshake_.peer_connection(), std::min(own, handshake_.max_datagram()), sealing_.get()};
}

// The path by which a packet has come. Null: there is no such path, and the packet opens none.
Path* Session::path_of(const wire::Packet& packet, const RxPacket& from) {
  Path* const known = paths_.find(packet.path);
  const bool may_open = established() && !life_.peer_left() &&
                        packet.type == wire::Type::kControl && !leads() &&
                        static_cast<std::size_t>(packet.path) < PathSet::kMaxPaths;
  if (known != nullptr || !may_open) return known;
  wire::FrameReader reader(packet.body);
  wire::Frame frame;
  if (!reader.next(frame) || frame != wire::Frame::kPathChallenge) return nullptr;
  Path& opened = open_path(packet.path, AddressPair::of(from));
  group_paths();
  return &opened;
}

void Session::tell_paths() {
  if (tell_paths_by_ == kNever) return;
  const bool complete = paths_.live() >= paths_due_ && paths_.are_apart();
  if (!complete && host_.now() < tell_paths_by_) return;
  tell_paths_by_ = kNever;
  host_.on_paths_opened(*this);
}

// One that moves may come to run between the same two addresses as another one. That one takes
// those that have become free, so that each pair keeps a path: it may yet come to life. The one of
// the smaller id has the first choice, or two would drive each other out for ever.
void Session::on_path_response(Path& path, const RxPacket& from, std::uint64_t token) {
  const AddressPair before = path.pair(), there = AddressPair::of(from);
  const bool is_taken = std::any_of(paths_.begin(), paths_.end(), [&](const auto& other) {
    return other->id() < path.id() && other->is_live() && other->pair() == there;
  });
  if (leads() && is_taken && !(before == there)) return path.stay();
  const bool was_live = path.is_live();
  if (!path.on_response(from, token)) return;
  const bool moved = !(path.pair() == before);
  if (!was_live) ++host_.counters().paths_proved;
  for (const auto& other : paths_) {
    if (!moved || !leads() || other.get() == &path || !(other->pair() == path.pair())) continue;
    if (other->is_live()) leave_path(*other);
    other->start_over(before);
  }
  if (moved) on_path_moved(path, before, was_live);
  paths_.choose_main();
  tell_paths();
  ready();
}

bool Session::sends_to(const Endpoint& remote) const {
  const auto leads_there = [&](const AddressPair& pair) {
    return same_host_address(pair.remote, remote);
  };
  const std::span<const AddressPair> ways = handshake_.ways();
  return std::any_of(ways.begin(), ways.end(), leads_there) ||
         std::any_of(paths_.begin(), paths_.end(), [&](const auto& path) {
           return path->has_led_there() && leads_there(path->pair());
         });
}

bool Session::calls(const Endpoint& remote) const {
  const std::span<const AddressPair> ways = handshake_.ways();
  return std::any_of(ways.begin(), ways.end(),
                     [&](const AddressPair& way) { return way.remote == remote; });
}

bool Session::on_refused(const Endpoint& remote, std::span<const std::byte> quoted) {
  Path* const path = wire::is_hello(quoted) ? nullptr : paths_.find(wire::peek_path(quoted));
  if (path != nullptr && same_host_address(path->pair().remote, remote) &&
      paths_.has_other(*path)) {
    if (path->on_refused()) ask_others(*path);
    leave_if_silent(*path);
    update_timer();
  }
  std::uint32_t bit = 1, all = 0;
  const auto note = [&](const AddressPair& pair, bool counts) {
    if (counts) all |= bit;
    if (counts && same_host_address(pair.remote, remote)) refused_ |= bit;
    bit <<= 1;
  };
  for (const AddressPair& way : handshake_.first_ways()) note(way, true);
  if (established()) {
    for (const auto& path : paths_) note(path->pair(), path->is_live());
    if (tell_paths_by_ != kNever) all |= bit;  // others may yet be proved
  }
  return (refused_ & all) == all;
}

std::uint32_t Session::locals() const {
  if (!established() && handshake_.is_due()) return 1u << handshake_.due().pair.local;
  std::uint32_t locals = 1u << paths_.main().pair().local;
  for (const auto& path : paths_) {
    if (path->is_live()) locals |= 1u << path->pair().local;
  }
  return locals;
}

// A path's time. Where it is silent, the others are asked whether it is the peer that is.
void Session::look_after(Path& path) {
  Fates fates(*this, path);
  const bool doubted = path.in_doubt_since() != kNever;
  const std::uint32_t challenges = path.challenges();
  if (path.on_timer(fates)) ready();
  if (challenges < kInVain && path.challenges() == kInVain) tell_unanswered(path);
  if (path.challenges() > challenges) ask_where_told(path);
  if (path.in_doubt_since() == kNever) return;
  if (!doubted) free_pairs_.reset();
  if (paths_.has_other(path)) {
    if (!doubted) ask_others(path);
    leave_if_silent(path);
  }
  look_elsewhere(path);
}

void Session::ask_others(const Path& path) {
  for (const auto& other : paths_) {
    if (other.get() != &path && other->is_live()) other->probe();
  }
  ready();
}

void Session::leave_if_silent(Path& path) {
  if (path.is_silent() && paths_.is_heard_since(path.in_doubt_since(), path)) leave_silent(path);
}

Duration Session::answer_time() const {
  Duration longest = paths_.main().answer_time();
  for (const auto& path : paths_) {
    if (path->is_live()) longest = std::max(longest, path->answer_time());
  }
  return longest + RoundTrip::kFloor;
}

// A path that has been live was reported when it was left. Both sides challenge; one of them tells.
void Session::tell_unanswered(const Path& path) const {
  if (!leads() || path.standing() != Path::Standing::kProving || !paths_.has_other(path)) return;
  TACO_LOG_WARNING("harp",
                   "%s: nothing answers on the path from %s; going on by the others (a firewall? "
                   "TACO_IFNAME chooses interfaces)",
                   description_.c_str(), text_of(path, host_.nic()).c_str());
}

// The one case in which a timer has something sent again.
void Session::leave_silent(Path& path) {
  TACO_LOG_WARNING("harp", "%s: the path from %s %s; going on by the others", description_.c_str(),
                   text_of(path, host_.nic()).c_str(),
                   path.is_refused() ? "is refused on the way" : "is silent");
  ++host_.counters().paths_left;
  leave_path(path);
  ready();
}

// One that is known to lead nowhere is not waited for, unless there is no other: an address may
// come back before the peer loses patience.
void Session::on_addresses_changed(std::uint32_t missing, std::uint32_t back) {
  if (life_.ended()) return;
  if (!established()) return leave_lost_ways();
  const auto is_missing = [&](const Path& path) { return (missing >> path.pair().local & 1) != 0; };
  const bool others = std::any_of(paths_.begin(), paths_.end(), [&](const auto& path) {
    return path->is_live() && !is_missing(*path);
  });
  for (const auto& path : paths_) {
    if (others && path->is_live() && is_missing(*path)) {
      ++host_.counters().paths_left;
      leave_path(*path);
    }
    if ((back >> path->pair().local & 1) != 0) path->try_again();
  }
  // A peer that came to know this process meanwhile was not told of them.
  on_addresses_added(back);
  ready();
  update_timer();
}

void Session::leave_path(Path& path) {
  Fates fates(*this, path);
  const std::uint32_t lost = path.in_flight();
  path.fall_silent(fates);
  paths_.choose_main();
  give_back_credit(path, lost);
}

// Gives back the credit of packets that were lost with a path, which they would use up for ever.
// After goodbye none is needed, nor granted.
void Session::give_back_credit(Path& path, std::uint32_t lost) {
  if (path.closed_up_to() == path.last_number() || life_.said_goodbye()) return;
  const wire::PathClosed closed{path.id(), path.last_number()};
  path.on_close_told();
  send_credit_.write_off(lost);
  record(
      [](wire::Writer& writer, const void* what) {
        return writer.path_closed(*static_cast<const wire::PathClosed*>(what));
      },
      &closed);
}

void Session::on_path_closed(const wire::PathClosed& closed) {
  paths_.close_up_to(closed.path, closed.last);
  credit_.on_received(paths_.received());
  refresh_credit();
}

}  // namespace taco::harp
