#include "pg/tuning/link_probe.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <string>
#include <utility>

#include "harp/engine/engine_call.h"

namespace taco::pg {
namespace {

constexpr std::uint32_t kShortBytes = 8;
constexpr std::uint32_t kShortMessages = 64;
constexpr int kShortRounds = 8;
constexpr int kPings = 100;
constexpr std::uint32_t kLongBytes = 256 << 10;
constexpr std::uint32_t kFirstLong = 4, kMaxLong = 64;  // messages in a round
constexpr int kLongRounds = 3;
constexpr double kRoundSeconds = 0.015;  // aimed at
constexpr double kSlowRound = 0.1;       // one such is enough
constexpr double kPingSeconds = 0.05;    // for all of them
constexpr std::uint32_t kTheEnd = 0xffffffff;
constexpr std::uint32_t kAnswer = 0x8000;     // behind every message's index
constexpr std::uint64_t kSignature = 0x7075;  // both ends run the same program
constexpr Duration kProbeCancelLimit = 2 * kSecond;

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double since(Time begin) { return static_cast<double>(monotonic_now() - begin) / kSecond; }

}  // namespace

// The messages that one end posts at a time. Kept alive by the engine until the last of it has
// completed.
struct LinkProbe::Round final : harp::Task {
  struct Order {
    std::uint32_t messages = 0;
    std::uint32_t bytes = 0;
  };

  Round(harp::Engine& e, harp::PeerId p, std::uint64_t g, std::shared_ptr<std::byte[]> m)
      : engine(e), peer(p), group(g), memory(std::move(m)) {}

  void send(std::uint64_t tag, const void* data, std::size_t bytes) {
    harp::SendRequest& request = sends.emplace_back();
    request.key = {group, tag};
    request.signature = kSignature;
    request.data = data;
    request.bytes = bytes;
    request.context = this;
    request.on_done = [](harp::SendRequest& done, const Status& status) {
      static_cast<Round*>(std::exchange(done.context, nullptr))->ended(status);
    };
  }
  void receive(std::uint64_t tag, void* data, std::size_t bytes) {
    harp::RecvRequest& request = receives.emplace_back();
    request.key = {group, tag};
    request.signature = kSignature;
    request.sink = harp::Sink::place(data);
    request.max_bytes = bytes;
    request.context = this;
    request.on_done = [](harp::RecvRequest& done, const Status& status) {
      static_cast<Round*>(std::exchange(done.context, nullptr))->ended(status);
    };
  }

  void run_st(harp::Transport& transport) override {
    open = sends.size() + receives.size();
    for (harp::RecvRequest& request : receives) transport.recv_st(peer, request);
    for (harp::SendRequest& request : sends) transport.send_st(peer, request);
  }
  void ended(const Status& why) {
    if (status.ok()) status = why;
    if (--open > 0) return;
    const std::shared_ptr<Round> keep = std::move(self);
    done.set();
    engine.wake_waiters();
  }
  void cancel_st(harp::Transport& transport) {
    const Status why(Code::kTimeout, "measuring the link took too long");
    for (harp::SendRequest& request : sends)
      if (request.context != nullptr) transport.cancel_st(request, why);
    for (harp::RecvRequest& request : receives)
      if (request.context != nullptr) transport.cancel_st(request, why);
  }

