// Deaths that another process covers up by taking the dead one's port, and resets that somebody
// else has made. Whole Stacks over real sockets.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "harp/address.h"
#include "harp/engine/stack.h"
#include "harp/session/wire.h"
#include "harp/tools/exchange.h"
#include "support/processes.h"
#include "support/relay.h"
#include "support/stack_world.h"

namespace taco::harp {
namespace {

using ::taco::testing::Fellowship;
using ::taco::testing::NoteTaker;
using ::taco::testing::pattern;
using ::taco::testing::Relay;
using ::taco::testing::run_processes;

constexpr int kSurvivor = 0, kVictim = 1, kThird = 2;

std::shared_ptr<Stack> udp_stack() {
  StackOptions options;
  options.transport = StackOptions::Force::kUdp;
  auto made = Stack::acquire(options);
  EXPECT_TRUE(made.ok()) << made.status().message();
  return made.ok() ? made.value() : nullptr;
}

std::uint16_t port_of_stack(const Stack& stack) {
  return port_of(decode(stack.address()).value().paths.front().endpoint);
}

std::uint16_t free_port() {
  const int descriptor = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t length = sizeof address;
  EXPECT_EQ(bind(descriptor, reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length), 0);
  close(descriptor);
  return ntohs(address.sin_port);
}

// Each hears the other once.
Status greet_each_other(Stack& stack, PeerId peer) {
  Exchange exchange(stack);
  char there = 'x', here = 0;
  exchange.send(peer, {1, 0}, &there, 1);
  exchange.recv(peer, {1, 0}, Sink::place(&here), 1);
  return exchange.run(10 * kSecond);
}

void live_until_killed(Fellowship& fellowship) {
  const auto stack = udp_stack();
  const auto addresses = fellowship.all_gather(stack->address());
  const auto peer = stack->add_peer(addresses[kSurvivor]);
  fellowship.all_gather(std::to_string(getpid()));
  EXPECT_TRUE(greet_each_other(*stack, peer.value()).ok());
  fellowship.barrier();
  for (;;) pause();
}

// A process that is started again on the port of the dead one.
void inherit_the_port(Fellowship& fellowship, std::uint16_t port) {
  for (int i = 0; i < 2; ++i) fellowship.barrier();
  fellowship.barrier();
  fellowship.barrier();  // killed
  std::shared_ptr<Stack> stack;
  const Time deadline = monotonic_now() + 10 * kSecond;
  do {
    stack.reset();
    stack = udp_stack();
  } while (port_of_stack(*stack) != port && monotonic_now() < deadline);
  ASSERT_EQ(port_of_stack(*stack), port);
  fellowship.barrier();
  fellowship.barrier();
}

void miss_the_victim(Fellowship& fellowship, bool send) {
  NoteTaker notes;
  const auto stack = udp_stack();
  stack->set_observer(Service::kCollectives, &notes);
  const auto addresses = fellowship.all_gather(stack->address());
  const PeerId peer = stack->add_peer(addresses[kVictim]).value();
  const pid_t victim = std::stoi(fellowship.all_gather("")[kVictim]);
  ASSERT_TRUE(greet_each_other(*stack, peer).ok());
  fellowship.barrier();
  // Nothing is open, so nothing is sent while nobody has the port.
  kill(victim, SIGKILL);
  fellowship.barrier();
  fellowship.barrier();  // inherited
  std::vector<std::byte> buffer(1 << 20);
  Exchange doomed(*stack);
  if (send) {
    doomed.send(peer, {1, 1}, buffer.data(), buffer.size());
  } else {
    doomed.recv(peer, {1, 1}, Sink::place(buffer.data()), buffer.size());
  }
  const Time before = monotonic_now();
  const Status status = doomed.run(5 * kSecond);  // half of the peers' timeout
  EXPECT_EQ(status.code(), Code::kPeerLost) << status.message();
  EXPECT_NE(status.message().find("its process has ended"), std::string::npos) << status.message();
  fprintf(stderr, "[ seen after %.1f ms: %s ]\n",
          static_cast<double>(monotonic_now() - before) / kMillisecond, status.message().c_str());
  fellowship.barrier();
  stack->close();
}

void check_inherited_port(bool send) {
  const std::uint16_t port = free_port();
  const auto statuses = run_processes({3, 60 * kSecond, {}}, [=](Fellowship& fellowship) {
    if (fellowship.rank() != kSurvivor) setenv("TACO_PORT", std::to_string(port).c_str(), 1);
    if (fellowship.rank() == kSurvivor) miss_the_victim(fellowship, send);
    if (fellowship.rank() == kVictim) live_until_killed(fellowship);
    if (fellowship.rank() == kThird) inherit_the_port(fellowship, port);
  });
  EXPECT_EQ(statuses[kSurvivor], 0);
  EXPECT_EQ(statuses[kThird], 0);
}

TEST(ResetTest, a_process_on_the_dead_ones_port_hides_no_death_from_a_receiver) {
  check_inherited_port(false);
}
TEST(ResetTest, a_process_on_the_dead_ones_port_hides_no_death_from_a_sender) {
  check_inherited_port(true);
}

std::vector<std::byte> reset_of(std::span<const std::byte> datagram) {
  wire::Header header = wire::frames_header(wire::Type::kReset, {}, wire::kResetBytes);
  const auto quoted = datagram.first(wire::kResetBytes);
  wire::seal(header, quoted);
  std::vector<std::byte> bytes(sizeof header + quoted.size());
  std::memcpy(bytes.data(), &header, sizeof header);
  std::memcpy(bytes.data() + sizeof header, quoted.data(), quoted.size());
  return bytes;
}

// For how long the relay has got nothing from rank 1 while rank 0 spoke, at most; shared by the
// processes.
using Silence = std::atomic<Duration>;

// Answers every packet of rank 0's by a reset that nobody can tell from a true one; and keeps the
// packets to itself once `alone` is set.
void forge_resets(Fellowship& fellowship, Silence& longest) {
  const auto addresses = fellowship.all_gather("");
  std::atomic<bool> alone{false};
  Time heard = kNever;  // from rank 1
  std::atomic<int> forged{0};
  Relay relay(addresses[0], addresses[1],
              [&](int from, std::span<const std::byte> datagram, const Relay::Back& back) {
                const Time now = monotonic_now();
                if (from == 1) heard = now;
                if (!alone.load()) longest = std::max(longest.load(), now - heard);
                if (from == 0 && !wire::is_hello(datagram)) {
                  back(reset_of(datagram));
                  ++forged;
                }
                return !alone.load();
              });
  fellowship.all_gather(relay.address_for(0));
  fellowship.all_gather(relay.address_for(1));
  fellowship.barrier();  // all is well
  EXPECT_GT(forged.load(), 100);
  alone.store(true);
  fellowship.barrier();
  fellowship.barrier();  // lost
}

void speak_through_the_relay(Fellowship& fellowship) {
  const int me = fellowship.rank();
  NoteTaker notes;
  const auto stack = udp_stack();
  stack->set_observer(Service::kCollectives, &notes);
  fellowship.all_gather(stack->address());
  const std::string to_first = fellowship.all_gather("")[2];
  const std::string to_second = fellowship.all_gather("")[2];
  const PeerId peer = stack->add_peer(me == 0 ? to_first : to_second).value();
  for (std::uint64_t round = 0; round < 40; ++round) {
    const auto out = pattern(100'000, me + 2 * round);
    std::vector<std::byte> in(out.size());
    Exchange exchange(*stack);
    exchange.send(peer, {2, round}, out.data(), out.size());
    exchange.recv(peer, {2, round}, Sink::place(in.data()), in.size());
    // Long enough for the other side to wonder whether this one lives.
    if (me == 1 && round % 10 == 0) usleep(150'000);
    const Status status = exchange.run(20 * kSecond);
    ASSERT_TRUE(status.ok()) << "round " << round << ": " << status.message();
    ASSERT_EQ(in, pattern(in.size(), 1 - me + 2 * round));
  }
  EXPECT_EQ(notes.lost, 0);
  fellowship.barrier();
  fellowship.barrier();  // the relay keeps everything to itself
  if (me == 0) {
    char here = 0;
    Exchange doomed(*stack);
    doomed.recv(peer, {3, 0}, Sink::place(&here), 1);
    EXPECT_EQ(doomed.run(5 * kSecond).code(), Code::kPeerLost) << "no forgery was believed at all";
  }
  fellowship.barrier();
  stack->close();
}

// A second of silence after resets is proof of a death: where a busy machine let rank 1 or the
// relay stand still for about as long, the session may end rightly, and the case is tried again.
TEST(ResetTest, no_stream_of_forged_resets_ends_a_session_whose_peer_lives) {
  constexpr Duration kStoodStill = 800 * kMillisecond;
  constexpr int kTries = 4;
  void* const memory =
      mmap(nullptr, sizeof(Silence), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  Silence& longest = *new (memory) Silence(0);
  const std::vector<int> good{0, 0, 0};
  std::vector<int> statuses;
  for (int i = 0; i == 0 || (i < kTries && statuses != good && longest > kStoodStill); ++i) {
    if (i > 0) fprintf(stderr, "[ rank 1 stood still for %.1f s: once more ]\n", 1e-9 * longest);
    longest = 0;
    statuses = run_processes({3, 60 * kSecond, {}}, [&](Fellowship& fellowship) {
      if (fellowship.rank() == kThird) return forge_resets(fellowship, longest);
      speak_through_the_relay(fellowship);
    });
  }
  EXPECT_EQ(statuses, good);
  munmap(memory, sizeof(Silence));
}

}  // namespace
}  // namespace taco::harp
