// Messages between nodes of one process, single-threaded, so that every interleaving is ours.
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <random>

#include "harp/shm/admission.h"
#include "harp/shm/socket.h"
#include "support/shm_node.h"

namespace taco::harp {
namespace {

constexpr std::size_t kSizes[] = {
    0,     1,      15,     64,     4095,    4096,           4097,
    65536, 262143, 262144, 262160, 1 << 20, (1 << 20) + 48, (3 << 20) + 7};

void add_bytes(void* out, const void* a, const void* b, std::size_t count) {
  auto* to = static_cast<std::uint8_t*>(out);
  for (std::size_t i = 0; i < count; i++) {
    to[i] = static_cast<std::uint8_t>(static_cast<const std::uint8_t*>(a)[i] +
                                      static_cast<const std::uint8_t*>(b)[i]);
  }
}

// Both ways of moving large messages.
class ShmLinkTest : public testing::TestWithParam<bool> {
 protected:
  ShmNode a{GetParam()}, b{GetParam()};
  PeerId ab = a.join(b.address()), ba = b.join(a.address());
};
INSTANTIATE_TEST_SUITE_P(Ways, ShmLinkTest, testing::Values(true, false),
                         [](const auto& info) { return info.param ? "Pull" : "Arena"; });

// Links that are opened by whoever hears something lie where those that are heard lay.
TEST(ShmLinks, MayBeOpenedByWhoHearsSomething) {
  constexpr std::size_t kOthers = 40;
  ShmNode hub;
  std::vector<std::unique_ptr<ShmNode>> others;
  std::vector<ShmNode*> all{&hub};
  for (std::size_t i = 0; i < kOthers; ++i) {
    others.push_back(std::make_unique<ShmNode>(true, std::size_t{1} << 20));
    others[i]->join(hub.address());
    all.push_back(others[i].get());
  }
  std::size_t next = 0;
  hub.heard.on_notice = [&] {
    for (int i = 0; i < 3 && next < kOthers; ++i) hub.join(others[next++]->address());
  };
  hub.join(others[next++]->address());
  const std::byte word{1};
  for (const auto& other : others) other->matcher(0).notify({&word, 1});
  EXPECT_TRUE(run_all(all, [&] { return hub.heard.notices.size() == kOthers; }));
}

TEST_P(ShmLinkTest, EverySizeArrivesByteForByte) {
  for (bool receive_first : {true, false}) {
    for (std::size_t bytes : kSizes) {
      const MessageKey key{7, bytes * 2 + receive_first};
      const auto data = shm_pattern(bytes, bytes);
      std::vector<std::byte> into(bytes + 16, std::byte{0xee});
      ShmSend send(key, data.data(), bytes);
      ShmReceive receive(key, Sink::place(into.data()), bytes);
      if (receive_first) {
        b.matcher(ba).recv(receive);
        b.run_until_idle();
      }
      a.matcher(ab).send(send);
      a.run_until_idle();
      if (!receive_first) b.matcher(ba).recv(receive);
      ASSERT_TRUE(run_all({&a, &b}, [&] { return send.done && receive.done; })) << bytes;
      EXPECT_TRUE(send.status.ok()) << send.status.message();
      EXPECT_TRUE(receive.status.ok()) << receive.status.message();
      EXPECT_EQ(receive.bytes, bytes);
      EXPECT_TRUE(std::equal(data.begin(), data.end(), into.begin())) << bytes;
      EXPECT_EQ(into[bytes], std::byte{0xee}) << "written beyond the end";
    }
  }
  const bool pulled = a.endpoint->stats().bytes_pulled + b.endpoint->stats().bytes_pulled > 0;
  EXPECT_EQ(pulled, GetParam()) << b.endpoint->why_no_pull();
}

// Memory of which the kernel lets nobody else have anything, as of a device's.
class Unreadable {
 public:
  explicit Unreadable(std::size_t bytes) : bytes_(bytes) {
    const auto fd = static_cast<int>(syscall(SYS_memfd_secret, 0));
    if (fd < 0) return;
    void* at = MAP_FAILED;
    if (ftruncate(fd, static_cast<off_t>(bytes)) == 0)
      at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (at != MAP_FAILED) data_ = static_cast<std::byte*>(at);
  }
  ~Unreadable() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  Unreadable(const Unreadable&) = delete;
  Unreadable& operator=(const Unreadable&) = delete;
  std::byte* data() { return data_; }