  harp::Engine& engine;
  const harp::PeerId peer;
  const std::uint64_t group;
  const std::shared_ptr<std::byte[]> memory;
  Order order;
  double answer = 0;
  std::deque<harp::SendRequest> sends;  // `context` is null once completed
  std::deque<harp::RecvRequest> receives;
  std::size_t open = 0;
  Status status;
  harp::Event done;
  std::shared_ptr<Round> self;
};

LinkProbe::LinkProbe(harp::Engine& engine, harp::PeerId peer, std::uint64_t group, Time deadline)
    : engine_(engine),
      peer_(peer),
      group_(group),
      deadline_(deadline),
      memory_(new std::byte[std::size_t{kMaxLong} * kLongBytes]()) {}

LinkProbe::~LinkProbe() = default;

std::shared_ptr<LinkProbe::Round> LinkProbe::new_round() {
  return std::make_shared<Round>(engine_, peer_, group_, memory_);
}

Status LinkProbe::carry_out(const std::shared_ptr<Round>& round) {
  round->self = round;
  engine_.submit(*round, true);
  const Result<bool> over = wait_and_heed(engine_, round->done, deadline_);
  if (over.ok() && over.value()) return round->status;
  call_on_engine(
      engine_, [round](harp::Transport& transport) { round->cancel_st(transport); },
      monotonic_now() + kProbeCancelLimit);
  (void)engine_.wait(round->done, monotonic_now() + kProbeCancelLimit);
  if (!over.ok()) return over.status();
  return Status(Code::kTimeout, "measuring the link took too long");
}

Result<LinkProbe::Timing> LinkProbe::order(std::uint32_t messages, std::uint32_t bytes) {
  const std::shared_ptr<Round> ask = new_round();
  ++number_;
  ask->order = {messages, bytes};
  ask->send(tag(0), &ask->order, sizeof ask->order);
  ask->receive(tag(0), &ask->answer, sizeof ask->answer);
  Time begin = monotonic_now();
  TACO_RETURN_IF_ERROR(carry_out(ask));
  if (messages == 0 || messages == kTheEnd) return Timing{since(begin), 0};
  const std::shared_ptr<Round> give = new_round();
  for (std::uint32_t i = 0; i < messages; ++i)
    give->send(tag(1 + i), memory_.get() + std::size_t{i} * bytes, bytes);
  give->receive(tag(kAnswer), &give->answer, sizeof give->answer);
  const double cpu = cpu_seconds();
  begin = monotonic_now();
  TACO_RETURN_IF_ERROR(carry_out(give));
  const double seconds = since(begin);
  return Timing{seconds, std::max(cpu_seconds() - cpu, give->answer) / seconds};
}

Result<LinkMeasurement> LinkProbe::lead() {
  LinkMeasurement found;
  TACO_RETURN_IF_ERROR(order(0, 0).status());  // the first contact
  const Time begin = monotonic_now();
  for (int i = 0; i < kPings && (i < 5 || since(begin) < kPingSeconds); ++i) {
    Result<Timing> ping = order(0, 0);
    if (!ping.ok()) return ping.status();
    if (i == 0 || ping->seconds < found.round_trip) found.round_trip = ping->seconds;
  }
  double burst = 0;
  for (int i = 0; i < kShortRounds; ++i) {
    Result<Timing> round = order(kShortMessages, kShortBytes);
    if (!round.ok()) return round.status();
    if (i == 0 || round->seconds < burst) burst = round->seconds;
  }
  found.message_seconds = std::max(0.0, burst - found.round_trip) / kShortMessages;
  Result<Timing> first = order(kFirstLong, kLongBytes);
  if (!first.ok()) return first.status();
  const double fitting = kFirstLong * kRoundSeconds / first->seconds;
  const auto messages =
      static_cast<std::uint32_t>(std::clamp(fitting, double{kFirstLong}, double{kMaxLong}));
  found.bytes_per_second = double{kFirstLong} * kLongBytes / first->seconds;
  found.busy = first->busy;
  for (int i = 0; i < kLongRounds && first->seconds < kSlowRound; ++i) {
    Result<Timing> round = order(messages, kLongBytes);
    if (!round.ok()) return round.status();
    const double rate = double{kLongBytes} * messages / round->seconds;
    if (rate <= found.bytes_per_second) continue;
    found.bytes_per_second = rate;
    found.busy = round->busy;
  }
  TACO_RETURN_IF_ERROR(order(kTheEnd, 0).status());
  return found;
}

Status LinkProbe::follow() {
  ++number_;
  std::shared_ptr<Round> hear = new_round();
  hear->receive(tag(0), &hear->order, sizeof hear->order);
  while (true) {
    TACO_RETURN_IF_ERROR(carry_out(hear));
    const auto [messages, bytes] = hear->order;
    const bool end = messages == kTheEnd;
    if (!end && (messages > kMaxLong || bytes > kLongBytes)) {
      return Status(Code::kMismatch, "a measurement of " + std::to_string(messages) +
                                         " messages of " + std::to_string(bytes) +
                                         " bytes was ordered");
    }
    const double cpu = cpu_seconds();
    const bool more = !end && messages > 0;
    if (more) {
      const std::shared_ptr<Round> take = new_round();
      take->send(tag(0), &take->answer, sizeof take->answer);
      for (std::uint32_t i = 0; i < messages; ++i)
        take->receive(tag(1 + i), memory_.get() + std::size_t{i} * bytes, bytes);
      TACO_RETURN_IF_ERROR(carry_out(take));
    }
    hear = new_round();
    hear->answer = cpu_seconds() - cpu;
    hear->send(tag(more ? kAnswer : 0), &hear->answer, sizeof hear->answer);
    if (end) return carry_out(hear);
    ++number_;
    hear->receive(tag(0), &hear->order, sizeof hear->order);
  }
}

}  // namespace taco::pg
