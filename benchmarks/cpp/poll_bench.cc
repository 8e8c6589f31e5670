// Small messages between two programs that never sleep, as NCCL's proxies do: by harp.h, whose
// transfers they look at and poll for, beside a bare UDP socket and a bare TCP connection that are
// asked again and again. The ways take turns, so that what else the host does meets all of them.
//
//   poll_bench --rank R --own ADDRESS --other ADDRESS --port N [--transport auto|shm|udp]
//              [--bytes N] [--rounds N] [--only harp|udp|tcp]
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "bare_sockets.h"
#include "base/clock.h"
#include "harp/harp.h"

namespace {

using namespace taco;         // a program, not a library
using namespace taco::bench;  // NOLINT(google-build-using-namespace)

constexpr std::uint64_t kTurns = 10;

struct Settings {
  int rank = 0;
  Ends ends;
  std::string transport = "auto", only;
  std::size_t bytes = 8;
  std::uint64_t rounds = 20'000;
};

template <class Value>
Value value_of(harp::Result<Value> result) {
  if (!result.ok()) fail(result.status().message());
  return std::move(result).value();
}

void send_all(int fd, const std::vector<char>& message) {
  const ssize_t sent = send(fd, message.data(), message.size(), MSG_NOSIGNAL);
  if (sent != static_cast<ssize_t>(message.size())) fail_call("send");
}

void receive_all(int fd, std::vector<char>& message) {
  for (std::size_t done = 0; done < message.size();) {
    const ssize_t got = recv(fd, message.data() + done, message.size() - done, MSG_DONTWAIT);
    if (got == 0) fail("the other end has gone");
    if (got < 0 && errno != EAGAIN && errno != EINTR) fail_call("recv");
    if (got > 0) done += static_cast<std::size_t>(got);
  }
}

int tcp(const Settings& settings) {
  const int fd =
      settings.rank == 0 ? connect_to(settings.ends) : accept_one(listen_at(settings.ends));
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return fd;
}

int udp(const Settings& settings) {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const auto* own = reinterpret_cast<const sockaddr*>(&settings.ends.own);
  const auto* other = reinterpret_cast<const sockaddr*>(&settings.ends.other);
  if (fd < 0 || bind(fd, own, sizeof settings.ends.own) != 0 ||
      connect(fd, other, sizeof settings.ends.other) != 0) {
    fail_call("a UDP socket");
  }
  return fd;
}

class Sockets {
 public:
  explicit Sockets(int fd) : fd_(fd) {}
  void send(const std::vector<char>& message) { send_all(fd_, message); }
  void receive(std::vector<char>& message) { receive_all(fd_, message); }

 private:
  const int fd_;
};

class Harp {
 public:
  // The ticket travels by `fd`.
  Harp(const Settings& settings, int fd)
      : endpoint_(value_of(harp::Endpoint::open({.transport = settings.transport}))) {
    std::vector<char> ticket(harp::Listener::kTicketBytes);
    if (settings.rank == 1) {
      auto listener = value_of(endpoint_.listen());
      const std::string text = listener.ticket();
      send_all(fd, std::vector<char>(text.begin(), text.end()));
      connection_ = value_of(listener.accept());
    } else {
      receive_all(fd, ticket);
      connection_ = value_of(value_of(endpoint_.dial({ticket.data(), ticket.size()})).wait());
    }
  }
  void send(const std::vector<char>& message) {
    finish(endpoint_.send(connection_.peer, connection_.channel, message.data(), message.size()));
  }
  void receive(std::vector<char>& message) {
    finish(
        endpoint_.receive(connection_.peer, connection_.channel, message.data(), message.size()));
  }
  std::string transport() const { return endpoint_.transport(); }

 private:
  void finish(harp::Transfer transfer) {
    while (!transfer.done()) endpoint_.poll();
    value_of(transfer.wait());
  }

  harp::Endpoint endpoint_;
  harp::Connection connection_;
};

// One of the ways, and half the time of each round.
struct Way {
  std::string name;
  std::function<void()> round;
  std::vector<double> times = {};
};

template <class Ends>
Way way_of(const char* name, Ends& ends, std::vector<char>& message, int rank) {
  return {name, [&ends, &message, rank] {
            if (rank == 0) ends.send(message);
            ends.receive(message);
            if (rank == 1) ends.send(message);
          }};
}

void report(Way& way, std::size_t bytes) {
  std::sort(way.times.begin(), way.times.end());
  const auto at = [&](std::size_t percent) {
    return way.times[std::min(way.times.size() * percent / 100, way.times.size() - 1)];
  };
  std::printf("%zu B %s: half round trip median %.2f us, p10 %.2f, p90 %.2f (%zu rounds)\n", bytes,
              way.name.c_str(), at(50), at(10), at(90), way.times.size());
}

constexpr char kUsage[] =
    "poll_bench --rank 0|1 --own IPV4 --other IPV4 --port N\n"
    "                  [--transport auto|shm|udp] [--bytes N] [--rounds N] [--only harp|udp|tcp]";

Settings parse(int argc, char** argv) {
  Settings settings;
  std::vector<char*> rest;
  for (int i = 0; i < argc; ++i) {
    const std::string name = argv[i];
    if ((name == "--transport" || name == "--only") && i + 1 < argc) {
      (name == "--only" ? settings.only : settings.transport) = argv[++i];
    } else {
      rest.push_back(argv[i]);
    }
  }
  Options options(static_cast<int>(rest.size()), rest.data(), kUsage);
  settings.rank = options.choice("--rank", "1", "0", false) ? 1 : 0;
  settings.bytes = options.number("--bytes", settings.bytes);
  settings.rounds = options.number("--rounds", settings.rounds);
  settings.ends = options.ends(settings.rank);
  options.finish();
  return settings;
}

}  // namespace

int main(int argc, char** argv) {
  const Settings settings = parse(argc, argv);
  std::vector<char> message(settings.bytes, 'x');
  const int stream = tcp(settings);
  Sockets by_tcp(stream), by_udp(udp(settings));
  Harp by_harp(settings, stream);
  std::vector<Way> ways{way_of("harp", by_harp, message, settings.rank),
                        way_of("udp", by_udp, message, settings.rank),
                        way_of("tcp", by_tcp, message, settings.rank)};
  if (!settings.only.empty()) {
    std::erase_if(ways, [&](const Way& way) { return way.name != settings.only; });
  }
  for (std::uint64_t turn = 0; turn < kTurns; ++turn) {
    for (Way& way : ways) {
      for (std::uint64_t i = 0; i < settings.rounds / kTurns; ++i) {
        const Time start = monotonic_now();
        way.round();
        way.times.push_back(static_cast<double>(monotonic_now() - start) * 0.5e-3);
      }
    }
  }
  if (settings.rank == 0) {
    std::printf("harp by %s\n", by_harp.transport().c_str());
    for (Way& way : ways) report(way, settings.bytes);
  }
  return 0;
}
