// Whose turn it is to transmit, when some of the Nic's sockets are full.
#include "harp/session/session_host.h"

#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <vector>

#include "harp/session/session.h"

namespace taco::harp {
namespace {

// Takes as many packets from each local path as it has room for, and notes every attempt.
class NarrowNic final : public Nic {
 public:
  struct Attempt {
    std::uint32_t path;
    std::byte destination;
    bool taken;
    bool operator==(const Attempt&) const = default;
  };
  const NicCapabilities& capabilities() const override { return capabilities_; }
  std::size_t send_st(std::span<const TxPacket> packets) override {
    const TxPacket& packet = packets[0];
    const bool taken = room[packet.local_path] > 0;
    attempts.push_back({packet.local_path, packet.destination->bytes[0], taken});
    if (taken) --room[packet.local_path];
    return taken ? 1 : 0;
  }
  std::span<const NicAddress> addresses() const override { return addresses_; }
  std::span<const NicDescriptor> descriptors() const override { return {}; }
  bool is_full_st(std::uint32_t path) const override { return room[path] == 0; }
  std::size_t receive_st(std::span<RxPacket>) override { return 0; }
  void close_st() override {}

  std::array<int, 2> room{};
  std::vector<Attempt> attempts;

 private:
  NicCapabilities capabilities_;
  const std::array<NicAddress, 2> addresses_{{{{}, 1472}, {{}, 1472}}};
};

class Host final : public SessionHost {
 public:
  Host(Nic& nic, BytePool& buffers) : SessionHost(nic, buffers) {}
  void arm(Timer& timer, Time deadline) override { timer.deadline = deadline; }
  void disarm(Timer& timer) override { timer.deadline = kNever; }
  std::uint64_t random() override { return ++last_; }
  std::vector<std::uint32_t> ways_to(const Endpoint&) override { return {}; }
  std::vector<Endpoint> published_by(std::uint64_t) override { return {}; }

 private:
  std::uint64_t last_ = 0;
};

struct SilentEvents final : LinkEvents {
  void on_eager(const MessageKey&, std::uint64_t, std::span<const std::byte>) override {}
  void on_want(const Want&) override {}
  void on_offer(const Offer&) override {}
  void on_control(const Control&) override {}
  void on_notice(std::span<const std::byte>) override {}
  RecvRequest* receive_of(SlotId) override { return nullptr; }
  void receive_finished(SlotId, const Status&) override {}
  void send_finished(SendRequest&, const Status&) override {}
  void on_lost(const Status&) override {}
  void on_left() override {}
};

// Every session begins with one packet to send: its hello.
class TransmitTurnTest : public ::testing::Test {
 protected:
  void add(std::uint32_t local_path, int name) {
    SessionConfig config;
    AddressPair& way = config.ways.emplace_back();
    way.local = local_path;
    way.remote.bytes[0] = static_cast<std::byte>(name);
    way.remote.size = 1;
    sessions_.emplace_back(std::move(config), host_, events_);
  }
  std::vector<NarrowNic::Attempt> turn(int room_on_0, int room_on_1) {
    nic_.room = {room_on_0, room_on_1};
    nic_.attempts.clear();
    host_.run_transmits();
    return nic_.attempts;
  }
  using Attempts = std::vector<NarrowNic::Attempt>;
  static constexpr std::byte kA{1}, kB{2}, kC{3};

  NarrowNic nic_;
  BytePool buffers_;
  Host host_{nic_, buffers_};
  SilentEvents events_;
  std::deque<Session> sessions_;
};

TEST_F(TransmitTurnTest, AFullSocketEndsOnlyTheTurnsOfThoseWhoSendThroughIt) {
  add(0, 1);
  add(1, 2);
  add(0, 3);
  EXPECT_EQ(turn(0, 5), (Attempts{{0, kA, false}, {1, kB, true}})) << "C need not try";
  EXPECT_FALSE(host_.nic_full()) << "B may have more to send";
  EXPECT_TRUE(turn(0, 5).size() == 1 && host_.has_ready());
  EXPECT_TRUE(host_.nic_full()) << "those left wait for room, and for nothing else";
  EXPECT_FALSE(host_.run_transmits());
}

TEST_F(TransmitTurnTest, WhoFoundTheSocketFullGoesBehindThoseWhoHaveNotTried) {
  add(0, 1);
  add(0, 2);
  add(0, 3);
  EXPECT_EQ(turn(0, 0), (Attempts{{0, kA, false}}));
  EXPECT_EQ(turn(1, 0), (Attempts{{0, kB, true}, {0, kC, false}}));
  // C tried last, and A before it.
  EXPECT_EQ(turn(1, 0), (Attempts{{0, kA, true}, {0, kC, false}}));
  EXPECT_EQ(turn(1, 0), (Attempts{{0, kC, true}}));
  EXPECT_FALSE(host_.nic_full());
}

}  // namespace
}  // namespace taco::harp
