// harp.h as a program sees it: through the library, by that header alone.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "harp/harp.h"
#include "support/processes.h"
#include "support/temporary_directory.h"

namespace {

using harp::Code;
using harp::Endpoint;
using harp::Status;
using ::taco::kMillisecond;
using ::taco::kSecond;
using ::taco::testing::Fellowship;
using ::taco::testing::run_processes;

constexpr std::uint32_t kChannel = 5;

Endpoint open_by(const char* transport) {
  auto endpoint = Endpoint::open({.transport = transport});
  EXPECT_TRUE(endpoint.ok()) << endpoint.status().message();
  return std::move(endpoint).value();
}

harp::Peer connect_to_other(Fellowship& fellowship, Endpoint& endpoint) {
  const auto addresses = fellowship.all_gather(endpoint.address());
  const auto peer = endpoint.connect(addresses[1 - fellowship.rank()]);
  EXPECT_TRUE(peer.ok()) << peer.status().message();
  return peer.value();
}

// Two processes, each with an endpoint that knows the other.
template <class Body>
void between_two(const char* transport, const Body& body) {
  const auto statuses = run_processes({2, 60 * kSecond, {}}, [&](Fellowship& fellowship) {
    Endpoint endpoint = open_by(transport);
    const harp::Peer peer = connect_to_other(fellowship, endpoint);
    body(fellowship, endpoint, peer);
    fellowship.barrier();
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
}

std::vector<char> text(std::size_t bytes, int seed) {
  std::vector<char> made(bytes);
  for (std::size_t i = 0; i < bytes; ++i) made[i] = static_cast<char>(i * 31 + seed);
  return made;
}

class Endpoints : public ::testing::TestWithParam<const char*> {};

TEST_P(Endpoints, exchange_messages_of_every_size_in_the_order_of_their_channel) {
  between_two(GetParam(), [](Fellowship&, Endpoint& endpoint, harp::Peer peer) {
    const std::size_t sizes[] = {0, 1, 1000, 5'000'000, 16, 70'000};
    std::vector<std::vector<char>> out, in;
    std::vector<harp::Transfer> transfers;
    for (const std::size_t bytes : sizes) out.push_back(text(bytes, 3)), in.emplace_back(bytes + 8);
    for (std::size_t i = 0; i < out.size(); ++i) {
      transfers.push_back(endpoint.send(peer, kChannel, out[i].data(), out[i].size()));
    }
    for (std::size_t i = 0; i < in.size(); ++i) {
      const auto bytes = endpoint.receive(peer, kChannel, in[i].data(), in[i].size()).wait();
      ASSERT_TRUE(bytes.ok()) << bytes.status().message();
      ASSERT_EQ(bytes.value(), sizes[i]);
      EXPECT_EQ(std::memcmp(in[i].data(), out[i].data(), sizes[i]), 0);
    }
    for (auto& each : transfers) EXPECT_TRUE(each.wait().ok());
  });
}

TEST_P(Endpoints, end_what_is_under_way_as_they_close_though_another_goes_on) {
  between_two(GetParam(), [](Fellowship& fellowship, Endpoint& endpoint, harp::Peer peer) {
    Endpoint second = open_by(GetParam());
    const harp::Peer same = connect_to_other(fellowship, second);
    int never = 0, in = 0;
    const int out = 9;
    auto blocked = second.receive(same, 1, &never, sizeof never);
    second.close();
    EXPECT_EQ(blocked.wait(30 * kSecond).status().code(), Code::kAborted);
    EXPECT_EQ(second.send(same, 1, &out, sizeof out).wait().status().code(), Code::kAborted);
    auto sent = endpoint.send(peer, 2, &out, sizeof out);
    EXPECT_TRUE(endpoint.receive(peer, 2, &in, sizeof in).wait().ok());
    EXPECT_EQ(in, 9);
    EXPECT_TRUE(sent.wait().ok());
  });
}

TEST(EndpointsOfOneProcess, have_each_the_transport_that_they_ask_for) {
  const auto statuses = run_processes({1, 60 * kSecond, {}}, [](Fellowship&) {
    const Endpoint shm = open_by("shm"), udp = open_by("udp"), again = open_by("shm");
    EXPECT_EQ(shm.transport(), "shm");
    EXPECT_EQ(udp.transport().find("shm"), std::string::npos) << udp.transport();
    EXPECT_TRUE(shm.interfaces().empty());
    std::string named;
    for (const harp::Interface& each : udp.interfaces()) {
      named += (named.empty() ? "" : ", ") + each.name;
    }
    EXPECT_EQ(udp.transport(), "udp(" + named + ")");
    EXPECT_NE(shm.address(), udp.address());
    EXPECT_EQ(shm.address(), again.address()) << "one engine serves both";
  });
  EXPECT_EQ(statuses, std::vector<int>{0});
}

TEST_P(Endpoints, do_not_let_one_channel_wait_for_another) {
  between_two(GetParam(), [](Fellowship&, Endpoint& endpoint, harp::Peer peer) {
    int never = 0, in = 0;
    const int out = 9;
    auto blocked = endpoint.receive(peer, 1, &never, sizeof never);
    auto sent = endpoint.send(peer, 2, &out, sizeof out);
    EXPECT_TRUE(endpoint.receive(peer, 2, &in, sizeof in).wait().ok());
    EXPECT_EQ(in, 9);
    EXPECT_TRUE(sent.wait().ok());
    EXPECT_FALSE(blocked.done());
    EXPECT_EQ(blocked.wait(kMillisecond).status().code(), Code::kTimeout);
  });
}

TEST_P(Endpoints, refuse_a_message_that_is_too_long_and_write_nothing) {
  between_two(GetParam(), [](Fellowship&, Endpoint& endpoint, harp::Peer peer) {
    const std::vector<char> out = text(100, 7);
    std::vector<char> in(99, 'n');
    auto sent = endpoint.send(peer, kChannel, out.data(), out.size());
    EXPECT_EQ(endpoint.receive(peer, kChannel, in.data(), in.size()).wait().status().code(),
              Code::kMismatch);
    EXPECT_EQ(in, std::vector<char>(99, 'n'));
    static_cast<void>(sent.wait(kSecond));
  });
}

TEST_P(Endpoints, tell_that_a_process_is_gone) {
  const auto statuses = run_processes({2, 60 * kSecond, {}}, [&](Fellowship& fellowship) {
    Endpoint endpoint = open_by(GetParam());
    const harp::Peer peer = connect_to_other(fellowship, endpoint);
    int in = 0;
    if (fellowship.rank() == 0) {
      EXPECT_TRUE(endpoint.receive(peer, kChannel, &in, sizeof in).wait().ok());
      fellowship.barrier();
      const auto lost = endpoint.receive(peer, kChannel, &in, sizeof in).wait();
      EXPECT_EQ(lost.status().code(), Code::kPeerLost) << lost.status().message();
    } else {
      EXPECT_TRUE(endpoint.send(peer, kChannel, &in, sizeof in).wait().ok());
      fellowship.barrier();
      _exit(0);
    }
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
}

// Two endpoints of a process are connected to the same peer, which is forgotten once it is gone and
// neither needs it.
TEST_P(Endpoints, disconnect_once_whether_by_closing_or_by_asking) {
  const auto statuses = run_processes({2, 60 * kSecond, {}}, [&](Fellowship& fellowship) {
    Endpoint endpoint = open_by(GetParam()), second = open_by(GetParam());
    const harp::Peer peer = connect_to_other(fellowship, endpoint),
                     same = connect_to_other(fellowship, second);
    int word = 0;
    if (fellowship.rank() == 1) {
      EXPECT_TRUE(endpoint.send(peer, kChannel, &word, sizeof word).wait().ok());
      fellowship.barrier();
      _exit(0);
    }
    EXPECT_TRUE(endpoint.receive(peer, kChannel, &word, sizeof word).wait().ok());
    fellowship.barrier();
    const auto lost = endpoint.receive(peer, kChannel, &word, sizeof word).wait();
    EXPECT_EQ(lost.status().code(), Code::kPeerLost) << lost.status().message();
    const std::string known = endpoint.describe(peer);
    second.close();
    second.disconnect(same);
    // A peer whom nobody needs would be forgotten after some 10 ms.
    for (const taco::Time from = taco::monotonic_now();
         taco::monotonic_now() - from < 200 * kMillisecond; usleep(1000)) {
      ASSERT_EQ(endpoint.describe(peer), known);
    }
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
}

// Where the Stack is kept by somebody else, messages go on being numbered; else it is a new one.
TEST_P(Endpoints, may_be_closed_and_opened_again) {
  const auto statuses = run_processes({2, 60 * kSecond, {}}, [&](Fellowship& fellowship) {
    for (int i = 0; i < 100; ++i) {
      Endpoint endpoint = open_by(GetParam());
      const harp::Peer peer = connect_to_other(fellowship, endpoint);
      int in = 0;
      auto sent = endpoint.send(peer, kChannel, &i, sizeof i);
      EXPECT_TRUE(endpoint.receive(peer, kChannel, &in, sizeof in).wait().ok());
      EXPECT_EQ(in, i);
      EXPECT_TRUE(sent.wait().ok());
      fellowship.barrier();
      endpoint.close();
      EXPECT_EQ(endpoint.send(peer, kChannel, &i, sizeof i).wait().status().code(), Code::kAborted);
      fellowship.barrier();
    }
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
}

// More than may wait at a receiver: a sender whose messages nobody receives does not get on, until
// the channel has ended at the other side.
std::vector<harp::Transfer> send_too_many(Endpoint& endpoint, harp::Peer peer,
                                          std::uint32_t channel) {
  static const int kWord = 7;
  std::vector<harp::Transfer> sent;
  for (int i = 0; i < 200; ++i) {
    sent.push_back(endpoint.send(peer, channel, &kWord, sizeof kWord));
  }
  EXPECT_EQ(sent.back().wait(100 * kMillisecond).status().code(), Code::kTimeout);
  return sent;
}

TEST_P(Endpoints, drop_what_nobody_has_received_on_a_channel_that_ends) {
  between_two(GetParam(), [](Fellowship& fellowship, Endpoint& endpoint, harp::Peer peer) {
    std::vector<harp::Transfer> sent;
    if (fellowship.rank() == 0) sent = send_too_many(endpoint, peer, kChannel);
    fellowship.barrier();
    if (fellowship.rank() == 1) {
      EXPECT_TRUE(endpoint.end_channel(peer, kChannel).ok());
      EXPECT_TRUE(endpoint.end_channel(peer, kChannel).ok()) << "idempotent";
    }
    for (harp::Transfer& each : sent) {
      const auto done = each.wait(20 * kSecond);
      ASSERT_TRUE(done.ok()) << done.status().message();
    }
    fellowship.barrier();
  });
}

TEST_P(Endpoints, refuse_transfers_on_a_channel_that_has_ended_and_no_others) {
  between_two(GetParam(), [](Fellowship& fellowship, Endpoint& endpoint, harp::Peer peer) {
    int out = fellowship.rank(), in = -1;
    auto receive = endpoint.receive(peer, kChannel, &in, sizeof in);
    const Status early = endpoint.end_channel(peer, kChannel);
    EXPECT_EQ(early.code(), Code::kInvalidArgument) << "a receive is under way on it";
    fellowship.barrier();
    EXPECT_TRUE(endpoint.send(peer, kChannel, &out, sizeof out).wait().ok());
    EXPECT_TRUE(receive.wait().ok());
    EXPECT_EQ(in, 1 - out);
    const Status given = endpoint.end_channel(peer, harp::kFirstGivenChannel);
    EXPECT_EQ(given.code(), Code::kInvalidArgument) << "disconnect() ends it";
    EXPECT_TRUE(endpoint.end_channel(peer, kChannel).ok());
    fellowship.barrier();
    const auto refused = endpoint.send(peer, kChannel, &out, sizeof out).wait();
    EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
    EXPECT_NE(refused.status().message().find("channel 5"), std::string::npos)
        << refused.status().message();
    EXPECT_EQ(endpoint.receive(peer, kChannel, &in, sizeof in).wait().status().code(),
              Code::kInvalidArgument);
    auto other = endpoint.receive(peer, kChannel + 1, &in, sizeof in);
    EXPECT_TRUE(endpoint.send(peer, kChannel + 1, &out, sizeof out).wait().ok());
    EXPECT_TRUE(other.wait(20 * kSecond).ok());
  });
}

// Others may use a channel of the same number.
TEST_P(Endpoints, end_a_channel_with_one_peer_alone) {
  const auto statuses = run_processes({3, 60 * kSecond, {}}, [&](Fellowship& fellowship) {
    Endpoint endpoint = open_by(GetParam());
    const auto addresses = fellowship.all_gather(endpoint.address());
    std::vector<harp::Peer> peers;
    for (const std::string& each : addresses) peers.push_back(endpoint.connect(each).value());
    const int rank = fellowship.rank();
    int word = 3;
    if (rank == 0) EXPECT_TRUE(endpoint.end_channel(peers[1], kChannel).ok());
    fellowship.barrier();
    if (rank == 2) EXPECT_TRUE(endpoint.send(peers[0], kChannel, &word, sizeof word).wait().ok());
    fellowship.barrier();
    if (rank == 0) {
      const auto got = endpoint.receive(peers[2], kChannel, &word, sizeof word).wait(20 * kSecond);
      EXPECT_TRUE(got.ok()) << got.status().message();
    }
    fellowship.barrier();
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0, 0}));
}

TEST_P(Endpoints, keep_registered_memory_until_their_transfers_are_done) {
  between_two(GetParam(), [](Fellowship& fellowship, Endpoint& endpoint, harp::Peer peer) {
    std::vector<char> memory(100'000);
    auto registered = harp::Registration::of(memory.data(), memory.size());
    ASSERT_TRUE(registered.ok()) << registered.status().message();
    auto incoming = endpoint.receive(peer, kChannel, memory.data() + 5, 80'000);
    const Status used = registered.value().end();
    EXPECT_EQ(used.code(), Code::kInvalidArgument);
    EXPECT_NE(used.message().find("transfers that are not done use it"), std::string::npos);
    fellowship.barrier();
    const std::vector<char> out = text(80'000, 4);
    auto sent = endpoint.send(peer, kChannel, out.data(), out.size());
    EXPECT_TRUE(incoming.wait().ok());
    EXPECT_TRUE(sent.wait().ok());
    EXPECT_EQ(std::memcmp(memory.data() + 5, out.data(), out.size()), 0);
    EXPECT_TRUE(registered.value().end().ok());
  });
}

// A thread of the receiver's reads lines of 128 bytes while they come: the last word of one tells
// it that all of it is there. (That is a race, and meant to be: not for a sanitizer of threads.)
#if !defined(__SANITIZE_THREAD__)
TEST_P(Endpoints, write_what_is_read_meanwhile_line_by_line) {
  between_two(GetParam(), [](Fellowship&, Endpoint& endpoint, harp::Peer peer) {
    constexpr std::size_t kLine = 16, kLines = 5'000, kRounds = 20;
    const auto value = [](std::size_t round, std::size_t word) {
      return word * kRounds + round + 1;
    };
    const taco::Time limit = taco::monotonic_now() + 30 * kSecond;
    std::vector<std::uint64_t> out(kLine * kLines), in(kLine * kLines);
    for (std::size_t round = 0; round < kRounds; ++round) {
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = value(round, i);
      auto incoming =
          endpoint.receive(peer, 1, in.data(), in.size() * sizeof in[0], harp::Read::kMeanwhile);
      auto sent = endpoint.send(peer, 1, out.data(), out.size() * sizeof out[0]);
      std::thread reader([&] {
        for (std::size_t at = 0; at < in.size(); at += kLine) {
          const std::size_t last = at + kLine - 1;
          while (__atomic_load_n(&in[last], __ATOMIC_ACQUIRE) != value(round, last)) {
            ASSERT_LT(taco::monotonic_now(), limit) << last;
            std::this_thread::yield();
          }
          for (std::size_t i = at; i < last; ++i) {
            ASSERT_EQ(__atomic_load_n(&in[i], __ATOMIC_RELAXED), value(round, i)) << i;
          }
        }
      });
      EXPECT_TRUE(incoming.wait().ok() && sent.wait().ok());
      reader.join();
    }
    const std::size_t bytes = sizeof in[0];
    auto* const odd = reinterpret_cast<char*>(in.data()) + 4;
    const auto refused = endpoint.receive(peer, 1, odd, bytes, harp::Read::kMeanwhile).wait();
    EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
  });
}
#endif

// Both look and never wait; and one that stops to look gets what has come all the same.
TEST_P(Endpoints, carry_messages_to_those_that_poll) {
  between_two(GetParam(), [](Fellowship&, Endpoint& endpoint, harp::Peer peer) {
    const auto polled_until_done = [&](const harp::Transfer& transfer) {
      const taco::Time limit = taco::monotonic_now() + 30 * kSecond;
      while (!transfer.done() && taco::monotonic_now() < limit) endpoint.poll();
      return transfer.done();
    };
    for (int i = 0; i < 300; ++i) {
      int in = -1;
      auto sent = endpoint.send(peer, 1, &i, sizeof i);
      auto incoming = endpoint.receive(peer, 1, &in, sizeof in);
      ASSERT_TRUE(polled_until_done(incoming) && polled_until_done(sent)) << i;
      EXPECT_EQ(in, i);
    }
    int last = -1;
    const int out = 77;
    auto sent = endpoint.send(peer, 2, &out, sizeof out);
    auto incoming = endpoint.receive(peer, 2, &last, sizeof last);
    endpoint.poll();
    const taco::Time limit = taco::monotonic_now() + 30 * kSecond;
    while (!(incoming.done() && sent.done()) && taco::monotonic_now() < limit) usleep(1000);
    EXPECT_EQ(last, out);
  });
}

TEST_P(Endpoints, go_by_each_engine_of_their_process) {
  const auto statuses = run_processes({2, 60 * kSecond, {}}, [&](Fellowship& fellowship) {
    setenv("TACO_HARP_ENGINES", "2", 1);
    EXPECT_EQ(harp::engines().value(), 2);
    std::vector<Endpoint> endpoints;
    std::vector<harp::Peer> peers;
    for (int engine : {0, 1}) {
      auto opened = Endpoint::open({.transport = GetParam(), .engine = engine});
      ASSERT_TRUE(opened.ok()) << opened.status().message();
      endpoints.push_back(std::move(opened).value());
      peers.push_back(connect_to_other(fellowship, endpoints.back()));
    }
    EXPECT_NE(endpoints[0].address(), endpoints[1].address());
    const auto out = text(300'000, static_cast<int>(fellowship.rank()));
    std::vector<std::vector<char>> in(2, std::vector<char>(out.size()));
    std::vector<harp::Transfer> transfers;
    for (std::size_t i : {0, 1}) {
      transfers.push_back(endpoints[i].send(peers[i], kChannel, out.data(), out.size()));
      transfers.push_back(endpoints[i].receive(peers[i], kChannel, in[i].data(), in[i].size()));
    }
    for (harp::Transfer& transfer : transfers) EXPECT_TRUE(transfer.wait().ok());
    for (const auto& one : in)
      EXPECT_EQ(one, text(out.size(), 1 - static_cast<int>(fellowship.rank())));
    const auto beyond = Endpoint::open({.transport = GetParam(), .engine = 2});
    EXPECT_EQ(beyond.status().code(), Code::kInvalidArgument);
    EXPECT_NE(beyond.status().message().find("EndpointOptions::engine is 2"), std::string::npos);
    fellowship.barrier();
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
}

INSTANTIATE_TEST_SUITE_P(Transports, Endpoints, ::testing::Values("shm", "udp"),
                         [](const auto& instance) { return std::string(instance.param); });

TEST(Endpoint, says_what_is_wrong_with_options_and_addresses) {
  const auto statuses = run_processes({1, 60 * kSecond, {}}, [](Fellowship&) {
    const auto transport = Endpoint::open({.transport = "rdma"}).status();
    EXPECT_NE(transport.message().find("\"rdma\": expected auto, shm or udp"), std::string::npos);
    const auto driver = Endpoint::open({.driver = "pigeon"}).status();
    EXPECT_NE(driver.message().find("pigeon"), std::string::npos) << driver.message();
    Endpoint endpoint = open_by("auto");
    EXPECT_EQ(endpoint.connect("").status().code(), Code::kInvalidArgument);
    EXPECT_EQ(endpoint.connect("nonsense").status().code(), Code::kInvalidArgument);
    const auto own = endpoint.connect(endpoint.address());
    ASSERT_TRUE(own.ok());
    const auto sent = endpoint.send(own.value(), 1, nullptr, harp::kMaxMessageBytes + 1).wait();
    EXPECT_EQ(sent.status().code(), Code::kInvalidArgument);
  });
  EXPECT_EQ(statuses, std::vector<int>{0});
}

// Its address is in a file before the other one looks, whoever comes first.
TEST(Endpoint, meets_another_by_two_files) {
  const ::taco::testing::TemporaryDirectory folder;
  const std::string files[] = {folder.path() + "/a", folder.path() + "/b"};
  const auto statuses = run_processes({2, 60 * kSecond, {}}, [&](Fellowship& fellowship) {
    const int me = fellowship.rank();
    Endpoint endpoint = open_by("auto");
    const auto peer = endpoint.meet(files[me], files[1 - me]);
    ASSERT_TRUE(peer.ok()) << peer.status().message();
    struct stat file {};
    ASSERT_EQ(stat(files[me].c_str(), &file), 0);
    EXPECT_EQ(file.st_mode & 0777, 0600u) << "it holds a secret";
    int in = 0;
    auto sent = endpoint.send(peer.value(), kChannel, &me, sizeof me);
    EXPECT_TRUE(endpoint.receive(peer.value(), kChannel, &in, sizeof in).wait().ok());
    EXPECT_EQ(in, 1 - me);
    EXPECT_TRUE(sent.wait().ok());
    const Status late = endpoint.meet(files[me], files[me] + ".never", kMillisecond).status();
    EXPECT_EQ(late.code(), Code::kRendezvous);
    EXPECT_NE(late.message().find("did not come: there is no " + files[me] + ".never"),
              std::string::npos);
    const Status nowhere = endpoint.meet(folder.path() + "/no/where", files[me]).status();
    EXPECT_NE(nowhere.message().find("/no/where cannot be written: No such file"),
              std::string::npos)
        << nowhere.message();
    fellowship.barrier();
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
}

TEST(Registration, refuses_what_is_no_memory_or_is_registered_already) {
  using harp::Registration;
  std::vector<char> memory(100'000);
  const auto refusal = [](void* data, std::size_t bytes) {
    const Status status = Registration::of(data, bytes).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    return status.message();
  };
  EXPECT_NE(refusal(nullptr, 10).find("there is none"), std::string::npos);
  EXPECT_NE(refusal(memory.data(), 0).find("there is none"), std::string::npos);
  EXPECT_NE(refusal(memory.data(), SIZE_MAX).find("not all of it is memory"), std::string::npos);
  auto middle = Registration::of(memory.data() + 20'000, 20'000);
  ASSERT_TRUE(middle.ok()) << middle.status().message();
  for (const auto& [begin, bytes] : {std::pair{20'000, 20'000}, std::pair{0, 20'001},
                                     std::pair{39'999, 1}, std::pair{0, 100'000}}) {
    EXPECT_NE(refusal(memory.data() + begin, bytes).find("registered already"), std::string::npos)
        << begin;
  }
  EXPECT_TRUE(Registration::of(memory.data(), 20'000).ok());
  EXPECT_TRUE(Registration::of(memory.data() + 40'000, 60'000).ok());
  EXPECT_TRUE(middle.value().end().ok());
  EXPECT_TRUE(middle.value().end().ok()) << "idempotent";
  EXPECT_TRUE(Registration::of(memory.data(), 100'000).ok());
}

// The child's transfers keep what the child has registered, and its parent's end changes nothing.
TEST(Registration, of_a_parent_is_none_in_a_forked_child) {
  std::vector<char> memory(100'000);
  std::optional<harp::Registration> parents(
      harp::Registration::of(memory.data(), memory.size()).value());
  const pid_t child = fork();
  if (child == 0) {
    const auto own = harp::Registration::of(memory.data(), memory.size());
    if (!own.ok() || !parents->end().ok()) _exit(1);
    parents.reset();
    _exit(harp::Registration::of(memory.data(), 1).ok() ? 2 : 0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_TRUE(parents->end().ok());
}

void* map(std::size_t bytes, int protection) {
  void* const made = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT_NE(made, MAP_FAILED);
  madvise(made, bytes, MADV_NOHUGEPAGE);
  return made;
}

long page_faults() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return used.ru_minflt;
}

// As a receive would write it.
TEST(Registration, brings_in_pages_to_be_written) {
  constexpr std::size_t kPages = 4096, kBytes = kPages * 4096;
  void* const memory = map(kBytes, PROT_READ | PROT_WRITE);
  const auto registered = harp::Registration::of(memory, kBytes);
  ASSERT_TRUE(registered.ok()) << registered.status().message();
  const long before = page_faults();
  std::memset(memory, 1, kBytes);
  EXPECT_LT(page_faults() - before, static_cast<long>(kPages / 10));
  munmap(memory, kBytes);
}

TEST(Registration, takes_memory_that_may_only_be_read) {
  void* const memory = map(8192, PROT_READ);
  const auto registered = harp::Registration::of(memory, 8192);
  EXPECT_TRUE(registered.ok()) << registered.status().message();
  munmap(memory, 8192);
}

TEST(Registration, names_memory_that_is_not_there) {
  void* const gone = mmap(nullptr, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(gone, MAP_FAILED);
  ASSERT_EQ(munmap(gone, 8192), 0);
  EXPECT_NE(harp::Registration::of(gone, 8192).status().message().find("not all of it is memory"),
            std::string::npos);
}

TEST(Memory, is_there_from_the_start) {
  auto memory = harp::Memory::allocate(std::size_t{3} << 20);
  ASSERT_TRUE(memory.ok()) << memory.status().message();
  std::vector<unsigned char> present(memory.value().size() / 4096);
  ASSERT_EQ(mincore(memory.value().data(), memory.value().size(), present.data()), 0);
  EXPECT_EQ(std::count(present.begin(), present.end(), 0), 0);
}

TEST(Memory, is_allocated_in_whole_pages_or_refused) {
  auto memory = harp::Memory::allocate(5000);
  ASSERT_TRUE(memory.ok()) << memory.status().message();
  EXPECT_GE(memory.value().size(), 5000u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.value().data()) % 4096, 0u);
  std::memset(memory.value().data(), 1, memory.value().size());
  EXPECT_EQ(harp::Memory::allocate(std::size_t{1} << 60).status().code(), Code::kResource);
}

}  // namespace
