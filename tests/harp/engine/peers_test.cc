// Processes come and go for as long as this one runs: what it keeps of them is bounded by those
// that are there.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <future>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "harp/drivers/kernel/kernel_interfaces.h"
#include "harp/engine/engine_call.h"
#include "harp/engine/engine_core.h"
#include "harp/engine/peer.h"
#include "harp/engine/stack_core.h"
#include "harp/tools/exchange.h"
#include "support/eventually.h"
#include "support/processes.h"
#include "support/relay.h"

namespace taco::harp {
namespace {

using Force = StackOptions::Force;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kPhantoms = 500, kIncarnations = 4;
constexpr bool kMeasuresMemory = false;  // a sanitizer keeps what was freed
#else
constexpr int kPhantoms = 10'000, kIncarnations = 40;
constexpr bool kMeasuresMemory = true;
#endif

// Shorter than a pause of a busy machine: for those who never answer anyway.
constexpr Duration kPhantomTimeout = 300 * kMillisecond;
constexpr Duration kTimeout = 3 * kSecond;

std::shared_ptr<Stack> make_stack(Force force, Duration peer_timeout = kTimeout) {
  StackOptions options;
  options.transport = force;
  options.peer_timeout = peer_timeout;
  auto made = StackCore::create(options);
  EXPECT_TRUE(made.ok()) << made.status().message();
  return made.ok() ? std::move(made).value() : nullptr;
}

bool eventually(const std::function<bool()>& holds) {
  return taco::testing::eventually(holds, 30 * kSecond);
}

std::size_t resident_bytes() {
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  unsigned long total = 0, resident = 0;
  const int read = std::fscanf(file, "%lu %lu", &total, &resident);
  std::fclose(file);
  return read == 2 ? resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) : 0;
}

// 8 bytes each way.
Status greet(Stack& a, PeerId b_at_a, Stack& b, PeerId a_at_b, std::uint64_t tag) {
  std::uint64_t out = tag, from_a = 0, from_b = 0;
  Exchange at_a(a), at_b(b);
  at_a.send(b_at_a, {1, tag}, &out, 8).recv(b_at_a, {1, tag}, Sink::place(&from_b), 8);
  at_b.send(a_at_b, {1, tag}, &out, 8).recv(a_at_b, {1, tag}, Sink::place(&from_a), 8);
  at_b.start();
  const Status status = at_a.run(20 * kSecond), other = at_b.finish(20 * kSecond);
  EXPECT_EQ(from_a, tag);
  EXPECT_EQ(from_b, tag);
  return status.ok() ? other : status;
}

Result<Peer*> add_to(
    PeerTable& table, MatcherHost& host, std::uint64_t incarnation,
    const std::function<void()>& meanwhile = [] {}) {
  return table.add(
      incarnation,
      [&]() -> Result<PeerPlan> {
        meanwhile();
        PeerPlan plan;
        plan.address.incarnation = incarnation;
        plan.routes.emplace_back();
        return plan;
      },
      [&](PeerId id, PeerPlan plan) { return std::make_unique<Peer>(id, std::move(plan), host); });
}

// A thread that asks the kernel about a new peer keeps neither the engine nor other threads
// waiting, one that adds the same peer included.
TEST(PeerTableTest, nobody_waits_for_a_thread_that_is_finding_out_about_a_peer) {
  MatcherHost host;
  PeerTable table;
  Peer* other = nullptr;
  std::future<void> elsewhere;
  const auto added = add_to(table, host, 1, [&] {
    elsewhere = std::async(std::launch::async, [&] {
      EXPECT_EQ(table.find_incarnation(1), nullptr);
      other = add_to(table, host, 1).value();
    });
    EXPECT_EQ(elsewhere.wait_for(std::chrono::seconds(10)), std::future_status::ready);
  });
  elsewhere.get();
  ASSERT_TRUE(added.ok());
  EXPECT_EQ(added.value(), other) << "there is one";
  EXPECT_EQ(table.size(), 1u);
  EXPECT_FALSE(table.release(other->id)) << "and both refer to it";
  EXPECT_TRUE(table.release(other->id));
}

TEST(PeerTableTest, ids_outnumber_the_places_and_an_old_one_finds_nobody) {
  MatcherHost host;
  PeerTable table;
  std::set<PeerId> ids;
  PeerId first = 0;
  for (std::uint64_t incarnation = 1; incarnation <= 200'000; ++incarnation) {
    const auto added = add_to(table, host, incarnation);
    ASSERT_TRUE(added.ok()) << incarnation << ": " << added.status().message();
    Peer& peer = *added.value();
    const PeerId id = peer.id;
    if (incarnation == 1) first = id;
    ASSERT_TRUE(ids.insert(id).second) << "an id that had been somebody else's";
    ASSERT_EQ(table.find(id), &peer);
    ASSERT_TRUE(table.release(id));
    ASSERT_FALSE(table.release(id)) << "once is enough";
    ASSERT_NE(table.remove(peer), nullptr);
    ASSERT_EQ(table.find(id), nullptr);
    ASSERT_EQ(table.find(first), nullptr);
  }
  EXPECT_EQ(table.size(), 0u);
}

TEST(PeerTableTest, a_full_table_gives_its_free_places_to_newcomers_and_no_other) {
  MatcherHost host;
  PeerTable table;
  std::vector<Peer*> peers;
  const auto add = [&] { return add_to(table, host, peers.size() + 1); };
  for (auto added = add(); added.ok(); added = add()) peers.push_back(added.value());
  const std::size_t places = peers.size();
  // The first place's second id is the number of places.
  for (const std::size_t leaver : {0, 5, 7}) {
    Peer* gone = peers[leaver];
    ASSERT_TRUE(table.release(gone->id));
    ASSERT_NE(table.remove(*gone), nullptr);
    const auto added = add();
    ASSERT_TRUE(added.ok()) << added.status().message();
    EXPECT_EQ(added.value()->id, leaver + places);
    peers[leaver] = nullptr;
    peers.push_back(added.value());
    for (Peer* peer : peers) {
      if (peer != nullptr) {
        ASSERT_EQ(table.find(peer->id), peer);
      }
    }
  }
  EXPECT_EQ(table.size(), places);
}

TEST(PeerTableTest, a_peer_that_is_needed_again_is_not_removed) {
  MatcherHost host;
  PeerTable table;
  Peer* peer = add_to(table, host, 1).value();
  ASSERT_TRUE(table.release(peer->id));
  ASSERT_EQ(add_to(table, host, 1).value(), peer);
  EXPECT_TRUE(table.take_released().empty());
  EXPECT_EQ(table.remove(*peer), nullptr);
  EXPECT_EQ(table.find(peer->id), peer);
}

// A socket that hears and never answers.
class Silent {
 public:
  Silent() : socket_(socket(AF_INET, SOCK_DGRAM, 0)) {
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(socket_, reinterpret_cast<sockaddr*>(&any), sizeof any), 0);
    socklen_t size = sizeof any;
    getsockname(socket_, reinterpret_cast<sockaddr*>(&any), &size);
    port_ = ntohs(any.sin_port);
  }
  ~Silent() { close(socket_); }
  std::uint16_t port() const { return port_; }

