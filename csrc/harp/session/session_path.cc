// Where the path leads and how large a packet it carries: what is sent to find out, and what the
// fate of packets says about it.
#include <bit>

#include "harp/session/session.h"

namespace taco::harp {

void Session::move_to(const AddressPair& pair) {
  path_.move_to(pair, host_.now());
  ready();
}

void Session::heard_elsewhere(const RxPacket& from) {
  if (!established()) return;
  const AddressPair pair = AddressPair::of(from);
  if (!path_.on_newest_elsewhere(pair, rtt_.probe_timeout(0), host_.now())) return;
  while (path_.challenge().value == 0) path_.challenge().value = host_.random();
  ready();
}

// An answer to the peer's challenge, and a challenge of our own. Neither is sent again when it is
// lost: the next packet from there sets off another.
Session::Sent Session::send_tokens() {
  if (!path_.has_tokens()) return Sent::kNothing;
  for (Path::Token* token : {&path_.response(), &path_.challenge()}) {
    if (!token->due) continue;
    std::array<std::byte, wire::kTokenBytes> body;
    wire::Writer writer(body);
    if (token == &path_.response()) {
      writer.path_response(token->value);
    } else {
      writer.path_challenge(token->value);
    }
    wire::Header header = wire::frames_header(wire::Type::kControl, next_id(), writer.size());
    if (!offer_packet(header, writer.bytes(), token->pair)) return Sent::kNicFull;
    token->due = false;
    commit(SentRun{});
  }
  return Sent::kNothing;
}

Session::Sent Session::send_mtu_probe() {
  const std::size_t bytes = path_.mtu().next_probe();
  if (bytes == 0) return Sent::kNothing;
  if (!within_credit(1)) {
    credit_blocked_ = true;
    return Sent::kNothing;
  }
  const std::size_t body = bytes - sizeof(wire::Header);
  std::byte* const block = host_.buffers().take(body);
  wire::Writer writer({block, body});
  writer.probe(body);
  wire::Header header = wire::frames_header(wire::Type::kControl, next_id(), body);
  const bool taken = offer_packet(header, writer.bytes(), path_.pair(), /*unfragmented=*/true);
  host_.buffers().give(block, body);
  if (!taken) return Sent::kNicFull;
  SentRun run;
  run.kind = SentRun::Kind::kMtuProbe;
  run.first_segment = static_cast<std::uint32_t>(bytes);
  commit(run);
  path_.mtu().on_probe_sent(host_.now(), rtt_.probe_timeout(backoff_));
  return Sent::kYes;
}

void Session::on_mtu_timer() {
  PathMtu& mtu = path_.mtu();
  if (host_.now() < mtu.deadline()) return;
  const std::size_t before = mtu.size();
  mtu.on_timer(host_.now());
  // What was lost was too large; the network is not to blame for more.
  if (mtu.size() < before) congestion_.undo(window_);
  ready();
}

void Session::note_acked_size(const SentRun& run, const BulkSend& send) {
  if (run.kind != SentRun::Kind::kBulk) return;
  path_.mtu().on_data_acked(sizeof(wire::Header) + send.bytes_of_segment(run.first_segment),
                            run.sent);
}

// A run of which some has arrived shows that its size does.
void Session::note_lost_size(const SentRun& run, const BulkSend& send, std::uint64_t mask) {
  if (run.kind != SentRun::Kind::kBulk || std::popcount(mask) != run.count) return;
  path_.mtu().on_data_lost(sizeof(wire::Header) + send.bytes_of_segment(run.first_segment),
                           run.sent, host_.now());
}

}  // namespace taco::harp
