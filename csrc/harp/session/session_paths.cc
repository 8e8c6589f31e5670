// The session's paths: how they come, how they are given up, and what that means for what they
// carried.
#include <algorithm>

#include "base/log.h"
#include "harp/address.h"
#include "harp/session/session.h"

namespace taco::harp {

namespace {

std::string text_of(const Path& path, const Nic& nic) {
  return to_string(nic.addresses()[path.pair().local].endpoint) + " to " +
         to_string(path.pair().remote);
}

}  // namespace

// The side that leads opens them; the other one learns of each by its first challenge.
void Session::open_paths() {
  paths_.choose_main();
  if (!leads()) return;
  for (std::size_t i = 0; i < further_.size() && paths_.count() < PathSet::kMost; ++i) {
    open_path(static_cast<wire::PathId>(i + 1), further_[i]);
  }
}

Path& Session::open_path(wire::PathId id, const AddressPair& pair) {
  Path& path =
      paths_.add(std::make_unique<Path>(id, pair, leads(), congestion_, host_, send_credit_));
  const std::size_t own = host_.nic().addresses()[pair.local].max_datagram;
  path.open_unproven(agreed(std::min(own, handshake_.max_datagram())));
  return path;
}

Path::Agreed Session::agreed(std::size_t limit) const {
  return {handshake_.peer_connection(), limit, sealing_.get()};
}

// By which a packet has come. Null: there is no such path, and the packet opens none.
Path* Session::path_of(const wire::Packet& packet, const RxPacket& from) {
  Path* const known = paths_.find(packet.path);
  const bool may_open = established() && !life_.peer_left() &&
                        packet.type == wire::Type::kControl && !leads() &&
                        static_cast<std::size_t>(packet.path) < PathSet::kMost;
  if (known != nullptr || !may_open) return known;
  wire::FrameReader reader(packet.body);
  wire::Frame frame;
  if (!reader.next(frame) || frame != wire::Frame::kPathChallenge) return nullptr;
  return &open_path(packet.path, AddressPair::of(from));
}

void Session::on_path_proved() {
  ++host_.counters().paths_proved;
  paths_.choose_main();
  ready();
}

bool Session::sends_to(const Endpoint& remote) const {
  return std::any_of(paths_.begin(), paths_.end(), [&](const auto& path) {
    return same_host_address(path->pair().remote, remote);
  });
}

std::uint32_t Session::locals() const {
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
  if (path.on_timer(fates)) ready();
  if (path.in_doubt_since() == kNever || !paths_.has_other(path)) return;
  if (!doubted) {
    for (const auto& other : paths_) {
      if (other.get() != &path && other->is_live()) other->probe();
    }
    ready();
  }
  if (path.is_silent() && paths_.is_heard_since(path.in_doubt_since(), path)) leave_silent(path);
}

// The one case in which a timer has something sent again.
void Session::leave_silent(Path& path) {
  TACO_LOG_WARNING("harp", "%s: the path from %s is silent; going on by the others",
                   description_.c_str(), text_of(path, host_.nic()).c_str());
  ++host_.counters().paths_left;
  Fates fates(*this, path);
  const std::uint32_t lost = path.in_flight();
  path.fall_silent(fates);
  paths_.choose_main();
  settle(path, lost);
  ready();
}

// What was sent by a path and is lost with it would use up credit for ever. After goodbye none is
// needed, nor granted.
void Session::settle(Path& path, std::uint32_t lost) {
  if (path.settled() == path.last_number() || life_.said_goodbye()) return;
  const wire::PathClosed closed{path.id(), path.last_number()};
  path.on_settled();
  send_credit_.write_off(lost);
  record(
      [](wire::Writer& writer, const void* what) {
        return writer.path_closed(*static_cast<const wire::PathClosed*>(what));
      },
      &closed);
}

void Session::on_path_closed(const wire::PathClosed& closed) {
  paths_.settle(closed.path, closed.last);
  credit_.on_received(paths_.received());
  refresh_credit();
}

}  // namespace taco::harp
