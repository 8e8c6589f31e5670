// A peer that knows the secret but breaks the rules: it must become a loss, never a crash or a
// write outside a receive. Run under the address sanitizer this is a fuzzer of the record reader.
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstring>
#include <random>

#include "base/arena.h"
#include "base/spsc_ring.h"
#include "harp/shm/admission.h"
#include "harp/shm/layout.h"
#include "harp/shm/socket.h"
#include "support/shm_node.h"

namespace taco::harp {
namespace {

// Plays a peer by hand: its own half, arena and greeting.
class Impostor {
 public:
  explicit Impostor(const ShmAddress& victim) {
    auto half = Arena::create("half", sizeof(ShmHalf), Arena::Sharing::kShared);
    auto arena =
        Arena::create("arena", kShmFirstBlock + 2 * kShmBlockBytes, Arena::Sharing::kShared);
    half_memory_ = std::move(half).value();
    arena_memory_ = std::move(arena).value();
    half_ = new (half_memory_.data()) ShmHalf;
    new (arena_memory_.data()) ShmPage;
    ring_.emplace(half_->ring, kShmRingBytes, half_->produced, nothing_consumed_);
    doorbell_ = OwnFd(eventfd(0, EFD_CLOEXEC));
    socket_ = std::move(shm_connect(victim.name)).value();
    greeting_.proof = shm_proof(victim, address.incarnation, {});
    greeting_.incarnation = address.incarnation;
  }
  void greet() {
    EXPECT_TRUE(shm_send_greeting(socket_.get(), greeting_,
                                  {half_memory_.fd(), arena_memory_.fd(), doorbell_.get()})
                    .ok());
  }
  bool push(const std::vector<std::byte>& record) {
    return push(std::span<const std::byte>(record));
  }
  bool push(std::span<const std::byte> record) {
    std::byte* room = ring_->reserve(record.size());
    if (room == nullptr) return false;
    std::memcpy(room, record.data(), record.size());
    ring_->commit();
    return true;
  }
  template <class Record>
  void push(const Record& record) {
    EXPECT_TRUE(try_push(record));
  }
  template <class Record>
  bool try_push(const Record& record) {
    return push(std::as_bytes(std::span(&record, 1)));
  }
  // From now on its ring has the room that the victim's reading makes. It still reads nothing.
  void follow_consumption() {
    ShmReceived greeting = shm_receive_greeting(socket_.get());
    ASSERT_EQ(greeting.state, ShmReceived::State::kGreeting);
    victim_half_ = std::move(shm_map_segment(greeting.files.half.get(), sizeof(ShmHalf))).value();
    ring_->set_consumed(reinterpret_cast<const ShmHalf*>(victim_half_.data())->consumed);
  }

  ShmAddress address{{}, {}, 4711};
  ShmHalf* half_ = nullptr;
  ShmGreeting greeting_;

 private:
  Arena half_memory_, arena_memory_;
  std::atomic<std::uint64_t> nothing_consumed_{0};
  std::optional<RingProducer> ring_;
  OwnFd doorbell_, socket_;
  Mapping victim_half_;
};

struct ShmHostilePeer : testing::Test {
  ShmNode victim{true};
  Impostor impostor{victim.address()};
  PeerId peer = victim.join(impostor.address);

