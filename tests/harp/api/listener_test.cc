// Processes of which one alone is told of the other: listeners, their tickets and dialers.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/own_fd.h"
#include "harp/harp.h"
#include "kernels/kernels.h"
#include "support/processes.h"

namespace {

using harp::Code;
using harp::Connection;
using harp::Endpoint;
using harp::Listener;
using ::taco::kMillisecond;
using ::taco::kSecond;
using ::taco::testing::Fellowship;
using ::taco::testing::require;
using ::taco::testing::run_processes;

Endpoint open_by(const char* transport) {
  return require(Endpoint::open({.transport = transport}));
}

// One number each way, on the channel that they were given.
void greet(Endpoint& endpoint, const Connection& connection, int says, int hears) {
  int heard = 0;
  auto sent = endpoint.send(connection.peer, connection.channel, &says, sizeof says);
  const auto got =
      endpoint.receive(connection.peer, connection.channel, &heard, sizeof heard).wait();
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_EQ(heard, hears);
  EXPECT_TRUE(sent.wait().ok());
}

class Connections : public ::testing::TestWithParam<const char*> {};

TEST_P(Connections, are_made_with_whoever_has_a_ticket) {
  const auto statuses = run_processes({3, 60 * kSecond, {}}, [&](Fellowship& fellowship) {
    Endpoint endpoint = open_by(GetParam());
    if (fellowship.rank() == 0) {
      Listener listener = require(endpoint.listen());
      fellowship.all_gather(listener.ticket());
      std::set<std::uint32_t> channels;
      for (int i = 0; i < 2; ++i) {
        const Connection accepted = require(listener.accept(30 * kSecond));
        EXPECT_GE(accepted.channel, harp::kFirstGivenChannel);
        channels.insert(accepted.channel);
        greet(endpoint, accepted, 7, 8);
      }
      EXPECT_EQ(channels.size(), 2u);
      EXPECT_EQ(listener.accept(0).status().code(), Code::kTimeout);
    } else {
      const std::string ticket = fellowship.all_gather("")[0];
      EXPECT_EQ(ticket.size(), Listener::kTicketBytes);
      auto dialer = require(endpoint.dial(ticket));
      greet(endpoint, require(dialer.wait(30 * kSecond)), 8, 7);
      EXPECT_EQ(dialer.wait(0).status().code(), Code::kInvalidArgument) << "given once";
    }
    fellowship.barrier();
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0, 0}));
}

