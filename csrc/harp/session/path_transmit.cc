// A path's packets out: how many may leave, how they are offered to the Nic, and what is asked of
// the path itself.
#include <algorithm>
#include <array>

#include "base/assert.h"
#include "harp/session/path.h"

namespace taco::harp {
namespace {

// Credit kept back from bulk data, so that small packets need not wait behind it.
constexpr std::uint64_t kCreditReserve = 4;
// Runs shorter than this wait for more room, as long as something is in flight and the window is
// not so small that this would be most of it.
constexpr std::uint32_t kWorthARun = 8;
constexpr std::uint32_t kRunsInWindow = 4;
// The window, in acknowledgements that the peer sends by itself.
constexpr std::uint32_t kFewNews = 4;
// So late an acknowledgement may be without a path having nothing to carry.
constexpr Duration kNewsWithin = 3 * kMillisecond;

bool is_uncounted(const wire::Header& header) { return (header.flags & wire::kUncounted) != 0; }

}  // namespace

bool Path::within_credit() const { return credit_.left() > 0; }

bool Path::has_room() {
  if (sent_.in_flight() >= window()) {
    window_limited_ = true;
    return false;
  }
  if (within_credit()) return true;
  credit_.set_blocked();
  return false;
}

bool Path::is_crowded() const {
  return sent_.in_flight() > 0 && sent_.in_flight() + worth_a_run() > share();
}

std::uint32_t Path::worth_a_run() const {
  return std::clamp(window() / kRunsInWindow, 1u, kWorthARun);
}

// The window, or the share of what there is to send.
std::uint32_t Path::share() const {
  return share_ == kNoShare ? window() : std::min<std::uint32_t>(window(), share_);
}

void Path::set_share(std::size_t most) {
  const double rate = delivery_.rate(host_.now());
  if (rate <= 0) return take_all();  // never a queue: the window is no burden
  const auto busy =
      static_cast<std::size_t>(rate * static_cast<double>(rtt_.least() + kNewsWithin));
  share_ = static_cast<std::uint16_t>(std::min<std::size_t>(std::max(most, busy), kNoShare));
}

bool Path::wants_news(std::uint32_t more) const {
  return share() < kFewNews * DelayedAck::kEvery &&
         sent_.in_flight() + more + worth_a_run() > share();
}

std::uint32_t Path::room_for(std::uint32_t wanted) {
  const std::uint32_t in_flight = sent_.in_flight();
  std::uint32_t room = window() > in_flight ? window() - in_flight : 0;
  if (room < wanted) window_limited_ = true;
  if (share() <= in_flight) return 0;
  room = std::min(room, share() - in_flight);
  std::uint64_t credit = credit_.left();
  credit -= std::min(kCreditReserve, credit / 4);
  if (credit < wanted) {
    window_limited_ = false;  // a larger window would not help
    if (credit == 0) credit_.set_blocked();
  }
  room = static_cast<std::uint32_t>(std::min<std::uint64_t>(room, credit));
  const std::uint32_t granted = std::min(room, wanted);
  if (granted < std::min(wanted, worth_a_run()) && in_flight > 0) return 0;
  return pacer_.admits(host_.now()) ? granted : 0;
}

Duration Path::arrival(std::size_t more) const {
  const double packets = sent_.in_flight() + static_cast<double>(more);
  const double rate = delivery_.rate(host_.now());
  if (rate > 0) return rtt_.least() / 2 + static_cast<Duration>(packets / rate);
  const double share = packets / window_.window;
  return rtt_.smoothed() / 2 + static_cast<Duration>(static_cast<double>(rtt_.smoothed()) * share);
}

// The bytes that leave in place of the body, as the level of security wants it.
std::span<const std::byte> Path::sealed(wire::Header& header, std::span<const std::byte> body) {
  const auto type = static_cast<wire::Type>(header.version_and_type & 15);
  if (sealing_ == nullptr || !seals(sealing_->security(), type)) {
    wire::seal(header, body);
    return body;
  }
  const std::span<std::byte> out = host_.sealing_buffer(body.size() + wire::kTagBytes);
  const PacketNonce nonce =
      is_uncounted(header) ? PacketNonce{id_, next_uncounted_, true, 0} : nonce_of(next_id());
  sealing_->seal(header, nonce, body, {}, out.data());
  return out.first(body.size() + wire::kTagBytes);
}

// Offers header and body as one datagram.
bool Path::offer(wire::Header& header, std::span<const std::byte> plain, const AddressPair& pair,
                 bool unfragmented) {
  const std::span<const std::byte> body = sealed(header, plain);
  const std::array<IoSlice, 2> slices{IoSlice{&header, sizeof header},
                                      IoSlice{body.data(), body.size()}};
  TxPacket packet;
  packet.destination = &pair.remote;
  packet.local_path = pair.local;
  packet.slices = slices;
  packet.bytes = sizeof header + body.size();
  packet.unfragmented = unfragmented;
  const bool taken = host_.nic().send_st({&packet, 1}) == 1;
  if (is_uncounted(header)) {
    ++next_uncounted_;
  } else if (!taken) {
    on_not_taken(1, 0);
  }
  if (!taken) return false;
  recent_.add(header);
  ++host_.counters().packets_sent;
  return true;
}

bool Path::send_frames(std::span<const std::byte> frames, bool counted) {
  wire::PacketId id = next_id();
  if (!counted) id.number = next_uncounted_;
  wire::Header header =
      wire::frames_header(wire::Type::kControl, id, frames.size(), counted ? 0 : wire::kUncounted);
  if (!offer(header, frames)) return false;
  ack_.on_sent();
  if (counted) tail_.on_sent();
  return true;
}

// The numbers stay those of the next packets. Those that are sealed are another attempt; when there
// can be no further one, the numbers are gone, as if their packets had been lost.
void Path::on_not_taken(std::uint32_t count, std::uint32_t left) {
  TACO_ASSERT(count <= 64);
  if (sealing_ == nullptr) return;
  offered_ = std::max(offered_, static_cast<std::uint8_t>(count));
  ++attempt_;
  if (left == 0) renew_numbers();
}

// The peer learns by the next packet that the numbers before it are used up, so there is to be one.
void Path::renew_numbers() {
  if (offered_ == 0) attempt_ = 0;
  if (attempt_ <= wire::kLastAttempt) return;
  use_up(offered_);
  offered_ = attempt_ = 0;
}

void Path::use_up(std::uint32_t numbers) {
  packets_lost_ += numbers;
  credit_.use(numbers);
  next_number_ += numbers;
  tail_.request();
}

// Remembers what has just left.
void Path::commit(SentRun run) {
  TACO_ASSERT(is_open() && run.count > 0 && run.count <= 64);
  run.first = next_number_;
  run.sent = host_.now();
  run.under_way = sent_.in_flight() + run.count;
  run.pending = run.count == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << run.count) - 1;
  next_number_ += run.count;
  offered_ -= std::min(offered_, run.count);
  renew_numbers();
  if (run.kind != SentRun::Kind::kProbe || sent_.in_flight() == 0) tail_.restart(host_.now());
  credit_.use(run.count);
  sent_.add(run);
  if (rtt_.has_sample()) {
    pacer_.on_sent(host_.now(), run.count, congestion_.pace(window_), window_.window,
                   rtt_.smoothed());
  }
}

