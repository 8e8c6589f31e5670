// Two or more sessions over a simulated network, one behaviour at a time.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "support/sim_cluster.h"

namespace taco::harp {
namespace {

struct Outcome {
  int calls = 0;
  Status status;
};

void note_send(SendRequest& request, const Status& status) {
  auto& outcome = *static_cast<Outcome*>(request.context);
  ++outcome.calls;
  outcome.status = status;
}

void note_recv(RecvRequest& request, const Status& status) {
  auto& outcome = *static_cast<Outcome*>(request.context);
  ++outcome.calls;
  outcome.status = status;
}

struct Transfer {
  std::vector<std::byte> source, target;
  SendRequest send;
  RecvRequest recv;
  Outcome sent, received;

  Transfer(std::uint64_t tag, std::size_t bytes, std::uint64_t signature = 7)
      : source(bytes), target(bytes) {
    SimRandom random(tag + 99);
    for (std::byte& byte : source) byte = static_cast<std::byte>(random.next());
    send.key = recv.key = {1, tag};
    send.signature = recv.signature = signature;
    send.data = source.data();
    send.bytes = recv.max_bytes = bytes;
    send.on_done = note_send;
    send.context = &sent;
    recv.sink = Sink::place(target.data());
    recv.on_done = note_recv;
    recv.context = &received;
  }
  bool done() const { return sent.calls > 0 && received.calls > 0; }
  void check() const {
    EXPECT_EQ(sent.calls, 1);
    EXPECT_EQ(received.calls, 1);
    EXPECT_TRUE(sent.status.ok()) << sent.status.message();
    EXPECT_TRUE(received.status.ok()) << received.status.message();
    EXPECT_EQ(recv.bytes, source.size());
    EXPECT_TRUE(source == target);
  }
};

TEST(Session, DeliversMessagesOfAllSizesWhicheverSideComesFirst) {
  for (const bool receive_first : {true, false}) {
    for (const std::size_t bytes :
         {0ul, 1ul, 16ul, 1144ul, 1145ul, 1440ul, 1441ul, 2880ul, 100'000ul, 3'000'001ul}) {
      SimCluster cluster(2, 1, {});
      Transfer transfer(5, bytes);
      if (receive_first) cluster[1].matcher(0).recv(transfer.recv);
      if (receive_first) cluster.run(10 * kMillisecond, [] { return false; });
      cluster[0].matcher(1).send(transfer.send);
      if (!receive_first) cluster.run(10 * kMillisecond, [] { return false; });
      if (!receive_first) cluster[1].matcher(0).recv(transfer.recv);
      ASSERT_TRUE(cluster.run(5 * kSecond, [&] { return transfer.done(); })) << bytes;
      transfer.check();
      EXPECT_EQ(cluster[0].counters().retransmits, 0u);
      EXPECT_EQ(cluster[1].sim_nic().overflows(), 0u);
    }
  }
}

TEST(Session, GoodbyeIsAcknowledgedAndBothSidesFallQuiet) {
  SimCluster cluster(2, 1, {});
  Transfer transfer(5, 50'000);
  cluster[1].matcher(0).recv(transfer.recv);
  cluster[0].matcher(1).send(transfer.send);
  cluster[0].leave();
  ASSERT_TRUE(cluster.run(5 * kSecond, [&] {
    return transfer.done() && !cluster[0].busy() && !cluster[1].busy();
  }));
  transfer.check();
  cluster[1].leave();
  EXPECT_TRUE(cluster.run(cluster.now() + kSecond, [&] { return !cluster[1].busy(); }));
}

}  // namespace
}  // namespace taco::harp
