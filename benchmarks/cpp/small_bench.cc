// Small messages over a bare TCP connection (TCP_NODELAY): how long until the other end has one
// that it answers, and how long the first one takes, connection included. benchmarks/small.py runs
// it beside harp-perf.
//
//   small_bench --wait blocking|polling --rank R --own ADDRESS --other ADDRESS --port N
//               [--bytes N] [--rounds N] [--first on|off]
//
// blocking: a rank sleeps in recv() until something comes. polling: it asks again at once.
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "bare_sockets.h"
#include "base/clock.h"

namespace {

using namespace taco;         // a program, not a library
using namespace taco::bench;  // NOLINT(google-build-using-namespace)

struct Settings {
  bool polls = false;
  bool first = false;
  int rank = 0;
  Ends ends;
  std::size_t bytes = 64;
  std::uint64_t rounds = 20'000;
};

class Connection {
 public:
  Connection(int fd, const Settings& settings) : fd_(fd), polls_(settings.polls) {
    const int on = 1;
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  ~Connection() { close(fd_); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void send(const std::vector<char>& message) {
    const ssize_t sent = ::send(fd_, message.data(), message.size(), MSG_NOSIGNAL);
    if (sent != static_cast<ssize_t>(message.size())) fail_call("send");
  }
  void receive(std::vector<char>& message) {
    for (std::size_t done = 0; done < message.size();) {
      const ssize_t got =
          recv(fd_, message.data() + done, message.size() - done, polls_ ? MSG_DONTWAIT : 0);
      if (got == 0) fail("the other end has gone");
      if (got < 0 && errno != EAGAIN && errno != EINTR) fail_call("recv");
      if (got > 0) done += static_cast<std::size_t>(got);
    }
  }

 private:
  const int fd_;
  const bool polls_;
};

void answer_each_other(Connection& connection, const Settings& settings) {
  std::vector<char> message(settings.bytes, 'x');
  std::vector<double> times;  // us, of half a round
  for (std::uint64_t i = 0; i < settings.rounds; ++i) {
    const Time start = monotonic_now();
    if (settings.rank == 0) connection.send(message);
    connection.receive(message);
    if (settings.rank == 1) connection.send(message);
    times.push_back(static_cast<double>(monotonic_now() - start) * 0.5e-3);
  }
  if (settings.rank != 0) return;
  std::sort(times.begin(), times.end());
  std::printf("%zu B: half round trip median %.1f us, p90 %.1f, p99 %.1f (%zu rounds)\n",
              settings.bytes, times[times.size() / 2], times[times.size() * 9 / 10],
              times[times.size() * 99 / 100], times.size());
}

// Both processes are on one machine: its time travels in the message.
void send_first(const Settings& settings) {
  Time start = 0;
  std::vector<char> message(settings.bytes);
  Connection connection(connect_to(settings.ends, &start), settings);
  std::memcpy(message.data(), &start, sizeof start);
  connection.send(message);
  std::vector<char> heard(1);
  connection.receive(heard);
}

void receive_first(Connection& connection, const Settings& settings) {
  std::vector<char> message(settings.bytes);
  connection.receive(message);
  const Time received = monotonic_now();
  Time sent = 0;
  std::memcpy(&sent, message.data(), sizeof sent);
  std::printf("%zu B: first message %.1f us\n", settings.bytes,
              static_cast<double>(received - sent) * 1e-3);
  connection.send(std::vector<char>(1));
}

constexpr char kUsage[] =
    "small_bench --wait blocking|polling --rank 0|1 --own IPV4 --other IPV4\n"
    "                   --port N [--bytes N] [--rounds N] [--first on|off]";

Settings parse(int argc, char** argv) {
  Options options(argc, argv, kUsage);
  Settings settings;
  settings.polls = options.choice("--wait", "polling", "blocking", settings.polls);
  settings.first = options.choice("--first", "on", "off", settings.first);
  settings.rank = options.choice("--rank", "1", "0", false) ? 1 : 0;
  settings.bytes = options.number("--bytes", settings.bytes);
  settings.rounds = options.number("--rounds", settings.rounds);
  settings.ends = options.ends(settings.rank);
  options.finish();
  if (settings.first && settings.bytes < sizeof(Time)) {
    options.refuse("--first needs 8 bytes or more");
  }
  return settings;
}

}  // namespace

int main(int argc, char** argv) {
  const Settings settings = parse(argc, argv);
  if (settings.first && settings.rank == 0) {
    send_first(settings);
    return 0;
  }
  const int fd =
      settings.rank == 0 ? connect_to(settings.ends) : accept_one(listen_at(settings.ends));
  Connection connection(fd, settings);
  if (settings.first) {
    receive_first(connection, settings);
  } else {
    answer_each_other(connection, settings);
  }
  return 0;
}