void Path::fill(wire::Ack& ack) const {
  ack.path = id_;
  received_.fill(ack, host_.now());
}

// An answer to the peer's challenge, and a challenge of our own. Neither is sent again when it is
// lost: the next packet from there sets off another. Where both go to the same place they are one
// packet, and a challenge alone is as long as that: nothing sets off more bytes than it has.
Path::Sent Path::send_tokens() {
  if (!ends_.has_tokens()) return Sent::kNothing;
  PathEnds::Token &response = ends_.response(), &challenge = ends_.challenge();
  const bool together = response.due && challenge.due && response.pair == challenge.pair;
  for (PathEnds::Token* token : {&response, &challenge}) {
    if (!token->due) continue;
    std::array<std::byte, 2 * wire::kTokenBytes> body;
    wire::Writer writer(body);
    if (token == &response) writer.path_response(response.value);
    if (token == &challenge || together) writer.path_challenge(challenge.value);
    if (token == &challenge) writer.padding(writer.room());
    wire::Header header = wire::frames_header(wire::Type::kControl, next_id(), writer.size());
    if (!offer(header, writer.bytes(), token->pair, /*unfragmented=*/false)) return Sent::kNicFull;
    token->due = false;
    if (together) challenge.due = false;
    commit(SentRun{});
  }
  return Sent::kNothing;
}

Path::Sent Path::send_mtu_probe() {
  const std::size_t bytes = mtu_.next_probe();
  if (bytes == 0) return Sent::kNothing;
  if (!within_credit()) {
    credit_.set_blocked();
    return Sent::kNothing;
  }
  const std::size_t body = bytes - sizeof(wire::Header) - small_tag_bytes();
  std::byte* const block = host_.buffers().take(body);
  wire::Writer writer({block, body});
  writer.probe(body);
  wire::Header header = wire::frames_header(wire::Type::kControl, next_id(), body);
  const bool taken = offer(header, writer.bytes(), pair(), /*unfragmented=*/true);
  host_.buffers().give(block, body);
  if (!taken) return Sent::kNicFull;
  SentRun run;
  run.kind = SentRun::Kind::kMtuProbe;
  run.first_segment = static_cast<std::uint32_t>(bytes);
  commit(run);
  mtu_.on_probe_sent(host_.now(), rtt_.probe_timeout(tail_.unanswered()));
  return Sent::kYes;
}

}  // namespace taco::harp