// More than a listener has in at a time, in both directions at once: all connect, and no channel is
// given twice, whoever gives it.
TEST_P(Connections, are_as_many_as_are_asked_for) {
  constexpr std::size_t kMany = 100;
  const auto statuses = run_processes({2, 120 * kSecond, {}}, [&](Fellowship& fellowship) {
    Endpoint endpoint = open_by(GetParam());
    Listener listener = require(endpoint.listen());
    const auto tickets = fellowship.all_gather(listener.ticket());
    std::vector<harp::Dialer> dialers;
    for (std::size_t i = 0; i < kMany; ++i) {
      dialers.push_back(require(endpoint.dial(tickets[1 - fellowship.rank()])));
    }
    std::set<std::uint32_t> channels;
    for (std::size_t i = 0; i < kMany; ++i) {
      channels.insert(require(listener.accept(60 * kSecond)).channel);
      channels.insert(require(dialers[i].wait(60 * kSecond)).channel);
    }
    EXPECT_EQ(channels.size(), 2 * kMany);
    fellowship.barrier();
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
}

// As disconnecting each of them would: nobody receives what is sent on it.
TEST_P(Connections, end_with_the_last_of_an_endpoint_s_with_their_peer) {
  const auto statuses = run_processes({2, 60 * kSecond, {}}, [&](Fellowship& fellowship) {
    Endpoint endpoint = open_by(GetParam());
    if (fellowship.rank() == 0) {
      Listener listener = require(endpoint.listen());
      fellowship.all_gather(listener.ticket());
      const Connection accepted = require(listener.accept(30 * kSecond));
      greet(endpoint, accepted, 7, 8);
      fellowship.barrier();
      endpoint.disconnect(accepted.peer);
    } else {
      auto dialer = require(endpoint.dial(fellowship.all_gather("")[0]));
      const Connection here = require(dialer.wait(30 * kSecond));
      greet(endpoint, here, 8, 7);
      const int word = 1;
      std::vector<harp::Transfer> sent;
      for (int i = 0; i < 200; ++i) {  // more than may wait there
        sent.push_back(endpoint.send(here.peer, here.channel, &word, sizeof word));
      }
      EXPECT_EQ(sent.back().wait(100 * kMillisecond).status().code(), Code::kTimeout);
      fellowship.barrier();
      const auto done = sent.back().wait(20 * kSecond);
      EXPECT_TRUE(done.ok()) << done.status().message();
    }
    fellowship.barrier();
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
}

TEST_P(Connections, may_be_with_oneself) {
  const auto statuses = run_processes({1, 60 * kSecond, {}}, [&](Fellowship&) {
    Endpoint endpoint = open_by(GetParam());
    Listener listener = require(endpoint.listen());
    auto dialer = require(endpoint.dial(listener.ticket()));
    const Connection there = require(listener.accept(30 * kSecond));
    const Connection here = require(dialer.wait(30 * kSecond));
    EXPECT_EQ(there.channel, here.channel);
    const int out = 5;
    int in = 0;
    auto sent = endpoint.send(here.peer, here.channel, &out, sizeof out);
    EXPECT_TRUE(endpoint.receive(there.peer, there.channel, &in, sizeof in).wait().ok());
    EXPECT_EQ(in, out);
    EXPECT_TRUE(sent.wait().ok());
  });
  EXPECT_EQ(statuses, std::vector<int>{0});
}

// The side that sent may be done with it before the other one has received.
TEST_P(Connections, with_oneself_end_with_their_second_side) {
  const auto statuses = run_processes({1, 60 * kSecond, {}}, [&](Fellowship&) {
    Endpoint endpoint = open_by(GetParam());
    Listener listener = require(endpoint.listen());
    auto dialer = require(endpoint.dial(listener.ticket()));
    const Connection there = require(listener.accept(30 * kSecond));
    const Connection here = require(dialer.wait(30 * kSecond));
    const int out = 5;
    int in = 0;
    EXPECT_TRUE(endpoint.send(here.peer, here.channel, &out, sizeof out).wait().ok());
    endpoint.disconnect(here);
    const auto got = endpoint.receive(there.peer, there.channel, &in, sizeof in).wait(10 * kSecond);
    EXPECT_TRUE(got.ok()) << got.status().message();
    EXPECT_EQ(in, out);
    endpoint.disconnect(there);
  });
  EXPECT_EQ(statuses, std::vector<int>{0});
}

INSTANTIATE_TEST_SUITE_P(Transports, Connections, ::testing::Values("shm", "udp"),
                         [](const auto& instance) { return std::string(instance.param); });

// The port of the first place of a ticket, which docs/wire.md describes.
std::uint16_t port_in(const std::string& ticket) {
  std::uint16_t port = 0;
  std::memcpy(&port, ticket.data() + 40, sizeof port);
  return ntohs(port);
}

std::string with_checksum(std::string ticket) {
  const std::uint32_t checksum = taco::kernels::crc32c(0, ticket.data(), ticket.size() - 4);
  std::memcpy(ticket.data() + ticket.size() - 4, &checksum, sizeof checksum);
  return ticket;
}

// The ticket, but for a single place: by another port of this host.
std::string by_port(std::string ticket, std::uint16_t port) {
  const std::uint16_t places[] = {htons(port), 0};
  std::memcpy(ticket.data() + 40, &places[0], sizeof places[0]);
  std::memcpy(ticket.data() + 58, &places[1], sizeof places[1]);
  return with_checksum(std::move(ticket));
}

taco::OwnFd stranger_at(std::uint16_t port) {
  taco::OwnFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(port);
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&at), sizeof at), 0) << strerror(errno);
  return fd;
}

// A TCP port that is no listener's: who comes there waits until it is accepted.
class Port {
 public:
  Port() {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_ANY);
    socklen_t bytes = sizeof at;
    auto* const address = reinterpret_cast<sockaddr*>(&at);
    EXPECT_EQ(bind(socket_.get(), address, bytes), 0) << strerror(errno);
    EXPECT_EQ(listen(socket_.get(), 8), 0);
    EXPECT_EQ(getsockname(socket_.get(), address, &bytes), 0);
    number_ = ntohs(at.sin_port);
  }
  std::uint16_t number() const { return number_; }
  taco::OwnFd accept() {
    return taco::OwnFd(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  }

 private:
  taco::OwnFd socket_{socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  std::uint16_t number_ = 0;
};

TEST(Listener, is_not_kept_from_its_guests_by_strangers) {
  const auto statuses = run_processes({1, 60 * kSecond, {}}, [](Fellowship&) {
    Endpoint endpoint = open_by("shm");
    Listener listener = require(endpoint.listen());
    std::vector<taco::OwnFd> strangers;
    for (int i = 0; i < 200; ++i) {
      strangers.push_back(stranger_at(port_in(listener.ticket())));
      const std::string noise(static_cast<std::size_t>(i) * 20, static_cast<char>(i));
      (void)!send(strangers.back().get(), noise.data(), noise.size(), MSG_NOSIGNAL);
    }
    auto dialer = require(endpoint.dial(listener.ticket()));
    EXPECT_TRUE(dialer.wait(30 * kSecond).ok());
    EXPECT_TRUE(listener.accept(30 * kSecond).ok());
    EXPECT_EQ(listener.accept(0).status().code(), Code::kTimeout) << "nobody else was let in";
  });
  EXPECT_EQ(statuses, std::vector<int>{0});
}

// With everything right but the secret.
TEST(Listener, tells_a_dialer_that_its_ticket_is_not_its_own) {
  const auto statuses = run_processes({1, 60 * kSecond, {}}, [](Fellowship&) {
    Endpoint endpoint = open_by("shm");
    Listener listener = require(endpoint.listen());
    std::string ticket = listener.ticket();
    ticket[10] = static_cast<char>(ticket[10] + 1);
    auto dialer = require(endpoint.dial(with_checksum(ticket)));
    const auto refused = dialer.wait(30 * kSecond).status();
    EXPECT_EQ(refused.code(), Code::kRendezvous);
    EXPECT_NE(refused.message().find("has not given this ticket away"), std::string::npos)
        << refused.message();
    EXPECT_EQ(listener.accept(0).status().code(), Code::kTimeout);
  });
  EXPECT_EQ(statuses, std::vector<int>{0});
}

TEST(Dialer, says_what_is_wrong_with_a_ticket) {
  const auto statuses = run_processes({1, 60 * kSecond, {}}, [](Fellowship&) {
    Endpoint endpoint = open_by("shm");
    std::string ticket = require(endpoint.listen()).ticket();
    EXPECT_NE(endpoint.dial("").status().message().find("0 bytes instead of 64"),
              std::string::npos);
    EXPECT_EQ(endpoint.dial(std::string(64, 'x')).status().code(), Code::kInvalidArgument);
    std::string damaged = ticket;
    damaged[20] = static_cast<char>(damaged[20] + 1);
    EXPECT_NE(endpoint.dial(damaged).status().message().find("damaged"), std::string::npos);
    std::string later = ticket;
    later[4] = 9;
    EXPECT_EQ(endpoint.dial(later).status().code(), Code::kVersionMismatch);
    auto dialer = require(endpoint.dial(ticket));  // whose listener has gone
    const auto nobody = dialer.wait(30 * kSecond).status();
    EXPECT_EQ(nobody.code(), Code::kRendezvous);
    EXPECT_NE(nobody.message().find("no listener answers at"), std::string::npos)
        << nobody.message();
  });
  EXPECT_EQ(statuses, std::vector<int>{0});
}

// Somebody else has the port, and says nothing.
TEST(Dialer, gives_up_where_nobody_answers_and_when_it_is_no_more_wanted) {
  const auto statuses = run_processes({1, 60 * kSecond, {}}, [](Fellowship&) {
    Endpoint endpoint = open_by("shm");
    const Port silent;
    const std::string ticket = by_port(require(endpoint.listen()).ticket(), silent.number());
    const taco::Time before = taco::monotonic_now();
    {
      auto dialer = require(endpoint.dial(ticket));
      EXPECT_EQ(dialer.wait(20 * kMillisecond).status().code(), Code::kTimeout);
    }
    EXPECT_LT(taco::monotonic_now() - before, 4 * kSecond) << "its end waits for nobody";
  });
  EXPECT_EQ(statuses, std::vector<int>{0});
}

// Passes on what a dialer and a listener say, up to so many bytes of the listener's: the next of
// them, or who hangs up first, ends it.
void pass_on(taco::OwnFd dialer, taco::OwnFd listener, std::size_t of_listener) {
  std::vector<char> bytes(4096);
  for (;;) {
    pollfd both[] = {{dialer.get(), POLLIN, 0}, {listener.get(), POLLIN, 0}};
    if (poll(both, 2, 30'000) <= 0) return;
    if (both[0].revents != 0) {
      const ssize_t got = recv(dialer.get(), bytes.data(), bytes.size(), 0);
      if (got <= 0) return;
      (void)!send(listener.get(), bytes.data(), static_cast<std::size_t>(got), MSG_NOSIGNAL);
    }
    if (both[1].revents != 0) {
      if (of_listener == 0) return;
      const ssize_t got =
          recv(listener.get(), bytes.data(), std::min(bytes.size(), of_listener), 0);
      if (got <= 0) return;
      (void)!send(dialer.get(), bytes.data(), static_cast<std::size_t>(got), MSG_NOSIGNAL);
      of_listener -= static_cast<std::size_t>(got);
    }
  }
}

constexpr std::size_t kChallengeBytes = 16;

// The answer to the first call is lost on its way.
TEST(Listener, gives_one_channel_to_a_dialer_that_calls_twice) {
  const auto statuses = run_processes({1, 60 * kSecond, {}}, [](Fellowship&) {
    Endpoint endpoint = open_by("shm");
    Listener listener = require(endpoint.listen());
    Port between;
    std::thread wire([&] {
      for (const std::size_t most : {kChallengeBytes, std::size_t{1} << 20}) {
        pass_on(between.accept(), stranger_at(port_in(listener.ticket())), most);
      }
    });
    auto dialer = require(endpoint.dial(by_port(listener.ticket(), between.number())));
    const Connection here = require(dialer.wait(30 * kSecond));
    EXPECT_EQ(require(listener.accept(30 * kSecond)).channel, here.channel);
    wire.join();
    EXPECT_EQ(listener.accept(0).status().code(), Code::kTimeout) << "a ghost";
  });
  EXPECT_EQ(statuses, std::vector<int>{0});
}

// It was answered, and nobody took its connection: it has ended before, or just then.
TEST(Listener, gives_no_connection_of_a_dialer_that_has_ended_for_good) {
  const auto statuses = run_processes({1, 60 * kSecond, {}}, [](Fellowship&) {
    Endpoint endpoint = open_by("shm");
    Listener listener = require(endpoint.listen());
    for (const bool hears : {false, true}) {
      Port between;
      std::optional<harp::Dialer> dialer(
          require(endpoint.dial(by_port(listener.ticket(), between.number()))));
      std::thread wire([&] {
        pass_on(between.accept(), stranger_at(port_in(listener.ticket())),
                hears ? std::size_t{1} << 20 : kChallengeBytes);
      });
      usleep(200'000);
      dialer.reset();
      wire.join();
    }
    auto dialer = require(endpoint.dial(listener.ticket()));
    const Connection here = require(dialer.wait(30 * kSecond));
    EXPECT_EQ(require(listener.accept(30 * kSecond)).channel, here.channel);
    EXPECT_EQ(listener.accept(0).status().code(), Code::kTimeout) << "a ghost";
  });
  EXPECT_EQ(statuses, std::vector<int>{0});
}

std::string heard_from(const taco::OwnFd& socket) {
  std::string bytes(4096, '\0');
  const ssize_t got = recv(socket.get(), bytes.data(), bytes.size(), 0);
  EXPECT_GT(got, 0);
  bytes.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  return bytes;
}

void say(const taco::OwnFd& socket, const std::string& bytes) {
  EXPECT_EQ(send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
}

// Another process in the listener's place has two dialers of a ticket prove themselves to the same
// challenge: by one key, the same address of theirs would make the same bytes.
TEST(Dialer, seals_each_call_by_a_key_of_its_own) {
  const auto statuses = run_processes({1, 60 * kSecond, {}}, [](Fellowship&) {
    Endpoint endpoint = open_by("shm");
    Port false_one;
    const std::string ticket = by_port(require(endpoint.listen()).ticket(), false_one.number());
    std::string addresses[2];
    for (std::string& address : addresses) {
      auto dialer = require(endpoint.dial(ticket));
      const taco::OwnFd guest = false_one.accept();
      say(guest, std::string(kChallengeBytes, 'c'));
      address = heard_from(guest).substr(kChallengeBytes + 2 + 16, 40);
    }
    EXPECT_NE(addresses[0], addresses[1]);
  });
  EXPECT_EQ(statuses, std::vector<int>{0});
}

// The listener's process is stopped while its guests say what they have to, one after the other;
// one of them gives up meanwhile.
TEST(Listener, hears_its_guests_in_their_order_but_for_those_that_have_left) {
  constexpr std::size_t kGuests = 6, kLeaves = 2;
  const auto statuses = run_processes({2, 60 * kSecond, {}}, [&](Fellowship& fellowship) {
    Endpoint endpoint = open_by("shm");
    if (fellowship.rank() == 0) {
      Listener listener = require(endpoint.listen());
      fellowship.all_gather(listener.ticket());
      fellowship.all_gather(std::to_string(getpid()));
      for (std::size_t i = 1; i < kGuests; ++i) require(listener.accept(30 * kSecond));
      EXPECT_EQ(listener.accept(0).status().code(), Code::kTimeout);
      fellowship.barrier();
      return;
    }
    const std::string ticket = fellowship.all_gather("")[0];
    const pid_t listeners = std::stoi(fellowship.all_gather("")[0]);
    Port between;
    std::vector<taco::OwnFd> here, there;
    std::vector<std::string> challenges;
    std::vector<std::optional<harp::Dialer>> dialers;
    for (std::size_t i = 0; i < kGuests; ++i) {
      there.push_back(stranger_at(port_in(ticket)));
      challenges.push_back(heard_from(there[i]));
      dialers.emplace_back(require(endpoint.dial(by_port(ticket, between.number()))));
      here.push_back(between.accept());
    }
    EXPECT_EQ(kill(listeners, SIGSTOP), 0);
    usleep(50'000);
    for (std::size_t i = 0; i < kGuests; ++i) {
      say(here[i], challenges[i]);
      say(there[i], heard_from(here[i]));
    }
    dialers[kLeaves].reset();
    there[kLeaves].reset();
    EXPECT_EQ(kill(listeners, SIGCONT), 0);
    std::vector<std::uint32_t> channels;
    for (std::size_t i = 0; i < kGuests; ++i) {
      if (i == kLeaves) continue;
      std::thread wire(
          [&] { pass_on(std::move(here[i]), std::move(there[i]), std::size_t{1} << 20); });
      channels.push_back(require(dialers[i]->wait(30 * kSecond)).channel);
      wire.join();
    }
    EXPECT_TRUE(std::ranges::is_sorted(channels)) << "in the order in which they were given";
    fellowship.barrier();
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
}

// How many of so many files that this process opens now are closed by `body`.
template <class Body>
int closed_by(const Body& body) {
  std::vector<int> files(80);
  for (int& each : files) each = open("/dev/null", O_WRONLY | O_CLOEXEC);
  body();
  return static_cast<int>(
      std::ranges::count_if(files, [](int each) { return fcntl(each, F_GETFD) < 0; }));
}

// The wait status of a child, which is killed if it takes too long.
int status_of(pid_t child) {
  const taco::Time limit = taco::monotonic_now() + 20 * kSecond;
  int status = 0;
  while (waitpid(child, &status, WNOHANG) != child) {
    if (taco::monotonic_now() > limit) kill(child, SIGKILL);
    usleep(1000);
  }
  return status;
}

// Threads of the parent's wait for both, in its memory as the child has it.
TEST(ForkedChildren, end_what_their_parent_has_opened_and_touch_nothing) {
  const auto statuses = run_processes({1, 60 * kSecond, {}}, [](Fellowship&) {
    std::optional<Endpoint> endpoint(open_by("shm"));
    std::optional<Listener> listener(require(endpoint->listen()));
    std::optional<Port> silent(std::in_place);
    const std::string ticket = listener->ticket();
    std::optional<harp::Dialer> dialer(require(endpoint->dial(by_port(ticket, silent->number()))));
    std::thread accepts([&] { EXPECT_TRUE(listener->accept(30 * kSecond).ok()); });
    std::thread waits(
        [&] { EXPECT_EQ(dialer->wait(40 * kSecond).status().code(), Code::kRendezvous); });
    usleep(100'000);
    const pid_t child = fork();
    if (child == 0) {
      _exit(closed_by([&] {
        silent.reset();
        dialer.reset();
        listener.reset();
        endpoint.reset();
      }));
    }
    const int status = status_of(child);
    EXPECT_FALSE(WIFSIGNALED(status)) << "it hangs";
    EXPECT_EQ(WEXITSTATUS(status), 0) << "so many of the child's own files were closed";
    silent.reset();
    auto other = require(endpoint->dial(ticket));
    EXPECT_TRUE(other.wait(30 * kSecond).ok()) << "the parent's go on";
    accepts.join();
    waits.join();
  });
  EXPECT_EQ(statuses, std::vector<int>{0});
}

}  // namespace
