#include "harp/tools/perf_ranks.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "base/file.h"
#include "harp/engine/stack.h"
#include "harp/tools/exchange.h"

namespace taco::harp::perf {
namespace {

// The same ranks, by files of other names.
RankSettings for_second_exchange(RankSettings settings) {
  settings.files += ".start";
  return settings;
}

double processor_seconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec +
         (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

// Everybody writes a file of their own and waits for the others'.
Result<std::vector<std::string>> exchange_by_files(const RankSettings& settings, int rank,
                                                   const std::string& own) {
  const std::string mine = settings.files + "." + std::to_string(rank);
  if (!write_file(mine, own)) {
    return Status(Code::kResource, mine + " cannot be written: " + strerror(errno));
  }
  std::vector<std::string> addresses;
  for (int other = 0; other < settings.ranks; ++other) {
    const std::string theirs = settings.files + "." + std::to_string(other);
    addresses.push_back(await_file(theirs, monotonic_now() + 30 * kSecond));
    if (!addresses.back().empty()) continue;
    return Status(Code::kTimeout,
                  "rank " + std::to_string(other) + " did not come (no " + theirs + ")");
  }
  return addresses;
}

class Perf {
 public:
  // `peers` by rank; the own one is unused.
  Perf(Stack& stack, std::vector<PeerId> peers, int rank, const RankSettings& settings)
      : stack_(stack),
        peers_(std::move(peers)),
        peer_(peers_[rank == 0 ? 1 : 0]),
        rank_(rank),
        settings_(settings) {}

  Status latency() {
    std::vector<char> out(settings_.small, 'x'), in(settings_.small);
    std::vector<double> times;
    Exchange both(stack_), ping(stack_), pong(stack_);
    constexpr std::uint64_t kThere = 1, kBack = 2;
    both.recv(peer_, {kBack, 0}, Sink::place(in.data()), in.size());
    both.send(peer_, {kThere, 0}, out.data(), out.size());
    ping.recv(peer_, {kThere, 0}, Sink::place(in.data()), in.size());
    pong.send(peer_, {kBack, 0}, out.data(), out.size());
    for (int i = 0; i < settings_.rounds; ++i, ++tag_) {
      const Time start = monotonic_now();
      for (Exchange* each : {&both, &ping, &pong}) each->set_tag(tag_);
      if (rank_ == 0) {
        TACO_RETURN_IF_ERROR(over(both.run(), "ping"));
      } else {
        TACO_RETURN_IF_ERROR(over(ping.run(), "ping"));
        TACO_RETURN_IF_ERROR(over(pong.run(), "pong"));
      }
      times.push_back((monotonic_now() - start) * 0.5e-3);
    }
    if (rank_ != 0) return {};
    std::sort(times.begin(), times.end());
    printf("%zu B: half round trip median %.1f us, p90 %.1f, p99 %.1f (%lld rounds)\n",
           settings_.small, times[times.size() / 2], times[times.size() * 9 / 10],
           times[times.size() * 99 / 100], static_cast<long long>(settings_.rounds));
    return {};
  }

  // The first message of the session, from the call that sends it until it has been received. Both
  // processes are on one machine: its time travels in the message.
  Status first() {
    const auto begins = exchange_by_files(for_second_exchange(settings_), rank_,
                                          std::to_string(monotonic_now() + 100 * kMillisecond));
    if (!begins.ok()) return begins.status();
    const Time begin =
        std::stoll(begins.value()[0]) + (rank_ == 0 ? 0 : settings_.first_us * kMicrosecond);
    while (monotonic_now() < begin) usleep(50);
    Time sent = monotonic_now();
    std::vector<char> message(std::max(settings_.small, sizeof sent));
    memcpy(message.data(), &sent, sizeof sent);
    Exchange exchange(stack_);
    if (rank_ == 0) {
      exchange.send(peer_, {6, 1}, message.data(), message.size());
    } else {
      exchange.recv(peer_, {6, 1}, Sink::place(message.data()), message.size());
    }
    TACO_RETURN_IF_ERROR(over(exchange.run(), "first message"));
    const Time received = monotonic_now();
    if (rank_ == 0) return {};
    memcpy(&sent, message.data(), sizeof sent);
    printf("%zu B: first message %.1f us\n", message.size(), (received - sent) * 1e-3);
    return {};
  }

  // Rank 0 sends, `window` messages under way at all times. The first byte of each says whether
  // more will follow than those that are under way by then.
  Status throughput() {
    constexpr std::uint64_t kUnknown = UINT64_MAX;
    const auto window = static_cast<std::uint64_t>(settings_.window);
    std::vector<std::vector<char>> buffers(window, std::vector<char>(settings_.bytes, 'y'));
    std::vector<std::unique_ptr<Exchange>> open(window);
    const double processor = processor_seconds();
    const Time start = monotonic_now();
    std::uint64_t messages = kUnknown;
    for (std::uint64_t begun = 0, done = 0; done < messages;) {
      if (begun < messages && begun < done + window) {
        std::vector<char>& buffer = buffers[begun % window];
        const bool is_over = monotonic_now() - start >= settings_.seconds * kSecond;
        if (rank_ == 0 && is_over && messages == kUnknown) messages = begun + window;
        if (rank_ == 0) buffer[0] = messages == kUnknown ? kMore : kLast;
        open[begun++ % window] = begin(buffer);
        continue;
      }
      TACO_RETURN_IF_ERROR(over(open[done % window]->finish(), "transfer"));
      const bool last = buffers[done % window][0] == kLast;
      if (rank_ != 0 && last && messages == kUnknown) messages = done + window;
      ++done;
    }
    const double seconds = (monotonic_now() - start) * 1e-9;
    const double gigabytes = messages * settings_.bytes * 1e-9;
    printf("%s %zu B: %.4f GB/s = %.4f Gbit/s, %.3f s of processor a GB\n",
           rank_ == 0 ? "sent" : "received", settings_.bytes, gigabytes / seconds,
           gigabytes * 8 / seconds, (processor_seconds() - processor) / gigabytes);
    return {};
  }

  // Everybody to everybody, small and large.
  Status rounds(std::size_t bytes, int count) {
    const std::size_t others = peers_.size() - 1;
    std::vector<std::vector<char>> out(others, std::vector<char>(bytes, 'x')), in = out;
    std::vector<double> times;
    const double processor = processor_seconds();
    for (int i = 0; i < count; ++i, ++tag_) {
      const Time start = monotonic_now();
      Exchange exchange(stack_);
      for (std::size_t other = 0, at = 0; other < peers_.size(); ++other) {
        if (static_cast<int>(other) == rank_) continue;
        exchange.send(peers_[other], {5, tag_}, out[at].data(), bytes);
        exchange.recv(peers_[other], {5, tag_}, Sink::place(in[at].data()), bytes);
        ++at;
      }
      TACO_RETURN_IF_ERROR(over(exchange.run(), "round"));
      times.push_back((monotonic_now() - start) * 1e-3);
    }
    if (rank_ != 0) return {};
    std::sort(times.begin(), times.end());
    const double median = times[times.size() / 2];
    printf(
        "%zu B to each of %zu: round median %.1f us, p90 %.1f, p99 %.1f, %.2f GB/s out of each "
        "rank, %.1f us of processor a round\n",
        bytes, others, median, times[times.size() * 9 / 10], times[times.size() * 99 / 100],
        others * bytes * 1e-3 / median, (processor_seconds() - processor) * 1e6 / count);
    return {};
  }

  void counters() {
    const StackStats stats = stack_.stats();
    printf(
        "rank %d: packets %llu out %llu in, retransmits %llu (spurious %llu), duplicates %llu, "
        "copied %llu B, overflows %llu, sleeps %llu\n",
        rank_, static_cast<unsigned long long>(stats.packets_sent),
        static_cast<unsigned long long>(stats.packets_received),
        static_cast<unsigned long long>(stats.retransmits),
        static_cast<unsigned long long>(stats.spurious_retransmits),
        static_cast<unsigned long long>(stats.duplicates),
        static_cast<unsigned long long>(stats.bytes_copied),
        static_cast<unsigned long long>(stats.socket_overflows),
        static_cast<unsigned long long>(stats.sleeps));
  }

 private:
  static constexpr char kMore = 1, kLast = 0;

  // A failure ends the engine first: what is still under way refers to memory of its measure.
  Status over(const Status& status, const char* what) {
    if (!status.ok()) stack_.close();
    return status.with_prefix(std::string(what) + ": ");
  }

  std::unique_ptr<Exchange> begin(std::vector<char>& buffer) {
    auto exchange = std::make_unique<Exchange>(stack_);
    const MessageKey key{3, tag_++};
    if (rank_ == 0) {
      exchange->send(peer_, key, buffer.data(), buffer.size());
    } else {
      exchange->recv(peer_, key, Sink::place(buffer.data()), buffer.size());
    }
    exchange->start(true);
    return exchange;
  }

  Stack& stack_;
  const std::vector<PeerId> peers_;
  const PeerId peer_;
  const int rank_;
  const RankSettings& settings_;
  std::uint64_t tag_ = 0;
};

Status measure_all(Perf& perf, const RankSettings& settings) {
  if (settings.first_us >= 0) return perf.first();
  if (settings.ranks != 2) {
    TACO_RETURN_IF_ERROR(perf.rounds(settings.small, settings.rounds));
    return perf.rounds(settings.bytes, 20);
  }
  TACO_RETURN_IF_ERROR(perf.latency());
  std::this_thread::sleep_for(std::chrono::nanoseconds(
      std::max<Time>(0, static_cast<Time>(settings.start * kSecond) - monotonic_now())));
  return perf.throughput();
}

Status measure_over(Stack& stack, const RankSettings& settings, int rank) {
  const auto addresses = exchange_by_files(settings, rank, stack.address());
  if (!addresses.ok()) return addresses.status();
  std::vector<PeerId> peers(addresses.value().size());
  for (int other = 0; other < settings.ranks; ++other) {
    if (other == rank) continue;
    const auto peer = stack.add_peer(addresses.value()[other]);
    if (!peer.ok()) return peer.status().with_prefix("rank " + std::to_string(other) + ": ");
    peers[other] = peer.value();
  }
  if (rank == 0) {
    printf("%s to %s\n", stack.transport_summary().c_str(), stack.describe(peers[1]).c_str());
  }
  Perf perf(stack, std::move(peers), rank, settings);
  TACO_RETURN_IF_ERROR(measure_all(perf, settings));
  perf.counters();
  return {};
}

Status run(const RankSettings& settings, int rank) {
  auto options = StackOptions::from_env();
  if (!options.ok()) return options.status().with_prefix("options: ");
  options->master = settings.master;
  if (settings.transport == "udp") options->transport = StackOptions::Force::kUdp;
  if (settings.transport == "shm") options->transport = StackOptions::Force::kShm;
  const auto stack = Stack::acquire(*options);
  if (!stack.ok()) return stack.status().with_prefix("stack: ");
  Status status = measure_over(*stack.value(), settings, rank);
  stack.value()->close();
  fflush(stdout);
  return status;
}

// The exit status.
int tell(const Status& status) {
  if (!status.ok()) fprintf(stderr, "harp-perf: %s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}

// All but rank 0, which is this process. Those that were made are in `children` after a failure,
// too.
Status start_others(const RankSettings& settings, std::vector<pid_t>& children) {
  for (int rank = 1; rank < settings.ranks; ++rank) {
    const pid_t child = fork();
    if (child < 0) {
      return Status(Code::kResource, "rank " + std::to_string(rank) + " cannot be started (" +
                                         strerror(errno) + "): give fewer --ranks");
    }
    if (child == 0) _exit(tell(run(settings, rank)));
    children.push_back(child);
  }
  return {};
}

// False: one has failed, and has said why.
bool wait_for(const std::vector<pid_t>& children) {
  bool good = true;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    good &= status == 0;
  }
  return good;
}

// For the files by which ranks of one host find each other.
Result<std::string> make_folder_for_exchange() {
  std::error_code error;
  const std::filesystem::path place = std::filesystem::temp_directory_path(error);
  std::string folder = (error ? std::filesystem::path("/tmp") : place) / "harp-perf-XXXXXX";
  if (mkdtemp(folder.data()) != nullptr) return folder;
  const std::string why = strerror(errno);
  return Status(Code::kResource, "no folder for the files by which ranks meet can be made in " +
                                     std::filesystem::path(folder).parent_path().string() + ": " +
                                     why + " (TMPDIR names another place)");
}

int run_all(RankSettings settings) {
  const auto folder = make_folder_for_exchange();
  if (!folder.ok()) return tell(folder.status());
  settings.files = folder.value() + "/meet";
  std::vector<pid_t> children;
  Status status = start_others(settings, children);
  if (status.ok()) status = run(settings, 0);
  // Without rank 0 they would wait for it.
  if (!status.ok()) {
    for (const pid_t child : children) kill(child, SIGTERM);
  }
  const bool good = wait_for(children);
  std::error_code ignored;
  std::filesystem::remove_all(folder.value(), ignored);
  return tell(status) != 0 || !good ? 1 : 0;
}

}  // namespace

int measure_ranks(const RankSettings& settings) {
  return settings.rank < 0 ? run_all(settings)
                           : tell(run(settings, static_cast<int>(settings.rank)));
}

}  // namespace taco::harp::perf
