// A path's packets in, and its time.
#include "harp/session/path.h"

#include <algorithm>
#include <bit>

#include "base/assert.h"

namespace taco::harp {
namespace {

// How long a window counts as full after it was: more is acknowledged in a moment.
constexpr Duration kLately = 5 * kMillisecond;
// If so few packets are under way, none meets a queue of their own making.
constexpr std::uint32_t kFewEnough = 8;
constexpr Duration kRememberLost = 500 * kMillisecond;
constexpr Duration kLongGap = 200 * kMillisecond;
constexpr std::uint32_t kLongSilence = 3;  // probes in a row without an answer
// A path is given up when probes have gone unanswered for so long while other paths answer.
constexpr Duration kPatience = 150 * kMillisecond;
// Or when so many of its packets were refused and none has arrived.
constexpr std::uint8_t kRefusals = 3;
// Challenges by a path that is not proved.
constexpr Duration kFirstRetry = 50 * kMillisecond, kLastRetry = kSecond;
// A path that falls silent again within kFlap rests before it is proved, ever longer.
constexpr Duration kFlap = 10 * kSecond, kFirstRest = 500 * kMillisecond, kLastRest = 16 * kSecond;

std::uint32_t whole_milliseconds(Duration time) {
  return static_cast<std::uint32_t>(time / kMillisecond);
}

}  // namespace

Path::Path(wire::PathId id, const AddressPair& pair, bool leads, const CongestionOps& congestion,
           SessionHost& host, SendCredit& credit)
    : host_(host), credit_(credit), id_(id), ends_(pair, leads), congestion_(congestion) {
  congestion_.start(window_);
}

void Path::open(const AddressPair& pair, const Agreed& agreed, std::size_t proved) {
  TACO_ASSERT(!is_open() && agreed.connection != 0);
  connection_ = agreed.connection;
  sealing_ = agreed.sealing;
  ends_.move_to(pair, host_.now());
  mtu_.open(agreed.limit, host_.now());
  mtu_.on_proof(proved, host_.now());
  become_live();
}

void Path::open_unproven(const Agreed& agreed) {
  TACO_ASSERT(!is_open() && agreed.connection != 0);
  connection_ = agreed.connection;
  sealing_ = agreed.sealing;
  ends_.move_to(pair(), host_.now());
  mtu_.open(agreed.limit, host_.now());
  interval_ = kFirstRetry;
  retry_ = host_.now();
}

void Path::become_live() {
  state_.go(State::kLive);
  live_since_ = news_ = host_.now();
  retry_ = kNever;
  challenges_ = 0;
  tail_.on_acknowledged(host_.now());
}

void Path::fall_silent(SentPackets::Listener& listener) {
  const Time now = host_.now();
  state_.go(State::kProving);
  refusals_ = 0;
  rest_ = now - live_since_ < kFlap ? std::clamp(2 * rest_, kFirstRest, kLastRest) : Duration{0};
  interval_ = kFirstRetry;
  retry_ = now + std::max(rest_, interval_);
  packets_lost_ += sent_.in_flight();
  sent_.lose_all(listener);
  // The way that comes after may be another altogether.
  rtt_ = {};
  delivery_ = {};
  window_ = {};
  congestion_.start(window_);
}

void Path::start_over(const AddressPair& pair) {
  TACO_ASSERT(!is_live());
  move_to(pair);
  live_since_ = 0;
  challenges_ = 0;
  retry_ = host_.now();
  try_again();
}

void Path::try_again() {
  if (is_live() || retry_ == kNever) return;
  rest_ = 0;
  interval_ = kFirstRetry;
  retry_ = host_.now();
}

// The first challenge after a rest doubles the interval between them.
Path::Standing Path::standing() const {
  if (is_live()) return Standing::kLive;
  if (live_since_ == 0) return Standing::kProving;
  return rest_ > 0 && interval_ == kFirstRetry ? Standing::kResting : Standing::kLeft;
}

bool Path::is_silent() const {
  if (!is_live() || peer_left_ || tail_.unanswered() == 0) return false;
  if (refusals_ >= kRefusals) return true;
  return watches_silence() && host_.now() - doubted_ >= kPatience;
}

// Somebody who reads our packets can make up a refusal: so it only raises the question, as an
// overdue answer does.
bool Path::on_refused() {
  if (!is_live() || peer_left_) return false;
  refusals_ = static_cast<std::uint8_t>(std::min(refusals_ + 1, int{kRefusals}));
  if (tail_.unanswered() > 0) return false;
  tail_.doubt(host_.now());
  doubted_ = host_.now();
  return true;
}

// Packets under way by the old pair may arrive later than those that leave by the new one, and tell
// nothing of its time. Other ports alone are no reason to doubt what the way carries, nor how long
// it is: there a queue that the path finds would pass for its length.
void Path::move_to(const AddressPair& pair) {
  const AddressPair before = ends_.pair();
  if (!ends_.move_to(pair, host_.now())) return;
  delivery_ = {};
  const Duration window = rtt_.smoothed() + reorder_.get(rtt_);
  loss_not_before_ = std::max(loss_not_before_, host_.now() + window);
  if (between_same_hosts(before, pair, host_.nic().addresses())) return;
  mtu_.doubt(host_.now());
  rtt_.on_new_way();
  tells_since_ = host_.now();
}

void Path::challenge(const AddressPair& pair) {
  ends_.challenge_at(pair, host_.now());
  choose_token();
}

bool Path::is_limited() const {
  if (window_limited_) return true;
  return whole_milliseconds(host_.now()) - limited_ <=
         whole_milliseconds(2 * rtt_.smoothed() + kLately);
}

void Path::on_peer_left() {
  peer_left_ = true;
  retry_ = kNever;
  mtu_.close();
}

// A copy comes from a sender whose acknowledgements get lost: the next one may arrive.
void Path::on_copy() {
  ack_.want();
  ack_.hurry();
}

bool Path::on_packet(std::uint64_t number, std::size_t bytes, const RxPacket& from) {
  const Time now = host_.now();
  const std::uint64_t largest = received_.largest();
  if (!received_.add(number, now) || number <= largest) return false;
  if (number > largest + 1 && largest > 0) ack_.on_hole();
  if (ends_.is_by(from)) {
    ends_.on_newest_here(now);
    return false;
  }
  // Somebody who has caught a packet and sends it from elsewhere gets no more bytes than it sent.
  const std::size_t challenge = sizeof(wire::Header) + 2 * wire::kTokenBytes + small_tag_bytes();
  if (!is_open() || bytes < challenge) return false;
  if (!ends_.on_newest_elsewhere(AddressPair::of(from), rtt_.probe_timeout(0), now)) return false;
  choose_token();
  return true;
}

// Zero is none.
void Path::choose_token() {
  while (ends_.challenge().value == 0) ends_.challenge().value = host_.random();
}

bool Path::on_response(const RxPacket& from, std::uint64_t token) {
  const AddressPair pair = AddressPair::of(from);
  if (!ends_.is_answer(pair, token)) return false;
  move_to(pair);
  if (!is_live()) become_live();
  return true;
}

AckSample Path::sample() const {
  AckSample sample;
  sample.now = host_.now();
  sample.largest = sent_.largest_acked();
  sample.next_number = next_number_;
  sample.smoothed_rtt = rtt_.smoothed();
  sample.rate = delivery_.rate(host_.now());
  sample.limited = window_limited_;
  return sample;
}

Path::News Path::on_ack(const wire::Ack& ack, const Others& others,
                        SentPackets::Listener& listener) {
  SentPackets::AckOutcome outcome;
  if (!sent_.on_ack(ack, next_number_, host_.now(), listener, outcome)) return News::kMalformed;
  if (outcome.newly_acked + outcome.spurious == 0) return News::kNothing;
  Duration queue = kNoQueue;
  // A packet that is heard first after a stall has waited here as long as the stall: that is no
  // time of the path's. After a long one, as when the machine was suspended, what left before it
  // tells nothing at all.
  const bool tells = host_.now() != back_at_ && outcome.newest_sent >= tells_since_;
  if (outcome.newest == ack.ranges[0].last && tells) {
    const Duration delay = std::min<Duration>(ack.delay_us, 1'000'000) * kMicrosecond;
    const auto sent_us = static_cast<std::uint32_t>(outcome.newest_sent / kMicrosecond);
    rtt_.on_sample(host_.now(), host_.now() - outcome.newest_sent, delay, ack.arrived_us - sent_us,
                   outcome.newest_under_way <= kFewEnough);
    queue = rtt_.queue();
    delivery_.on_arrival(host_.now(), {.number = outcome.newest,
                                       .at_us = ack.arrived_us,
                                       .queue = queue,
                                       .under_way = outcome.newest_under_way,
                                       .round_trip = std::max(rtt_.latest(), rtt_.smoothed())});
  }
  news_ = host_.now();
  tail_.on_acknowledged(host_.now());
  refusals_ = 0;
  if (outcome.spurious > 0) {
    host_.counters().spurious_retransmits += outcome.spurious;
    reorder_.on_spurious();
    quiet_until_ = next_number_;
    congestion_.undo(window_);
  } else if (sent_.largest_acked() >= quiet_until_) {
    reorder_.on_quiet_round();
    quiet_until_ = next_number_;
  }
  AckSample now = sample();
  now.packets = outcome.newly_acked;
  now.queue = queue;
  now.others = others.paths;
  now.others_window = others.window;
  congestion_.on_ack(window_, now);
  if (window_limited_) limited_ = whole_milliseconds(host_.now());
  window_limited_ = false;
  return News::kSomething;
}

// A run of which some has arrived shows that its size does.
void Path::on_size_lost(const SentRun& run, std::uint64_t mask, std::size_t datagram) {
  if (std::popcount(mask) != run.count) return;
  mtu_.on_data_lost(datagram, run.sent, host_.now());
}

bool Path::watches_silence() const {
  const bool waiting = sent_.in_flight() > 0 || (credit_.blocked() && is_main_);
  return waiting && !peer_left_ && is_live();
}

// Who waits for credit alone asks for it ever more rarely: all that wait ask the same peer.
std::uint32_t Path::patience() const {
  return sent_.in_flight() > 0 ? 0 : std::max(credit_.asked(), 1u) - 1;
}

Time Path::next_deadline() const {
  const Time loss = sent_.next_loss(reorder_.get(rtt_), loss_not_before_);
  const Time next = std::min({ack_.deadline(), mtu_.deadline(), pacer_.deadline(), loss, retry_});
  if (!watches_silence()) return next;
  const bool patient = tail_.unanswered() > 0 && host_.now() < doubted_ + kPatience;
  return std::min(
      {next, tail_.deadline(rtt_, patience()), patient ? doubted_ + kPatience : kNever});
}

bool Path::on_timer(SentPackets::Listener& listener) {
  const Time now = host_.now();
  bool something = ack_.on_timer(now);
  something |= pacer_.on_timer(now);
  something |= detect_losses(listener);
  something |= on_mtu_timer(now);
  something |= on_probe_timeout(now);
  something |= on_retry(now);
  return something;
}

// Only on a timer, when everything that has arrived was heard: the acknowledgement that shows a
// hole may be followed by the one that fills it. True: probes of the path's MTU were lost, of which
// nobody else is told, and others may leave in their place.
bool Path::detect_losses(SentPackets::Listener& listener) {
  AckSample lost = sample();
  mtu_probes_lost_ = 0;
  const SentPackets::Losses losses =
      sent_.detect_lost(host_.now(), reorder_.get(rtt_), loss_not_before_, listener);
  lost.lost = losses.packets - mtu_probes_lost_;
  lost.lost_runs = losses.runs - mtu_probes_lost_;
  packets_lost_ += lost.lost;
  if (lost.lost > 0) congestion_.on_loss(window_, lost);
  return mtu_probes_lost_ > 0;
}

bool Path::on_mtu_timer(Time now) {
  if (now < mtu_.deadline()) return false;
  const std::size_t before = mtu_.size();
  mtu_.on_timer(now);
  // The lost packets were too large; the network is not to blame for more.
  if (mtu_.size() < before) congestion_.undo(window_);
  return true;
}

// Nothing was heard for longer than it should take: a ping brings either an acknowledgement, which
// shows what is missing, or more silence. No data is sent again on suspicion.
bool Path::on_probe_timeout(Time now) {
  if (!watches_silence() || !tail_.on_timer(rtt_, now, patience())) return false;
  if (sent_.in_flight() == 0) credit_.on_asked();
  if (tail_.unanswered() == 1) doubted_ = now;
  if (tail_.unanswered() == kLongSilence) congestion_.on_silence(window_);
  return true;
}

bool Path::on_retry(Time now) {
  if (now < retry_) return false;
  retry_ = now + interval_;
  interval_ = std::min(2 * interval_, kLastRetry);
  ++challenges_;
  sent_.clear();  // challenges, which nobody else carries
  sent_.trim();   // it may take long, and there is room for much more than those
  ends_.prove(now);
  choose_token();
  return true;
}

void Path::probe() { tail_.request(); }

// Called before anything that arrived meanwhile is heard, so that no base comes to lie in the
// future. What the network or the peer's host still holds back after a stall gets one window to
// come in; a stall that begins within that window, or just as it ends, brings no other, or stalls
// that follow each other closely would put off losses for ever.
void Path::on_gap(Duration late, Duration away) {
  const Time now = back_at_ = host_.now();
  if (late >= kLongGap) tells_since_ = now;
  tail_.on_gap(away, now);
  if (now - late > loss_not_before_) loss_not_before_ = now + reorder_.get(rtt_);
}

void Path::forget_lost() { sent_.forget_lost(host_.now() - kRememberLost); }

void Path::trim() {
  sent_.trim();
  received_.trim();
  ends_.trim(host_.now());
}

}  // namespace taco::harp
