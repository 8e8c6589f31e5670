// Network plugins for NCCL beside each other, called as NCCL's proxies call them: the rate of one
// direction by one connection and by several, and half a round trip of 8 bytes, with the processor
// time of both sides. Rows are JSON, a line each.
//
//   nccl_net_bench [--namespaces FILE,FILE --addresses IP,IP] [--seconds S] [--rounds N] PLUGIN...
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "ext/nccl/check/connection.h"
#include "ext/nccl/check/fellows.h"
#include "ext/nccl/check/network.h"

namespace harp::nccl::check {
namespace {

struct Setup {
  std::vector<std::string> namespaces, addresses, plugins;
  double seconds = 1;
  int rounds = 3;
};

struct Case {
  std::size_t bytes;
  int connections;
  bool round_trips;
};

constexpr std::array kCases = {Case{8, 1, true},         Case{64 << 10, 1, false},
                               Case{1 << 20, 1, false},  Case{4 << 20, 1, false},
                               Case{64 << 10, 8, false}, Case{1 << 20, 8, false},
                               Case{4 << 20, 8, false}};

double processor_seconds() {
  timespec used;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

template <class Value>
Value need(Result<Value> result) {
  if (result.ok()) return std::move(result).value();
  std::fprintf(stderr, "nccl_net_bench: %s\n", result.status().message().c_str());
  _exit(1);
}

void need(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "nccl_net_bench: %s\n", status.message().c_str());
  _exit(1);
}

// Eight messages under way on each connection, from process 0 to process 1; the last one of each is
// empty.
class Stream {
 public:
  Stream(Network& network, void* comm, std::size_t bytes, bool sends)
      : network_(network), comm_(comm), bytes_(bytes), sends_(sends), buffer_(kUnderWay * bytes) {
    region_ = need(network.register_memory(comm, buffer_.data(), buffer_.size()));
  }
  void end() { need(network_.deregister(comm_, region_)); }

  void go_on(bool last) {
    if (!ended_ && posted_ < done_ + kUnderWay) {
      std::byte* const data = buffer_.data() + posted_ % kUnderWay * bytes_;
      void* const request = sends_ ? need(network_.send(comm_, data, last ? 0 : bytes_, region_))
                                   : need(network_.receive(comm_, data, bytes_, region_));
      if (request != nullptr) {
        requests_[posted_++ % kUnderWay] = request;
        ended_ = last;
      }
    }
    if (done_ == posted_) return;
    const auto bytes = need(network_.test(requests_[done_ % kUnderWay]));
    if (!bytes) return;
    ++done_;
    total_ += *bytes;
    if (!sends_ && *bytes == 0) ended_ = over_ = true;
    if (sends_ && ended_ && done_ == posted_) over_ = true;
  }
  bool over() const { return over_; }
  std::size_t total() const { return total_; }

