#include "harp/session/stray_packets.h"

#include <array>
#include <cstring>
#include <span>

#include "harp/session/session.h"

namespace taco::harp {

void StrayPackets::take(const RxPacket& packet) {
  if (wire::peek_version(packet.data) != wire::kVersion) return on_other_version(packet);
  wire::Packet parsed;
  const wire::Verdict verdict = wire::parse(packet.data, parsed);
  // Nobody here can tell what is sealed for another session from what only looks like it.
  if (verdict == wire::Verdict::kSealed) return answer(packet);
  if (verdict != wire::Verdict::kGood) {
    ProtocolCounters& counters = host_.counters();
    ++(verdict == wire::Verdict::kBadChecksum ? counters.checksum_failures : counters.malformed);
    return;
  }
  switch (parsed.type) {
    case wire::Type::kHello:
      return on_hello(parsed, packet);
    case wire::Type::kReset:
      return on_reset(parsed, packet);
    default:
      return answer(packet);
  }
}

void StrayPackets::on_hello(const wire::Packet& parsed, const RxPacket& packet) {
  const auto hello = wire::parse_hello(parsed.body);
  if (!hello || hello->target != own_incarnation_) return;
  // Engines of a later version say nothing to each other that concerns the only ones there are.
  if (hello->sender_engine != wire::kOnlyEngine || hello->target_engine != wire::kOnlyEngine) {
    ++host_.counters().malformed;
    return;
  }
  // Not told of its sender yet: it will say it again.
  const auto key = peers_.key_with(hello->sender);
  if (!key) return;
  if (!proves(*hello, *key)) {
    ++host_.counters().unproven;
    return;
  }
  Session* session = &peers_.session_with(hello->sender);
  if (session->on_hello(*hello, packet)) return;
  session = peers_.begin_anew(hello->sender);
  if (session != nullptr && !session->on_hello(*hello, packet)) session->lose_to_new_session();
}

// Somebody may have had another process answer a copy of what was for the peer: only who has the
// address where the peer was knows that it is there no more.
void StrayPackets::on_reset(const wire::Packet& parsed, const RxPacket& packet) {
  ++host_.counters().resets_received;
  wire::Header quoted;
  std::memcpy(&quoted, parsed.body.data(), sizeof quoted);
  Session* const session = host_.session_to(quoted.connection);
  if (session == nullptr || session->ended()) return;
  if (!session->sent_lately(quoted, AddressPair::of(packet))) return;
  peers_.on_reset(*session);
}

// Nothing shows who has sent such a packet. So it is only named, should nobody answer from just
// that address; the versions of ranks are compared at the rendezvous.
void StrayPackets::on_other_version(const RxPacket& packet) {
  const std::uint8_t version = wire::peek_version(packet.data);
  if (version == 0) {
    ++host_.counters().malformed;
    return;
  }
  ++host_.counters().other_versions;
  if (!searches_.take(host_.now())) return;
  for (Session* session : host_.sessions()) {
    if (session->ended() || !session->calls(*packet.source)) continue;
    return session->on_other_version(version);
  }
}

// Answers with no more bytes than came, so that nobody can have us flood others by asking in their
// name.
void StrayPackets::answer(const RxPacket& packet) {
  if (packet.data.size() < sizeof(wire::Header) + wire::kResetBytes) return;
  if (!resets_.take(host_.now())) return;
  const std::span<const std::byte> quoted = packet.data.first(wire::kResetBytes);
  wire::Header header = wire::frames_header(wire::Type::kReset, {}, quoted.size());
  wire::seal(header, quoted);
  const std::array<IoSlice, 2> slices{IoSlice{&header, sizeof header},
                                      IoSlice{quoted.data(), quoted.size()}};
  TxPacket reset;
  reset.destination = packet.source;
  reset.local_path = packet.local_path;
  reset.slices = slices;
  reset.bytes = sizeof header + quoted.size();
  if (host_.nic().send_st({&reset, 1}) == 1) ++host_.counters().resets_sent;
}

}  // namespace taco::harp