 private:
  const std::size_t bytes_;
  std::byte* data_ = nullptr;
};

TEST(ShmLinks, AMessageInMemoryThatNobodyElseMayReadIsStagedAndThoseAfterItArePulled) {
  constexpr std::size_t kBytes = 1 << 20;
  Unreadable secret(kBytes);
  if (secret.data() == nullptr) GTEST_SKIP() << "needs memfd_secret()";
  const auto data = shm_pattern(kBytes, 5);
  std::copy(data.begin(), data.end(), secret.data());
  ShmNode a, b;
  const PeerId ab = a.join(b.address()), ba = b.join(a.address());
  const std::byte* const sources[] = {secret.data(), data.data(), secret.data(), data.data()};
  std::uint64_t pulled = 0;
  for (std::uint64_t round = 0; round < 4; ++round) {
    std::vector<std::byte> into(kBytes);
    ShmSend send({1, round}, sources[round], kBytes);
    ShmReceive receive({1, round}, Sink::place(into.data()), kBytes);
    b.matcher(ba).recv(receive);
    a.matcher(ab).send(send);
    ASSERT_TRUE(run_all({&a, &b}, [&] { return send.done && receive.done; })) << round;
    EXPECT_TRUE(send.status.ok()) << send.status.message();
    EXPECT_TRUE(receive.status.ok()) << receive.status.message();
    EXPECT_EQ(into, data) << round;
    pulled += round % 2 == 1 ? kBytes : 0;
    EXPECT_EQ(b.endpoint->stats().bytes_pulled, pulled) << round;
  }
}

TEST_P(ShmLinkTest, AReducingReceiveTakesEveryByteOnce) {
  for (std::size_t bytes : kSizes) {
    const auto data = shm_pattern(bytes, 3);
    auto sum = shm_pattern(bytes, 4);
    auto expected = sum;
    add_bytes(expected.data(), sum.data(), data.data(), bytes);
    ShmSend send({1, bytes}, data.data(), bytes);
    ShmReceive receive({1, bytes}, Sink::reduce_into(sum.data(), sum.data(), add_bytes, 1), bytes);
    a.matcher(ab).send(send);
    b.matcher(ba).recv(receive);
    ASSERT_TRUE(run_all({&a, &b}, [&] { return send.done && receive.done; })) << bytes;
    EXPECT_EQ(sum, expected) << bytes;
  }
}

TEST_P(ShmLinkTest, ConnectedPeersKnowEachOthersCores) {
  a.endpoint->publish_core(3);
  EXPECT_EQ(b.endpoint->peer_cores().front(), -1) << "before there is a connection";
  ShmSend send({7, 1}, nullptr, 0);
  ShmReceive receive({7, 1}, Sink::place(nullptr), 0);
  b.matcher(ba).recv(receive);
  a.matcher(ab).send(send);
  ASSERT_TRUE(run_all({&a, &b}, [&] { return send.done && receive.done; }));
  ASSERT_EQ(b.endpoint->peer_cores().size(), 1u);
  EXPECT_EQ(b.endpoint->peer_cores().front(), 3);
  EXPECT_EQ(a.endpoint->peer_cores().front(), -1);
  a.endpoint->publish_core(-1);
  EXPECT_EQ(b.endpoint->peer_cores().front(), -1);
}

TEST_P(ShmLinkTest, BothConnectAtOnceAndStillShareOneLink) {
  const auto data = shm_pattern(100, 1);
  std::vector<std::byte> at_a(100), at_b(100);
  ShmSend from_a({1, 1}, data.data(), 100), from_b({1, 2}, data.data(), 100);
  ShmReceive to_b({1, 1}, Sink::place(at_b.data()), 100);
  ShmReceive to_a({1, 2}, Sink::place(at_a.data()), 100);
  a.matcher(ab).send(from_a);
  b.matcher(ba).send(from_b);
  a.matcher(ab).recv(to_a);
  b.matcher(ba).recv(to_b);
  ASSERT_TRUE(run_all({&a, &b}, [&] { return to_a.done && to_b.done; }));
  EXPECT_EQ(at_a, data);
  EXPECT_EQ(at_b, data);
  EXPECT_EQ(a.endpoint->stats().links, 1u);
  EXPECT_EQ(b.endpoint->stats().links, 1u);
}

TEST_P(ShmLinkTest, ManyMessagesOfMixedSizesInBothDirections) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  struct Message {
    std::vector<std::byte> data, into;
    std::unique_ptr<ShmSend> send;
    std::unique_ptr<ShmReceive> receive;
  };
  std::vector<Message> messages(600);
  std::vector<std::size_t> send_order(messages.size()), receive_order(messages.size());
  for (std::size_t i = 0; i < messages.size(); i++) {
    const std::size_t bytes = random() % 3 == 0 ? random() % 600'000 : random() % 6000;
    Message& message = messages[i];
    message.data = shm_pattern(bytes, i);
    message.into.resize(bytes);
    message.send = std::make_unique<ShmSend>(MessageKey{i % 5, i}, message.data.data(), bytes);
    message.receive =
        std::make_unique<ShmReceive>(MessageKey{i % 5, i}, Sink::place(message.into.data()), bytes);
    send_order[i] = receive_order[i] = i;
  }
  std::shuffle(send_order.begin(), send_order.end(), random);
  std::shuffle(receive_order.begin(), receive_order.end(), random);
  for (std::size_t i = 0; i < messages.size(); i++) {
    const std::size_t s = send_order[i], r = receive_order[i];
    (s % 2 ? a.matcher(ab) : b.matcher(ba)).send(*messages[s].send);
    (r % 2 ? b.matcher(ba) : a.matcher(ab)).recv(*messages[r].receive);
    if (random() % 4 == 0) a.turn();
    if (random() % 4 == 0) b.turn();
  }
  ASSERT_TRUE(run_all({&a, &b}, [&] {
    return std::all_of(messages.begin(), messages.end(),
                       [](const Message& m) { return m.send->done && m.receive->done; });
  }));
  for (const Message& message : messages) EXPECT_EQ(message.data, message.into);
}

TEST_P(ShmLinkTest, SmallMessagesOvertakeALargeOne) {
  const std::size_t large = std::size_t{64} << 20;
  std::vector<std::byte> from(large), to(large), small(64), small_to(64);
  ShmSend big({1, 1}, from.data(), large);
  ShmReceive big_receive({1, 1}, Sink::place(to.data()), large);
  b.matcher(ba).recv(big_receive);
  a.matcher(ab).send(big);
  while (b.endpoint->stats().bytes_received == 0) a.turn(), b.turn();
  ShmSend little({2, 1}, small.data(), 64);
  ShmReceive little_receive({2, 1}, Sink::place(small_to.data()), 64);
  b.matcher(ba).recv(little_receive);
  a.matcher(ab).send(little);
  ASSERT_TRUE(run_all({&a, &b}, [&] { return little_receive.done; }));
  EXPECT_FALSE(big_receive.done);
  EXPECT_LT(b.endpoint->stats().bytes_received, large / 4);
  ASSERT_TRUE(run_all({&a, &b}, [&] { return big_receive.done && big.done; }));
}

TEST_P(ShmLinkTest, AWithdrawnSendIsNeverTakenForAMessage) {
  const std::size_t bytes = std::size_t{8} << 20;
  for (int turns = 0; turns < 8; turns++) {
    auto data = shm_pattern(bytes, 1);
    std::vector<std::byte> into(bytes);
    const MessageKey key{1, static_cast<std::uint64_t>(turns)};
    ShmSend send(key, data.data(), bytes);
    ShmReceive receive(key, Sink::place(into.data()), bytes);
    b.matcher(ba).recv(receive);
    a.run_until_idle();
    a.matcher(ab).send(send);
    for (int i = 0; i < turns; i++) a.turn(), b.turn();
    ASSERT_FALSE(receive.done);
    a.matcher(ab).cancel(send, Status(Code::kAborted, "test"));
    std::fill(data.begin(), data.end(), std::byte{0xbb});
    ASSERT_TRUE(run_all({&a, &b}, [&] { return send.done && receive.done; }));
    EXPECT_EQ(receive.status.code(), Code::kAborted);
  }
}

TEST_P(ShmLinkTest, ACancelledReceiveIsNotWrittenAnyMore) {
  const std::size_t bytes = std::size_t{8} << 20;
  const auto data = shm_pattern(bytes, 1);
  std::vector<std::byte> into(bytes);
  ShmSend send({1, 1}, data.data(), bytes);
  ShmReceive receive({1, 1}, Sink::place(into.data()), bytes);
  b.matcher(ba).recv(receive);
  a.matcher(ab).send(send);
  while (b.endpoint->stats().bytes_received == 0) a.turn(), b.turn();
  b.matcher(ba).cancel(receive, Status(Code::kAborted, "test"));
  const std::vector<std::byte> then = into;
  ASSERT_TRUE(run_all({&a, &b}, [&] { return send.done && receive.done; }));
  a.run_until_idle();
  b.run_until_idle();
  EXPECT_EQ(into, then);
  EXPECT_FALSE(a.links[ab]->busy());
}

TEST_P(ShmLinkTest, AMessageLongerThanItsReceiveIsRefusedOnBothSides) {
  const auto data = shm_pattern(100'000, 1);
  std::vector<std::byte> into(100'000, std::byte{1});
  ShmSend send({1, 1}, data.data(), data.size());
  ShmReceive receive({1, 1}, Sink::place(into.data()), 50'000);
  b.matcher(ba).recv(receive);
  a.matcher(ab).send(send);
  ASSERT_TRUE(run_all({&a, &b}, [&] { return send.done && receive.done; }));
  EXPECT_EQ(send.status.code(), Code::kMismatch);
  EXPECT_EQ(receive.status.code(), Code::kMismatch);
  EXPECT_EQ(into[0], std::byte{1});
}

TEST_P(ShmLinkTest, NoticesArriveInOrder) {
  for (int i = 0; i < 300; i++) {
    const std::string text = "notice " + std::to_string(i) + std::string(700, '.');
    a.matcher(ab).notify(std::as_bytes(std::span(text)));
  }
  ASSERT_TRUE(run_all({&a, &b}, [&] { return b.heard.notices.size() == 300; }));
  for (int i = 0; i < 300; i++)
    EXPECT_EQ(b.heard.notices[i].rfind("notice " + std::to_string(i) + ".", 0), 0u);
}

TEST_P(ShmLinkTest, GoodbyeIsAcknowledgedAndIsNoLoss) {
  const auto data = shm_pattern(3'000'000, 1);
  std::vector<std::byte> into(data.size());
  ShmSend send({1, 1}, data.data(), data.size());
  ShmReceive receive({1, 1}, Sink::place(into.data()), data.size());
  b.matcher(ba).recv(receive);
  a.matcher(ab).send(send);
  ASSERT_TRUE(run_all({&a, &b}, [&] { return send.done; }));
  a.links[ab]->leave();
  EXPECT_TRUE(a.links[ab]->busy());
  ASSERT_TRUE(run_all({&a, &b}, [&] { return !a.links[ab]->busy(); }));
  EXPECT_TRUE(receive.done);
  EXPECT_TRUE(receive.status.ok()) << "what was sent before the goodbye counts";
  EXPECT_EQ(into, data);
  b.run_until_idle();
  EXPECT_EQ(b.heard.left.size(), 1u);
  EXPECT_TRUE(b.heard.lost.empty());
}

TEST_P(ShmLinkTest, BothLeaveAtOnce) {
  ShmSend send({1, 1}, nullptr, 0);
  a.matcher(ab).send(send);
  ASSERT_TRUE(run_all({&a, &b}, [&] { return send.done && b.links[ba]->is_connected(); }));
  a.links[ab]->leave();
  b.links[ba]->leave();
  ASSERT_TRUE(run_all({&a, &b}, [&] {
    return !a.links[ab]->busy() && !b.links[ba]->busy() && !a.heard.left.empty() &&
           !b.heard.left.empty();
  }));
  EXPECT_TRUE(a.heard.lost.empty());
  EXPECT_TRUE(b.heard.lost.empty());
}

TEST_P(ShmLinkTest, SleepIsRefusedWhileSomethingWaits) {
  ShmSend send({1, 1}, nullptr, 0);
  a.matcher(ab).send(send);
  ASSERT_TRUE(run_all({&a, &b},
                      [&] { return a.links[ab]->is_connected() && b.links[ba]->is_connected(); }));
  a.run_until_idle();
  b.run_until_idle();
  ASSERT_TRUE(b.endpoint->prepare_sleep());
  const auto before = a.endpoint->stats().doorbells.load();
  ShmSend second({1, 2}, nullptr, 0), third({1, 3}, nullptr, 0);
  a.matcher(ab).send(second);
  a.turn();
  EXPECT_EQ(a.endpoint->stats().doorbells, before + 1);
  a.matcher(ab).send(third);
  a.turn();
  EXPECT_EQ(a.endpoint->stats().doorbells, before + 1) << "one sleep, one ring";
  b.endpoint->cancel_sleep();
  EXPECT_FALSE(b.endpoint->prepare_sleep());
  b.run_until_idle();
  EXPECT_TRUE(b.endpoint->prepare_sleep());
  b.endpoint->cancel_sleep();
}

TEST(ShmFamily, OneStagedCopyServesEveryPeerAndIsReleased) {
  ShmNode root{false};
  ShmNode leaves[3]{ShmNode{false}, ShmNode{false}, ShmNode{false}};
  const std::size_t bytes = 700'000;
  const auto data = shm_pattern(bytes, 9);
  Staging staging;
  std::vector<std::vector<std::byte>> into(3, std::vector<std::byte>(bytes));
  std::vector<std::unique_ptr<ShmSend>> sends;
  std::vector<std::unique_ptr<ShmReceive>> receives;
  for (int i = 0; i < 3; i++) {
    const PeerId there = root.join(leaves[i].address());
    leaves[i].join(root.address());
    receives.push_back(
        std::make_unique<ShmReceive>(MessageKey{1, 1}, Sink::place(into[i].data()), bytes));
    leaves[i].matcher(0).recv(*receives.back());
    sends.push_back(std::make_unique<ShmSend>(MessageKey{1, 1}, data.data(), bytes));
    sends.back()->staging = &staging;
    root.matcher(there).send(*sends.back());
  }
  ASSERT_TRUE(run_all({&root, &leaves[0], &leaves[1], &leaves[2]}, [&] {
    for (int i = 0; i < 3; i++)
      if (!sends[i]->done || !receives[i]->done) return false;
    return true;
  }));
  for (const auto& one : into) EXPECT_EQ(one, data);
  EXPECT_EQ(root.endpoint->stats().bytes_staged, bytes);
  EXPECT_NE(staging.block, nullptr);
  root.matcher(0).release(staging);
  EXPECT_EQ(staging.block, nullptr);
}

// Families whose members are not all wanted must not keep others from the arena.
TEST(ShmFamily, UnfinishedFamiliesGiveTheirBlocksToOthers) {
  ShmNode a{false, 2 << 20}, b{false};  // eight blocks
  const PeerId ab = a.join(b.address()), ba = b.join(a.address());
  const std::size_t bytes = 1 << 20;
  const auto data = shm_pattern(bytes, 9);
  std::vector<Staging> stagings(6);
  std::vector<std::byte> into(bytes);
  for (std::uint64_t i = 0; i < stagings.size(); i++) {
    ShmSend send({1, i}, data.data(), bytes);
    send.staging = &stagings[i];
    ShmReceive receive({1, i}, Sink::place(into.data()), bytes);
    a.matcher(ab).send(send);
    b.matcher(ba).recv(receive);
    ASSERT_TRUE(run_all({&a, &b}, [&] { return send.done && receive.done; })) << i;
    EXPECT_EQ(into, data);
  }
  for (Staging& staging : stagings) a.matcher(ab).release(staging);
}

TEST(ShmHandshake, AStrangerWithoutTheSecretIsTurnedAway) {
  ShmNode a, b;
  ShmAddress wrong = b.address();
  wrong.secret[3] ^= std::byte{1};
  const PeerId ab = a.join(wrong);
  b.join(a.address());
  ShmSend send({1, 1}, nullptr, 0);
  a.matcher(ab).send(send);
  ASSERT_TRUE(run_all({&a, &b}, [&] { return !a.heard.lost.empty(); }));
  EXPECT_NE(a.heard.lost[0].second.message().find("refused"), std::string::npos);
  EXPECT_EQ(b.endpoint->stats().links, 0u);
}

TEST(ShmHandshake, AProcessWithoutTheJobsKeyIsTurnedAway) {
  const JobKey one = sha256(std::as_bytes(std::span("one"))),
               other = sha256(std::as_bytes(std::span("other")));
  for (const JobKey& theirs : {one, other, JobKey()}) {
    ShmNode a(false, 2 << 20, true, one), b(false, 2 << 20, true, theirs);
    const PeerId ab = a.join(b.address()), ba = b.join(a.address());
    ShmSend send({1, 1}, nullptr, 0);
    ShmReceive receive({1, 1}, Sink::discard(), 0);
    a.matcher(ab).send(send);
    b.matcher(ba).recv(receive);
    if (theirs == one) {
      ASSERT_TRUE(run_all({&a, &b}, [&] { return send.done && receive.done; }));
      continue;
    }
    ASSERT_TRUE(run_all({&a, &b}, [&] { return !a.heard.lost.empty(); }));
    EXPECT_EQ(b.endpoint->stats().links, 0u);
    EXPECT_FALSE(receive.done);
  }
}

// A proof that a process shows to one peer opens no other's door, and is no copy of a secret.
TEST(ShmHandshake, AProofIsForOneSenderAndOneReceiver) {
  const JobKey job = sha256(std::as_bytes(std::span("job")));
  ShmAddress receiver{{}, {std::byte{1}}, 7};
  const ShmProof proof = shm_proof(receiver, 5, job);
  EXPECT_TRUE(shm_proves(proof, receiver, 5, job));
  EXPECT_FALSE(shm_proves(proof, receiver, 6, job));
  EXPECT_FALSE(shm_proves(proof, receiver, 5, {}));
  EXPECT_FALSE(same_bytes(proof, receiver.secret));
  ShmAddress other = receiver;
  other.incarnation = 8;
  EXPECT_FALSE(shm_proves(proof, other, 5, job));
  other = receiver;
  other.secret[15] = std::byte{1};
  EXPECT_FALSE(shm_proves(proof, other, 5, job));
}

// The name of a process that has ended is free for anybody on the host, who would be sent the
// descriptors of the caller's memory.
TEST(ShmHandshake, AnotherUserOnADeadPeersSocketGetsNothing) {
  if (geteuid() != 0) GTEST_SKIP() << "only root becomes another user";
  ShmAddress taken{{}, {}, 9};
  taken.name.fill(std::byte{0x5a});
  ASSERT_EQ(getrandom(taken.name.data(), 8, 0), 8);
  int listening[2], done[2];
  ASSERT_EQ(pipe(listening), 0);
  ASSERT_EQ(pipe(done), 0);
  const pid_t squatter = fork();
  if (squatter == 0) {
    if (setuid(12345) != 0) _exit(1);
    auto listener = shm_listen(taken.name);
    char byte = listener.ok() ? 'y' : 'n';
    if (write(listening[1], &byte, 1) != 1 || read(done[0], &byte, 1) != 1) _exit(2);
    // The caller sent nothing before it went.
    auto socket = shm_accept(listener->get());
    const bool got = socket.ok() && *socket &&
                     shm_receive_greeting(socket->get()).state == ShmReceived::State::kGreeting;
    _exit(got ? 3 : 0);
  }
  char byte = 'n';
  ASSERT_EQ(read(listening[0], &byte, 1), 1);
  ASSERT_EQ(byte, 'y');
  {
    ShmNode a;
    const PeerId peer = a.join(taken);
    ShmSend send({1, 1}, nullptr, 0);
    a.matcher(peer).send(send);
    EXPECT_TRUE(run_all({&a}, [&] { return !a.heard.lost.empty(); }));
    EXPECT_NE(a.heard.lost[0].second.message().find("another user has its socket"),
              std::string::npos);
  }
  ASSERT_EQ(write(done[1], "x", 1), 1);
  int status = 0;
  ASSERT_EQ(waitpid(squatter, &status, 0), squatter);
  EXPECT_EQ(WEXITSTATUS(status), 0) << "it was greeted";
  for (const int end : {listening[0], listening[1], done[0], done[1]}) close(end);
}

TEST(ShmHandshake, ThePeerMayOpenItsLinkLater) {
  ShmNode a, b;
  const PeerId ab = a.join(b.address());
  const auto data = shm_pattern(500'000, 1);
  std::vector<std::byte> into(data.size());
  ShmSend small({1, 1}, data.data(), 50), large({1, 2}, data.data(), data.size());
  a.matcher(ab).send(small);
  a.matcher(ab).send(large);
  for (int i = 0; i < 100; i++) a.turn(), b.turn();
  const PeerId ba = b.join(a.address());
  ShmReceive first({1, 1}, Sink::place(into.data()), 50);
  ShmReceive second({1, 2}, Sink::place(into.data()), into.size());
  b.matcher(ba).recv(first);
  ASSERT_TRUE(run_all({&a, &b}, [&] { return first.done; }));
  b.matcher(ba).recv(second);
  ASSERT_TRUE(run_all({&a, &b}, [&] { return large.done && second.done; }));
  EXPECT_EQ(into, data);
}

TEST(ShmHandshake, TheKernelsListNamesWhoListensAndNobodyElse) {
  ShmSocketName name{}, other{};
  ASSERT_EQ(getrandom(name.data(), name.size(), 0), static_cast<ssize_t>(name.size()));
  other = name;
  other.back() ^= std::byte{1};
  {
    const auto listener = shm_listen(name);
    ASSERT_TRUE(listener.ok()) << listener.status().message();
    const std::string list = shm_list_sockets();
    if (list.empty()) GTEST_SKIP() << "this kernel lists no sockets, or too many";
    EXPECT_TRUE(shm_is_listed(list, name));
    EXPECT_FALSE(shm_is_listed(list, other));
  }
  EXPECT_FALSE(shm_is_listed(shm_list_sockets(), name));
}

TEST(ShmHandshake, NobodyThereIsALoss) {
  ShmAddress gone;
  {
    ShmNode b;
    gone = b.address();
  }
  ShmNode a;
  EXPECT_EQ(a.endpoint->probe(gone).code(), Code::kPeerLost);
  EXPECT_TRUE(a.endpoint->probe(a.address()).ok());
  const PeerId ab = a.join(gone);
  std::vector<std::byte> into(64);
  ShmReceive receive({1, 1}, Sink::place(into.data()), 64);
  a.matcher(ab).recv(receive);
  a.links[ab]->connect();
  ASSERT_TRUE(run_all({&a}, [&] { return receive.done; }));
  EXPECT_EQ(receive.status.code(), Code::kPeerLost);
}

}  // namespace
}  // namespace taco::harp