 private:
  static constexpr std::size_t kUnderWay = 8;
  Network& network_;
  void* const comm_;
  const std::size_t bytes_;
  const bool sends_;
  Buffer buffer_;
  void* region_ = nullptr;
  std::array<void*, kUnderWay> requests_{};
  std::size_t posted_ = 0, done_ = 0, total_ = 0;
  bool ended_ = false, over_ = false;
};

struct Figures {
  double bytes, seconds, processor;
};

Figures stream(Network& network, const std::vector<Ring>& rings, const Fellows& fellows,
               const Case& what, double seconds) {
  const bool sends = fellows.rank() == 0;
  std::vector<std::unique_ptr<Stream>> streams;
  for (const Ring& ring : rings) {
    streams.push_back(
        std::make_unique<Stream>(network, sends ? ring.send : ring.receive, what.bytes, sends));
  }
  const double before = processor_seconds();
  const taco::Time begin = taco::monotonic_now();
  const taco::Time last = begin + static_cast<taco::Duration>(seconds * 1e9);
  while (std::ranges::any_of(streams, [](const auto& each) { return !each->over(); })) {
    const bool is_last = sends && taco::monotonic_now() >= last;
    for (const auto& each : streams) {
      if (!each->over()) each->go_on(is_last);
    }
  }
  Figures figures{0, static_cast<double>(taco::monotonic_now() - begin) / 1e9,
                  processor_seconds() - before};
  for (const auto& each : streams) {
    figures.bytes += static_cast<double>(each->total());
    each->end();
  }
  return figures;
}

// So many round trips, each side waiting for the other.
Figures round_trips(Network& network, const Ring& ring, const Fellows& fellows, double seconds) {
  const auto count = static_cast<std::size_t>(20'000 * seconds);
  Buffer in(4096), out(4096);
  void* const in_region = need(network.register_memory(ring.receive, in.data(), in.size()));
  void* const out_region = need(network.register_memory(ring.send, out.data(), out.size()));
  const auto send = [&] {
    return need(send_soon(network, ring.send, out.data(), 8, out_region, fellows.deadline()));
  };
  const double before = processor_seconds();
  const taco::Time begin = taco::monotonic_now();
  for (std::size_t i = 0; i < count; ++i) {
    void* const receive =
        need(receive_soon(network, ring.receive, in.data(), 8, in_region, fellows.deadline()));
    void* sent = fellows.rank() == 0 ? send() : nullptr;
    need(finish(network, receive, fellows.deadline()));
    if (sent == nullptr) sent = send();
    need(finish(network, sent, fellows.deadline()));
  }
  const Figures figures{static_cast<double>(count),
                        static_cast<double>(taco::monotonic_now() - begin) / 1e9,
                        processor_seconds() - before};
  need(network.deregister(ring.receive, in_region));
  need(network.deregister(ring.send, out_region));
  return figures;
}

// A core to each, before any thread is started.
void bind_to_core(int rank) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(static_cast<unsigned>(rank) % std::thread::hardware_concurrency(), &cores);
  sched_setaffinity(0, sizeof cores, &cores);
}

Figures run_rank(const Setup& setup, const std::string& plugin, const Case& what, int rank,
                 const std::string& folder) {
  const auto at = static_cast<std::size_t>(rank);
  if (at < setup.namespaces.size()) {
    const int space = open(setup.namespaces[at].c_str(), O_RDONLY | O_CLOEXEC);
    if (space < 0 || setns(space, CLONE_NEWNET) != 0) {
      need(taco::invalid("no network namespace " + setup.namespaces[at]));
    }
  }
  bind_to_core(rank);
  if (at < setup.addresses.size()) setenv("BENCH_ADDRESS", setup.addresses[at].c_str(), 1);
  Fellows fellows(folder, rank, 2, taco::monotonic_now() + 60 * taco::kSecond);
  const auto network = need(Network::load(plugin, 0));
  void* context = nullptr;
  need(network->init(&context));
  std::vector<Ring> rings;
  for (int i = 0; i < what.connections; ++i) {
    rings.push_back(need(open_ring(*network, context, fellows)));
  }
  need(fellows.barrier());
  const Figures figures = what.round_trips ? round_trips(*network, rings[0], fellows, setup.seconds)
                                           : stream(*network, rings, fellows, what, setup.seconds);
  need(fellows.barrier());
  for (const Ring& ring : rings) need(close_ring(*network, ring));
  need(network->finalize(context));
  return figures;
}

// The receiver's figures, and the processor time of both.
Figures measure(const Setup& setup, const std::string& plugin, const Case& what) {
  std::string folder = (std::filesystem::temp_directory_path() / "nccl-bench-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) need(taco::invalid("no folder in /tmp"));
  std::array<int, 2> reads{};
  std::array<pid_t, 2> pids{};
  for (int rank = 0; rank < 2; ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    std::array<int, 2> ends{};
    if (pipe(ends.data()) != 0) need(taco::invalid("no pipe"));
    pids[at] = fork();
    if (pids[at] == 0) {
      const Figures figures = run_rank(setup, plugin, what, rank, folder);
      _exit(write(ends[1], &figures, sizeof figures) == sizeof figures ? 0 : 1);
    }
    close(ends[1]);
    reads[at] = ends[0];
  }
  Figures sum{}, one{};
  for (std::size_t at = 0; at < 2; ++at) {
    if (read(reads[at], &one, sizeof one) != sizeof one) {
      need(taco::invalid(plugin + ": a process has failed"));
    }
    sum = {one.bytes, one.seconds, sum.processor + one.processor};
    close(reads[at]);
    waitpid(pids[at], nullptr, 0);
  }
  std::filesystem::remove_all(folder);
  return sum;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) parts.push_back(part);
  return parts;
}

void print(const std::string& plugin, const Case& what, int round, const Figures& figures) {
  std::printf("{\"plugin\": \"%s\", \"bytes\": %zu, \"connections\": %d, \"round\": %d, ",
              plugin.c_str(), what.bytes, what.connections, round);
  if (what.round_trips) {
    std::printf("\"half_round_trip_us\": %.3f}\n", figures.seconds / figures.bytes / 2 * 1e6);
  } else {
    std::printf("\"gb_a_s\": %.4f, \"cpu_s_a_gb\": %.4f}\n", figures.bytes / figures.seconds / 1e9,
                figures.processor / (figures.bytes / 1e9));
  }
  std::fflush(stdout);
}

}  // namespace
}  // namespace harp::nccl::check

int main(int argc, char** argv) {
  using namespace harp::nccl::check;
  Setup setup;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const std::string value = i + 1 < argc ? argv[i + 1] : "";
    if (argument == "--namespaces") setup.namespaces = split(value);
    if (argument == "--addresses") setup.addresses = split(value);
    if (argument == "--seconds") setup.seconds = std::stod(value);
    if (argument == "--rounds") setup.rounds = std::stoi(value);
    if (argument.starts_with("--")) {
      ++i;
    } else {
      setup.plugins.push_back(argument);
    }
  }
  for (const Case& what : kCases) {
    for (int round = 0; round < setup.rounds; ++round) {
      for (const std::string& plugin : setup.plugins) {
        print(plugin, what, round, measure(setup, plugin, what));
      }
    }
  }
}