 private:
  int socket_;
  std::uint16_t port_ = 0;
};

// Each is added, sent to and released; none ever answers.
void contact_phantoms(Stack& stack, std::uint16_t port, int from, int to) {
  constexpr int kBatch = 100;
  for (int i = from; i < to; i += kBatch) {
    std::vector<PeerId> peers;
    Exchange exchange(stack);
    std::uint64_t data = 1;
    for (int j = i; j < std::min(i + kBatch, to); ++j) {
      Address address = decode(stack.address()).value();
      address.incarnation += static_cast<std::uint64_t>(j) + 1;
      address.has_shm = false;
      for (PathAddress& path : address.paths) set_port(path.endpoint, port);
      const auto added = stack.add_peer(encode(address));
      ASSERT_TRUE(added.ok()) << added.status().message();
      peers.push_back(added.value());
      exchange.send(added.value(), {1, 1}, &data, sizeof data);
    }
    ASSERT_TRUE(exchange.run(20 * kSecond).ok());
    for (const PeerId peer : peers) stack.release_peer(peer);
    ASSERT_TRUE(eventually([&] { return stack.stats().peers < 2'000; }));
  }
  ASSERT_TRUE(eventually([&] { return stack.stats().peers == 0; }));
}

TEST(PeersTest, ten_thousand_that_never_answer_come_and_go_in_constant_memory) {
  const Silent silent;
  const auto stack = make_stack(Force::kUdp, kPhantomTimeout);
  ASSERT_NE(stack, nullptr);
  contact_phantoms(*stack, silent.port(), 0, kPhantoms / 5);
  const std::size_t before = resident_bytes();
  contact_phantoms(*stack, silent.port(), kPhantoms / 5, kPhantoms);
  if (kMeasuresMemory) {
    // Up to 2,000 may be there at once, 8 MiB, where fewer were among the first.
    EXPECT_LT(resident_bytes(), before + (12 << 20)) << "8,000 sessions are 32 MiB";
  }
  const StackStats stats = stack->stats();
  EXPECT_EQ(stats.sessions, 0u);
  EXPECT_EQ(stats.credit_outstanding, 0u);
  EXPECT_EQ(stack->incarnation_of(0), 0u) << "the first one's id finds nobody";
  stack->close();
}

class IncarnationsTest : public ::testing::TestWithParam<Force> {};

TEST_P(IncarnationsTest, come_are_met_leave_and_are_forgotten) {
  const auto survivor = make_stack(GetParam());
  ASSERT_NE(survivor, nullptr);
  int descriptors = 0;
  for (int i = 0; i < kIncarnations; ++i) {
    const auto mortal = make_stack(GetParam());
    const PeerId it = survivor->add_peer(mortal->address()).value();
    const PeerId me = mortal->add_peer(survivor->address()).value();
    const Status status = greet(*survivor, it, *mortal, me, static_cast<std::uint64_t>(i) + 1);
    ASSERT_TRUE(status.ok()) << i << ": " << status.message();
    // Either order: a group may be destroyed before its members end, or after.
    if (i % 2 == 0) survivor->release_peer(it);
    mortal->close();
    if (i % 2 == 1) survivor->release_peer(it);
    if (i == 0) {
      ASSERT_TRUE(eventually([&] { return survivor->stats().peers == 0; }));
      descriptors = ::taco::testing::count_descriptors();
    }
  }
  ASSERT_TRUE(eventually([&] { return survivor->stats().peers == 0; }));
  const StackStats stats = survivor->stats();
  EXPECT_EQ(stats.sessions, 0u);
  EXPECT_EQ(stats.shm_links, 0u);
  EXPECT_EQ(stats.credit_outstanding, 0u);
  EXPECT_LE(::taco::testing::count_descriptors(), descriptors);
  survivor->close();
}

TEST_P(IncarnationsTest, one_that_lives_is_kept_for_the_next_group) {
  const auto here = make_stack(GetParam()), there = make_stack(GetParam());
  PeerId it = here->add_peer(there->address()).value();
  const PeerId me = there->add_peer(here->address()).value();
  ASSERT_TRUE(greet(*here, it, *there, me, 1).ok());
  const PeerId first = it;
  here->release_peer(it);
  const Time until = monotonic_now() + 4 * kTimeout;  // the silent are forgotten after three
  while (monotonic_now() < until) {
    ASSERT_EQ(here->stats().peers, 1u);
    usleep(20'000);
  }
  it = here->add_peer(there->address()).value();
  EXPECT_EQ(it, first);
  const Status status = greet(*here, it, *there, me, 2);
  EXPECT_TRUE(status.ok()) << status.message();
  here->close();
  there->close();
}

TEST_P(IncarnationsTest, one_that_is_gone_fails_who_asks_for_it_by_its_old_id) {
  const auto here = make_stack(GetParam()), there = make_stack(GetParam());
  const PeerId it = here->add_peer(there->address()).value();
  const PeerId me = there->add_peer(here->address()).value();
  ASSERT_TRUE(greet(*here, it, *there, me, 1).ok());
  there->close();
  here->release_peer(it);
  ASSERT_TRUE(eventually([&] { return here->stats().peers == 0; }));
  std::uint64_t data = 0;
  Exchange late(*here);
  late.send(it, {1, 2}, &data, 8).recv(it, {1, 2}, Sink::place(&data), 8);
  EXPECT_EQ(late.run(5 * kSecond).code(), Code::kInvalidArgument);
  here->close();
}

INSTANTIATE_TEST_SUITE_P(Transports, IncarnationsTest, ::testing::Values(Force::kUdp, Force::kShm),
                         [](const auto& instance) {
                           return instance.param == Force::kUdp ? "udp" : "shm";
                         });

// While they cannot reach each other, only the side that no longer needs the other forgets it.
TEST(PeersTest, one_that_was_forgotten_there_is_met_anew_and_nobody_here_is_told_of_a_loss) {
  class Ear final : public Observer {
   public:
    void on_unmatched_st(PeerId, const MessageKey&, std::uint64_t, bool) override { ++unmatched; }
    void on_mismatch_st(PeerId, const MessageKey&, std::uint64_t, std::uint64_t) override {}
    void on_peer_lost_st(PeerId, const Status&) override { ++lost; }
    void on_peer_left_st(PeerId) override {}
    void on_notice_st(PeerId, std::span<const std::byte>) override {}
    std::atomic<int> unmatched{0}, lost{0};
  } ear;
  const auto here = make_stack(Force::kUdp), there = make_stack(Force::kUdp);
  here->set_observer(Service::kCollectives, &ear);
  // Only what is here goes unheard: a cut of both ways could take the acknowledgement of what here
  // has just said, which would be a loss to tell of.
  std::atomic<bool> cut{false};
  taco::testing::Relay relay(here->address(), there->address(),
                             [&](int from, auto, const auto&) { return from == 1 || !cut.load(); });
  const PeerId it = here->add_peer(relay.address_for(0)).value();
  PeerId me = there->add_peer(relay.address_for(1)).value();
  ASSERT_TRUE(greet(*here, it, *there, me, 1).ok());
  cut.store(true);
  there->release_peer(me);
  ASSERT_TRUE(eventually([&] { return there->stats().peers == 0; }));
  cut.store(false);
  me = there->add_peer(relay.address_for(1)).value();
  ear.unmatched.store(0);  // the greeting may have come before it was asked for

  std::vector<std::byte> out(100'000, std::byte{7}), in(out.size());
  Exchange sends(*there);
  sends.send(me, {1, 2}, out.data(), out.size());
  sends.start();
  ASSERT_TRUE(eventually([&] { return ear.unmatched > 0; })) << "its offer has arrived";
  Exchange receives(*here);
  receives.recv(it, {1, 2}, Sink::place(in.data()), in.size());
  const Status status = receives.run(20 * kSecond);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(sends.finish(20 * kSecond).ok());
  EXPECT_EQ(in, out);
  EXPECT_EQ(ear.lost, 0);
  EXPECT_EQ(here->stats().sessions, 1u);
  here->set_observer(Service::kCollectives, nullptr);
  here->close();
  there->close();
}

// A small message that has been sent counts as done, though its packet may have been lost.
TEST(PeersTest, a_peer_is_not_idle_before_all_has_arrived_there) {
  const auto here = make_stack(Force::kUdp), there = make_stack(Force::kUdp);
  std::atomic<bool> cut{false};
  taco::testing::Relay relay(here->address(), there->address(),
                             [&](int from, auto, const auto&) { return from == 1 || !cut.load(); });
  const PeerId it = here->add_peer(relay.address_for(0)).value();
  const PeerId me = there->add_peer(relay.address_for(1)).value();
  ASSERT_TRUE(greet(*here, it, *there, me, 1).ok());
  const auto idle = [&] {
    bool is = false;
    EXPECT_TRUE(call_on_engine(
        here->engine(), [&](Transport& transport) { is = transport.is_idle_st(it); },
        monotonic_now() + 30 * kSecond));
    return is;
  };
  EXPECT_TRUE(eventually(idle));
  cut.store(true);
  std::uint64_t out = 5, in = 0;
  Exchange sends(*here);
  ASSERT_TRUE(sends.send(it, {1, 2}, &out, 8).run(20 * kSecond).ok());
  EXPECT_FALSE(idle());
  cut.store(false);
  Exchange receives(*there);
  ASSERT_TRUE(receives.recv(me, {1, 2}, Sink::place(&in), 8).run(20 * kSecond).ok());
  EXPECT_EQ(in, out);
  EXPECT_TRUE(eventually(idle));
  here->close();
  there->close();
}

// Containers allow a process few.
TEST(PeerTest,
     a_process_takes_ten_descriptors_beside_its_addresses_and_two_for_a_peer_on_its_host) {
  StackOptions options;
  options.interfaces = {"lo"};
  const auto all = list_interfaces();
  ASSERT_TRUE(all.ok());
  const int addresses = static_cast<int>(std::ranges::count_if(
      all.value(), [](const Interface& each) { return each.loopback && each.up; }));
  const int before = ::taco::testing::count_descriptors();
  const auto here = StackCore::create(options).value();
  EXPECT_LE(::taco::testing::count_descriptors(), before + 10 + addresses);
  const auto there = StackCore::create(options).value();
  const PeerId it = here->add_peer(there->address()).value();
  const PeerId me = there->add_peer(here->address()).value();
  ASSERT_TRUE(greet(*here, it, *there, me, 1).ok());
  const auto fewer = [&] {
    return ::taco::testing::count_descriptors() <= before + 2 * (10 + addresses + 2);
  };
  EXPECT_TRUE(eventually(fewer)) << ::taco::testing::count_descriptors() - before;
  here->close();
  there->close();
}

TEST(SuspicionTest,
     a_peer_that_was_heard_after_the_first_refusal_is_cleared_whatever_stalls_follow) {
  Suspicion suspicion;
  EXPECT_TRUE(suspicion.hint(&Suspicion::refusals, 100));
  EXPECT_FALSE(suspicion.hint(&Suspicion::refusals, 101));
  suspicion.hint(&Suspicion::resets, 102);
  suspicion.excuse(50 * kMillisecond);
  suspicion.clear_if_heard(103);
  EXPECT_EQ(suspicion.hints(), 0u);
}

TEST(SuspicionTest, stalls_of_the_own_loop_put_the_verdict_off_but_not_for_ever) {
  Suspicion suspicion;
  for (int i = 0; i < 3; ++i) suspicion.hint(&Suspicion::refusals, 0);
  suspicion.excuse(5 * kMillisecond);
  EXPECT_FALSE(suspicion.is_proof(Suspicion::kSilence + 4 * kMillisecond));
  EXPECT_TRUE(suspicion.is_proof(Suspicion::kSilence + 5 * kMillisecond));
  for (int i = 0; i < 1'000; ++i) suspicion.excuse(5 * kMillisecond);
  EXPECT_TRUE(suspicion.is_proof(Suspicion::kSilence + Suspicion::kMaxExcused));
}

}  // namespace
}  // namespace taco::harp
