// Measures what one lost packet costs a sender at full rate: the processor time that its
// bookkeeping takes in one second (runs noted as they leave, acknowledgements, the search for
// losses), without a loss and with one at the second's beginning. The calls are those of a Session,
// in virtual time; no packet is built or sent.
//
//   loss_bench [--repeat N] [--json]
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>

#include "harp/session/received_packets.h"
#include "harp/session/sent_packets.h"

namespace {

using namespace taco;        // a program, not a library
using namespace taco::harp;  // NOLINT(google-build-using-namespace)

constexpr std::size_t kPacketBytes = 1440;
constexpr std::uint8_t kRun = 44;        // packets of a super-packet
constexpr std::uint32_t kAckEvery = 48;  // as the receiver's
constexpr Duration kRoundTrip = 200 * kMicrosecond;
constexpr Duration kWindow = kMillisecond;  // of reordering
constexpr Duration kTick = kSecond, kRemember = 500 * kMillisecond;

struct Ignore final : SentPackets::Listener {
  void on_run_acked(const SentRun&, std::uint64_t) override {}
  void on_run_lost(const SentRun&, std::uint64_t) override {}
};

double processor_seconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

struct Second {
  double seconds = 0;    // of processor time
  std::size_t most = 0;  // bytes of bookkeeping
};

// Two seconds of virtual time; the second one is measured. One packet of it never arrives.
class Sender {
 public:
  Sender(double gbits, bool with_loss)
      : between_runs_(static_cast<Duration>(kRun * kPacketBytes * 8 / gbits)),
        with_loss_(with_loss) {}

  Second measure() {
    run_until(kSecond);
    if (with_loss_) lost_ = next_ + 1000;
    result_.most = 0;
    const double start = processor_seconds();
    run_until(2 * kSecond);
    result_.seconds = processor_seconds() - start;
    return result_;
  }

 private:
  void run_until(Time end) {
    for (; now_ < end; now_ += between_runs_) {
      send();
      while (!acks_.empty() && acks_.front().at <= now_) {
        SentPackets::AckOutcome outcome;
        sent_.on_ack(acks_.front().ack, next_, now_, ignore_, outcome);
        acks_.pop_front();
        look();
      }
      look();
      if (now_ >= next_tick_) {
        sent_.forget_lost(now_ - kRemember);
        next_tick_ += kTick;
      }
      result_.most = std::max(result_.most, sent_.memory_bytes());
    }
  }

  void look() {
    if (sent_.next_loss(kWindow, 0) <= now_) sent_.detect_lost(now_, kWindow, 0, ignore_);
  }

  void send() {
    SentRun run;
    run.first = next_;
    run.count = kRun;
    run.pending = (std::uint64_t{1} << kRun) - 1;
    run.sent = now_;
    sent_.add(run);
    for (int i = 0; i < kRun; ++i, ++next_) {
      if (next_ != lost_) received_.add(next_, now_);
      if (++unacknowledged_ < kAckEvery) continue;
      unacknowledged_ = 0;
      acks_.push_back({now_ + kRoundTrip, {}});
      received_.fill(acks_.back().ack, now_);
    }
  }

  struct OnTheWay {
    Time at;
    wire::Ack ack;
  };
  const Duration between_runs_;
  const bool with_loss_;
  Ignore ignore_;
  SentPackets sent_;
  ReceivedPackets received_;
  std::deque<OnTheWay> acks_;
  Time now_ = kMillisecond, next_tick_ = kTick;
  std::uint64_t next_ = 1, lost_ = 0;
  std::uint32_t unacknowledged_ = 0;
  Second result_;
};

Second best_of(int repeat, double gbits, bool with_loss) {
  Second best{1e9, 0};
  for (int i = 0; i < repeat; ++i) {
    const Second one = Sender(gbits, with_loss).measure();
    if (one.seconds < best.seconds) best = one;
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  int repeat = 3;
  bool json = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--repeat") == 0 && i + 1 < argc) {
      repeat = std::max(1, std::atoi(argv[++i]));
    } else if (std::strcmp(argv[i], "--json") == 0) {
      json = true;
    } else {
      std::fprintf(stderr, "usage: loss_bench [--repeat N] [--json]\n");
      return 2;
    }
  }
  if (!json) {
    std::printf("processor time of one second's bookkeeping, packets of %zu bytes\n", kPacketBytes);
    std::printf("%8s %12s %12s %20s %16s\n", "Gbit/s", "no loss", "one loss", "the loss's share",
                "bytes, one loss");
  }
  for (const double gbits : {10.0, 25.0}) {
    const Second none = best_of(repeat, gbits, false), one = best_of(repeat, gbits, true);
    const double share = std::max(0.0, one.seconds - none.seconds);
    std::printf(json ? "{\"gbits\": %.0f, \"no_loss_ms\": %.2f, \"one_loss_ms\": %.2f, "
                       "\"share_percent\": %.2f, \"bytes\": %zu}\n"
                     : "%8.0f %9.2f ms %9.2f ms %18.2f %% %16zu\n",
                gbits, none.seconds * 1e3, one.seconds * 1e3, share * 100, one.most);
  }
}