  void link() {
    impostor.greet();
    ASSERT_TRUE(run_all({&victim}, [&] { return victim.links[peer]->is_connected(); }));
  }
  void expect_loss(const std::string& reason = "makes no sense") {
    ASSERT_TRUE(run_all({&victim}, [&] { return !victim.heard.lost.empty(); }));
    EXPECT_NE(victim.heard.lost[0].second.message().find(reason), std::string::npos)
        << victim.heard.lost[0].second.message();
    EXPECT_EQ(victim.endpoint->stats().links, 0u);
  }
};

TEST_F(ShmHostilePeer, AnUnknownRecordIsALoss) {
  link();
  ShmSlotRecord record;
  record.head.type = static_cast<ShmRecordType>(99);
  impostor.push(record);
  expect_loss();
}

TEST_F(ShmHostilePeer, ARecordShorterThanItsHeadIsALoss) {
  link();
  const std::byte one{1};
  impostor.push(std::span(&one, 1));
  expect_loss();
}

TEST_F(ShmHostilePeer, ARecordThatLiesAboutItsLengthIsALoss) {
  link();
  ShmKeyRecord record;
  record.head.type = ShmRecordType::kEager;
  record.head.bytes = 1000;
  impostor.push(record);
  expect_loss();
}

TEST_F(ShmHostilePeer, APieceOutsideTheArenaIsALoss) {
  link();
  ShmPieceRecord record;
  record.head.type = ShmRecordType::kPiece;
  record.total = record.bytes = 100;
  record.address = 1'000'000;
  impostor.push(record);
  expect_loss();
}

TEST_F(ShmHostilePeer, APieceBeyondItsMessageIsALoss) {
  link();
  ShmPieceRecord record;
  record.head.type = ShmRecordType::kPiece;
  record.total = 100;
  record.bytes = 50;
  record.offset = UINT64_MAX - 10;
  impostor.push(record);
  expect_loss();
}

TEST_F(ShmHostilePeer, MorePiecesThanItHasBlocksIsALoss) {
  link();
  ShmPieceRecord record;
  record.head.type = ShmRecordType::kPiece;
  record.total = record.bytes = 100;
  for (int i = 0; i < 5; i++) impostor.push(record);
  expect_loss();
}

TEST_F(ShmHostilePeer, MorePiecesOfAMessageThanItHasBytesIsALoss) {
  link();
  std::vector<std::byte> memory(200);
  ShmReceive receive({1, 1}, Sink::place(memory.data()), 100);
  victim.matcher(peer).recv(receive);
  ShmPieceRecord record;
  record.head.type = ShmRecordType::kPiece;
  record.slot = {0, 1};
  record.total = 100;
  record.bytes = 60;
  impostor.push(record);
  record.offset = 40;
  impostor.push(record);
  expect_loss();
  EXPECT_TRUE(receive.done && !receive.status.ok());
}

TEST_F(ShmHostilePeer, APullBesidesAPieceOfTheSameMessageIsALoss) {
  link();
  std::vector<std::byte> memory(100), source(100);
  ShmReceive receive({1, 1}, Sink::place(memory.data()), 100);
  victim.matcher(peer).recv(receive);
  ShmPieceRecord record;
  record.head.type = ShmRecordType::kPiece;
  record.slot = {0, 1};
  record.total = 100;
  record.bytes = 60;
  impostor.push(record);
  record.head.type = ShmRecordType::kPull;
  record.send = {0, 1};
  record.bytes = 100;
  record.address = reinterpret_cast<std::uint64_t>(source.data());
  impostor.half_->validity[0] = 1;
  impostor.push(record);
  expect_loss();
  EXPECT_TRUE(receive.done && !receive.status.ok());
}

// Pieces and pulls for receives that have ended must be given back, so each causes an answer.
struct ShmAnswers : ShmHostilePeer, testing::WithParamInterface<ShmRecordType> {};
INSTANTIATE_TEST_SUITE_P(Of, ShmAnswers,
                         testing::Values(ShmRecordType::kPiece, ShmRecordType::kPull));

TEST_P(ShmAnswers, APeerThatReadsNoneOfThemIsALoss) {
  link();
  impostor.follow_consumption();
  ShmPieceRecord record;
  record.head.type = GetParam();
  record.slot = {7, 7};
  record.total = record.bytes = 100;
  std::size_t asked = 0;
  for (; asked < 8 * kMaxReceives && victim.heard.lost.empty(); asked++) {
    impostor.try_push(record);
    victim.turn();
    // So many an honest peer can cause while it reads nothing.
    if (asked < kMaxReceives) {
      ASSERT_TRUE(victim.heard.lost.empty()) << asked;
    }
  }
  expect_loss("reads nothing");
}

// As groups answer the questions of their members.
struct AnsweringObserver final : Observer {
  explicit AnsweringObserver(ShmNode& node) : node(node) {}
  void on_unmatched_st(PeerId, const MessageKey&, std::uint64_t, bool) override {}
  void on_mismatch_st(PeerId, const MessageKey&, std::uint64_t, std::uint64_t) override {}
  void on_peer_lost_st(PeerId, const Status&) override {}
  void on_peer_left_st(PeerId) override {}
  void on_notice_st(PeerId peer, std::span<const std::byte>) override {
    node.matcher(peer).notify(answer);
  }
  ShmNode& node;
  std::vector<std::byte> answer = std::vector<std::byte>(kMaxNoticeBytes);
};

TEST_F(ShmHostilePeer, QuestionsWhoseAnswersItNeverReadsAreALoss) {
  link();
  impostor.follow_consumption();
  AnsweringObserver observer(victim);
  victim.host.observer = &observer;
  ShmSlotRecord question;
  question.head.type = ShmRecordType::kNotice;
  for (int asked = 0; asked < 20'000 && !victim.matcher(peer).lost(); asked++) {
    impostor.try_push(question);
    victim.turn();
    if (asked < 1000) {
      ASSERT_FALSE(victim.matcher(peer).lost()) << asked;
    }
  }
  victim.host.observer = &victim.heard;
  EXPECT_TRUE(victim.matcher(peer).lost());
}

TEST_F(ShmHostilePeer, WhatOurOwnUserSaysToAPeerThatReadsNothingIsNoLoss) {
  link();
  const std::vector<std::byte> words(kMaxNoticeBytes);
  for (int i = 0; i < 20'000; i++) victim.matcher(peer).notify(words);
  victim.run_until_idle();
  EXPECT_FALSE(victim.matcher(peer).lost());
}

TEST_F(ShmHostilePeer, MoreUnmatchedMessagesThanTheQuotaIsALoss) {
  link();
  ShmKeyRecord record;
  record.head.type = ShmRecordType::kEager;
  for (record.key.tag = 0; record.key.tag <= kEagerQuotaMessages; record.key.tag++)
    impostor.push(record);
  expect_loss("quotas");
  EXPECT_EQ(victim.matcher(peer).unmatched(), kEagerQuotaMessages);
}

TEST_F(ShmHostilePeer, MoreOffersThanTheQuotaIsALoss) {
  link();
  ShmKeyRecord record;
  record.head.type = ShmRecordType::kOffer;
  record.bytes = 1'000'000;
  for (record.key.tag = 0; record.key.tag <= kEagerQuotaMessages; record.key.tag++)
    impostor.push(record);
  expect_loss("quotas");
}

TEST_F(ShmHostilePeer, ADamagedRingIsALoss) {
  link();
  impostor.half_->produced = 12345;
  expect_loss();
}

TEST_F(ShmHostilePeer, AnotherVersionIsTurnedAway) {
  impostor.greeting_.version = kShmVersion + 1;
  impostor.greet();
  for (int i = 0; i < 20; i++) {
    victim.endpoint->on_events(monotonic_now());
    victim.turn();
  }
  EXPECT_FALSE(victim.links[peer]->is_connected());
}

// A record of a random type, mostly of the right length, so that its random fields are reached.
std::vector<std::byte> random_record(std::mt19937& random) {
  const auto type = static_cast<ShmRecordType>(1 + random() % 14);
  std::size_t base = sizeof(ShmSlotRecord);
  if (type == ShmRecordType::kEager || type == ShmRecordType::kWant ||
      type == ShmRecordType::kOffer) {
    base = sizeof(ShmKeyRecord);
  }
  if (type == ShmRecordType::kControl) base = sizeof(ShmControlRecord);
  if (type == ShmRecordType::kPiece || type == ShmRecordType::kPull) base = sizeof(ShmPieceRecord);
  std::vector<std::byte> record(base + (random() % 2) * (random() % 100));
  for (std::byte& byte : record)
    byte = static_cast<std::byte>(random() % 8 == 0 ? random() % 256 : random() % 2);
  auto length = static_cast<std::uint32_t>(record.size() - base);
  if (random() % 16 == 0) length = random();
  record[0] = static_cast<std::byte>(type);
  std::memcpy(record.data() + 4, &length, sizeof length);
  // Small integers in the first fields name things that exist.
  for (std::size_t at = 8; at + 8 <= std::min<std::size_t>(record.size(), 56); at += 4) {
    const std::uint32_t small = random() % 3;
    if (random() % 2) std::memcpy(record.data() + at, &small, sizeof small);
  }
  return record;
}

TEST(ShmHostileRecords, NeverWriteOutsideAReceive) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  constexpr std::size_t kPage = 4096;
  std::size_t taken = 0;
  for (int round = 0; round < 300; round++) {
    ShmNode victim(round % 2 == 0, 1 << 20);
    Impostor impostor(victim.address());
    const PeerId peer = victim.join(impostor.address);
    impostor.greet();
    ASSERT_TRUE(run_all({&victim}, [&] { return victim.links[peer]->is_connected(); }));
    std::vector<std::byte> memory(3 * kPage, std::byte{0x5a});
    const auto source = shm_pattern(20'000, 1);
    ShmReceive receive({1, 1}, Sink::place(memory.data() + kPage), kPage);
    ShmSend send({0, 0}, source.data(), source.size());
    victim.matcher(peer).recv(receive);
    victim.matcher(peer).send(send);
    for (int i = 0; i < 200 && victim.heard.lost.empty(); i++, taken++) {
      impostor.push(random_record(random));
      victim.turn();
    }
    for (std::size_t i = 0; i < kPage; i++) {
      ASSERT_EQ(memory[i], std::byte{0x5a});
      ASSERT_EQ(memory[2 * kPage + i], std::byte{0x5a});
    }
    if (!receive.done) victim.matcher(peer).cancel(receive, Status(Code::kAborted, "test"));
    if (!send.done) victim.matcher(peer).cancel(send, Status(Code::kAborted, "test"));
    victim.run_until_idle();
    EXPECT_TRUE(receive.done && send.done);
  }
  EXPECT_GT(taken, 600u) << "the records were refused too early to test anything";
}

}  // namespace
}  // namespace taco::harp
