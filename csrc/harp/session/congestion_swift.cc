#include <algorithm>
#include <cmath>
#include <utility>

#include "harp/session/congestion.h"

namespace taco::harp {
namespace {

// Queueing delay to aim at. Large beside a switch's, because the "queue" here is mostly processes
// waiting for a core: a smaller one would let the wire run dry whenever the sender is not running.
// Where queues are shorter than that, loss is what tells of them.
constexpr Duration kTargetDelay = 4 * kMillisecond;
// On top of it for small windows. Flows that share a cable see one delay: where all had one target,
// whoever began first would keep what it had; so the larger gives way to the smaller.
constexpr double kForSmall = 66 * kMillisecond, kMaxForSmall = 12 * kMillisecond;
constexpr double kMaxDecrease = 0.5;
constexpr double kGain = 0.8;

// A window is narrowed by so many times the share of a round that was lost: small windows give way
// as TCP's do, and one packet of thousands means little.
constexpr double kLossGain = 30, kMaxForLoss = 0.3;
// A packet that gets lost while the queue is as good as empty is not lost for lack of room there,
// and nobody is served by our giving way. But more than so much calls for it whatever its reason.
constexpr double kMinNoise = 0.001, kMaxNoise = 0.1;
constexpr double kEmpty = 0.25;                // of the longest queue that there was lately
constexpr double kFew = 24, kHalfEmpty = 0.5;  // packets; not more than this of the longest
constexpr Duration kAlwaysEmpty = 50 * kMicrosecond;
constexpr double kFewPackets = 100, kManyPackets = 1000, kManyBlamed = 100'000;  // to judge by
constexpr Duration kHalfLife = kSecond;  // that queues stay in memory

// A sender that has given way so far and so often, and still finds the queue that it was in, is
// among senders that fill whatever there is. It takes its share of it for a while, then tries
// again.
constexpr std::uint8_t kYieldRounds = 3;
constexpr double kYielded = 0.25, kQueueStays = 0.6;
constexpr Duration kSpell = 2 * kSecond;
constexpr std::uint32_t kPause = 1000;  // ms, between two of them that belong together

// Windows that may leave in a round trip: more than one, so that what limits us is the window, and
// one that doubles can.
constexpr double kPace = 1.25, kPaceAtFirst = 2;

Duration target_delay(double window) {
  return kTargetDelay +
         static_cast<Duration>(std::min(kMaxForSmall, kForSmall / std::sqrt(window)));
}

// The packets that a window may grow by in a round near the target, where the wire is busy anyway.
double step(double window) { return std::clamp(window / 8, 0.5, 16 + window / 32); }

// After a loss, as TCP at first, and faster and faster while all goes well, for so many rounds; the
// more so beside somebody who leaves nothing.
constexpr std::uint16_t kMaxRounds = 10'000;
double careful_step(std::uint16_t rounds, bool competes) {
  return 1 + std::pow(rounds, 2) / (competes ? 256 : 512);
}

void swift_start(CongestionState& state) { state.window = kInitialWindow; }

void narrow(CongestionState& state, double factor) {
  state.window = std::max(kMinWindow, state.window * factor);
}

// The share of the window that is kept when so much of a round was lost.
double kept(double loss) { return 1 - std::min(kMaxForLoss, kLossGain * loss); }

double loss_of(const CongestionRound& round) {
  const double all = round.acked + round.lost;
  return all > 0 ? round.lost / all : 0;
}

void give_way(CongestionState& state, const CongestionRound& round) {
  state.window_before_loss = static_cast<float>(state.window);
  state.threshold_before_loss = static_cast<float>(state.slow_start_threshold);
  narrow(state, kept(loss_of(round)));
  state.slow_start_threshold = state.window;
  SwiftState& swift = state.swift;
  swift.careful = 0;
  if (!std::exchange(swift.has_lost, true)) {
    swift.blamed_lost = static_cast<float>(round.lost);
    swift.blamed_all = static_cast<float>(round.acked + round.lost);
  }
}

void remember_queue(SwiftState& swift, const CongestionRound& round, Time now) {
  const auto half_life = static_cast<std::uint8_t>(now / kHalfLife);
  if (std::exchange(swift.half_life, half_life) != half_life) swift.longest_queue /= 2;
  swift.longest_queue = std::max(round.min_queue, swift.longest_queue);
}

// The length that the queue may have while nothing gets lost for lack of room. A few packets are as
// good as none on a slow path, but a sender that has little of a fast one cannot tell that it is
// fast.
Duration short_queue(const SwiftState& swift, double rate) {
  const auto longest = static_cast<double>(swift.longest_queue);
  const double few = rate > 0 ? std::min(kFew / rate, kHalfEmpty * longest) : 0;
  return std::max(kAlwaysEmpty, static_cast<Duration>(std::max(kEmpty * longest, few)));
}

// As many as noise explains: losses come by runs, as super-packets are lost as a whole.
bool explains(const SwiftState& swift, double lost, double all, double in_a_run) {
  if (lost == 0) return true;
  if (swift.empty_all < kFewPackets) return false;
  const double noise = std::min<double>(swift.empty_lost / swift.empty_all, kMaxNoise);
  if (noise < kMinNoise) return false;
  const double expected = noise * all / in_a_run;  // runs
  return lost <= in_a_run * (1 + 2 * expected + 2 * std::sqrt(expected));
}

double in_a_run(const CongestionRound& round) {
  return round.lost_runs == 0 ? 1 : static_cast<double>(round.lost) / round.lost_runs;
}

bool is_noise(const SwiftState& swift, const CongestionRound& round) {
  return explains(swift, round.lost, round.acked + round.lost, in_a_run(round));
}

// Halves both counts once there are more than `many` packets, so that older ones count less.
void forget_old(float& lost, float& all, double many) {
  if (all < many) return;
  lost /= 2;
  all /= 2;
}

// Learns from the round what gets lost whatever we do.
void measure_noise(CongestionState& state, const CongestionRound& round, const AckSample& sample) {
  SwiftState& swift = state.swift;
  swift.blamed_lost += static_cast<float>(round.lost);
  swift.blamed_all += static_cast<float>(round.acked + round.lost);
  forget_old(swift.blamed_lost, swift.blamed_all, kManyBlamed);
  // A loss shows a round after the queue that made it.
  const bool is_empty = round.max_queue <= short_queue(swift, sample.rate);
  const bool was_empty = std::exchange(swift.was_empty, is_empty);
  if (!is_empty || !was_empty || loss_of(round) > 2 * kMaxNoise) return;
  swift.empty_lost += static_cast<float>(round.lost);
  swift.empty_all += static_cast<float>(round.acked + round.lost);
  if (swift.has_lost && swift.empty_all >= kFewPackets &&
      explains(swift, swift.blamed_lost, swift.blamed_all, in_a_run(round))) {
    state.slow_start_threshold = kNoThreshold;  // it was learned from losses that were not ours
    swift.has_lost = false;
  }
  forget_old(swift.empty_lost, swift.empty_all, kManyPackets);
}

bool competes(const CongestionState& state) { return state.swift.competes_until != 0; }

std::uint32_t milliseconds(Time time) { return static_cast<std::uint32_t>(time / kMillisecond); }

bool has_just_competed(const SwiftState& swift, Time now) {
  return swift.spell_end_ms != 0 && milliseconds(now) - swift.spell_end_ms < kPause;
}

// About as long as when the window began to be narrowed for it.
bool queue_stays(const SwiftState& swift, Duration delay) {
  return static_cast<double>(delay) >= kQueueStays * static_cast<double>(swift.yielded_delay);
}

void begin_yielding(CongestionState& state, Duration delay) {
  state.swift.yielded_from = static_cast<float>(state.window);
  state.swift.yielded_delay = delay;
}

// Takes back what it gave.
void begin_spell(CongestionState& state, Time now) {
  SwiftState& swift = state.swift;
  state.window = swift.yielded_from;
  swift.competes_until = now + kSpell;
  swift.yielded = 0;
}

void end_spell(CongestionState& state, Time now, Duration delay) {
  state.swift.competes_until = 0;
  state.swift.spell_end_ms = milliseconds(now);
  state.swift.yielded = 1;
  begin_yielding(state, delay);
}

// The queue is longer than it should be.
void yield(CongestionState& state, Time now, Duration delay, Duration target) {
  SwiftState& swift = state.swift;
  if (swift.yielded == 0 || state.window > swift.yielded_from) begin_yielding(state, delay);
  swift.yielded = std::min<std::uint8_t>(swift.yielded + 1, kYieldRounds);
  const double queue = static_cast<double>(delay);
  narrow(state, std::max(kMaxDecrease,
                         1 - kGain * static_cast<double>(delay - target) / std::max(queue, 1.0)));
  // Where it goes on from here, it does not double.
  state.slow_start_threshold = state.window;
  // Somebody who has just competed, and is soon back in the same queue with little, goes on.
  const bool is_others = delay > target_delay(kMinWindow) || has_just_competed(swift, now);
  const bool has_yielded =
      swift.yielded >= kYieldRounds && state.window <= kYielded * swift.yielded_from;
  if (is_others && has_yielded && queue_stays(swift, delay)) begin_spell(state, now);
}

void grow(CongestionState& state, const CongestionRound& round, const AckSample& sample,
          bool queue_is_short) {
  const double share = 1.0 / (1 + sample.others);
  const bool slow_start = state.window < state.slow_start_threshold && !competes(state);
  if (slow_start && queue_is_short) {
    state.window = std::min(state.window + round.acked, state.slow_start_threshold);
  } else {
    if (state.swift.careful < kMaxRounds) ++state.swift.careful;
    const double careful = careful_step(state.swift.careful, competes(state)),
                 usual = step(state.window);
    state.window +=
        share * (slow_start || !state.swift.has_lost ? usual : std::min(careful, usual));
  }
  state.window = std::min(state.window, kLargestWindow);
}

void end_round(CongestionState& state, const CongestionRound& round, const AckSample& sample) {
  SwiftState& swift = state.swift;
  const Duration delay = std::max<Duration>(round.min_queue, 0);
  const Duration target = target_delay(state.window + sample.others_window);
  if (competes(state) && (delay < target / 2 || sample.now >= swift.competes_until)) {
    end_spell(state, sample.now, delay);
  }
  if (round.min_queue != kNoQueue) {
    remember_queue(swift, round, sample.now);
    measure_noise(state, round, sample);
  }
  const bool noise = is_noise(swift, round);
  if (!noise) {
    give_way(state, round);
  } else if (delay > target && !competes(state)) {
    return yield(state, sample.now, delay, target);
  } else if (round.limited) {
    grow(state, round, sample, delay < target / 2);
  }
  if (round.lost == 0) state.window_before_loss = 0;
  const bool tries = has_just_competed(swift, sample.now) && queue_stays(swift, delay);
  if (!tries) swift.yielded = 0;
}

void swift_on_ack(CongestionState& state, const AckSample& sample) {
  CongestionRound& round = state.swift.round;
  round.acked += sample.packets;
  round.limited |= sample.limited;
  // The least of a round: one delayed process inflates single samples, a queue inflates all.
  if (sample.queue != kNoQueue) {
    const bool is_first = round.min_queue == kNoQueue;
    round.min_queue = is_first ? sample.queue : std::min(round.min_queue, sample.queue);
    round.max_queue = std::max(round.max_queue, sample.queue);
  }
  if (sample.largest < round.end) return;
  end_round(state, std::exchange(round, {.end = sample.next_number}), sample);
}

void swift_on_loss(CongestionState& state, const AckSample& sample) {
  state.swift.round.lost += sample.lost;
  state.swift.round.lost_runs += sample.lost_runs;
}

void swift_on_silence(CongestionState& state) {
  narrow(state, 0.5);
  state.slow_start_threshold = state.window;
}

void swift_undo(CongestionState& state) {
  if (state.window_before_loss > 0) {
    state.window = std::max<double>(state.window, state.window_before_loss);
    state.slow_start_threshold = state.threshold_before_loss;
  }
  state.swift.round.lost = state.swift.round.lost_runs = 0;
}

double pace(const CongestionState& state) {
  // Among senders that are not paced, whoever is comes off badly: evenly spread packets meet every
  // full queue.
  if (competes(state)) return 0;
  return state.window < state.slow_start_threshold ? kPaceAtFirst : kPace;
}

}  // namespace

const CongestionOps kSwift{"swift",          swift_start, swift_on_ack, swift_on_loss,
                           swift_on_silence, swift_undo,  unpaced};
const CongestionOps kPacedSwift{"paced_swift",    swift_start, swift_on_ack, swift_on_loss,
                                swift_on_silence, swift_undo,  pace};

Result<const CongestionOps*> congestion_named(std::string_view name) {
  for (const CongestionOps* ops : {&kSwift, &kPacedSwift, &kCubic}) {
    if (name == ops->name) return ops;
  }
  return Status(Code::kInvalidArgument,
                '"' + std::string(name) + "\" is unknown: swift, paced_swift or cubic");
}

}  // namespace taco::harp
