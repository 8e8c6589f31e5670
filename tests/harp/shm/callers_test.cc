// Callers at a process's socket: peers whose links nobody has opened yet, those for whom no
// descriptor is left, and strangers.
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "harp/shm/socket.h"
#include "support/shm_node.h"

namespace taco::harp {
namespace {

// The highest number that a descriptor has, and one more.
rlim_t descriptors_in_use() {
  const OwnFd next(eventfd(0, EFD_CLOEXEC));
  return static_cast<rlim_t>(next.get());
}

// While it lives, this process may have so many descriptors beyond those that it has.
class RoomFor {
 public:
  explicit RoomFor(rlim_t more) {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    rlimit low = before_;
    low.rlim_cur = descriptors_in_use() + more;
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  }
  ~RoomFor() { EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before_), 0); }
  RoomFor(const RoomFor&) = delete;
  RoomFor& operator=(const RoomFor&) = delete;

 private:
  rlimit before_{};
};
// One more is enough to be called, and not for what the call brings.
constexpr rlim_t kCallAlone = 1;

auto open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return std::distance(begin(all), end(all));
}

// Its memory is mapped by then, and what it greeted with is not needed again.
TEST(ShmLinks, APeerThatWaitsForItsLinkToBeOpenedHoldsFourDescriptorsAtBothEnds) {
  ShmNode a(false), b(false);
  const auto before = open_descriptors();
  const PeerId ab = a.join(b.address());
  const std::byte word{1};
  ShmSend send({1, 2}, &word, 1);
  a.matcher(ab).send(send);
  for (int i = 0; i < 3; ++i) {
    a.endpoint->on_events(monotonic_now());
    b.endpoint->on_events(monotonic_now());
    EXPECT_LE(open_descriptors(), before + 4);
  }
  EXPECT_GT(open_descriptors(), before + 2) << "nobody has called";
  std::byte target{};
  ShmReceive receive({1, 2}, Sink::place(&target), 1);
  b.matcher(b.join(a.address())).recv(receive);
  EXPECT_TRUE(run_all({&a, &b}, [&] {
    return receive.done && a.links[ab]->is_connected() && open_descriptors() <= before + 4;
  })) << "more than a doorbell and a process at each end";
}

// An engine says goodbye to those that are connected, and then to those that came meanwhile. Its
// process may live on, and keep all of this.
TEST(ShmLinks, APeerThatConnectsWhileTheOtherOneLeavesIsToldSo) {
  ShmNode stays(false), leaves(false);
  const PeerId there = stays.join(leaves.address()), here = leaves.join(stays.address());
  leaves.links[here]->leave();
  ShmReceive receive({1, 1}, Sink(), 0);
  stays.matcher(there).recv(receive);
  stays.links[there]->connect();
  ASSERT_TRUE(run_all({&stays, &leaves}, [&] {
    return stays.links[there]->is_connected() && leaves.links[here]->is_connected();
  }));
  leaves.endpoint->stop();
  EXPECT_TRUE(run_all(
      {&stays}, [&] { return receive.done; }, 5 * kSecond));
  EXPECT_EQ(receive.status.code(), Code::kPeerLost);
  EXPECT_EQ(stays.heard.left.size(), 1u);
  EXPECT_TRUE(stays.heard.lost.empty());
}

// As the ranks of a large host do when they all begin with all others.
TEST(ShmLinks, TwoThatCallEachOtherConnectAlsoBehindManyCallers) {
  ShmNode early(false), late(false);
  const PeerId there = early.join(late.address()), here = late.join(early.address());
  std::vector<OwnFd> others;
  for (int i = 0; i < 200; ++i) {
    auto socket = shm_connect(late.address().name);
    ASSERT_TRUE(socket.ok()) << socket.status().message();
    others.push_back(std::move(socket).value());
  }
  std::byte word{1}, target{};
  ShmSend send({1, 2}, &word, 1);
  ShmReceive receive({1, 2}, Sink::place(&target), 1);
  early.matcher(there).recv(receive);
  early.links[there]->connect();
  late.matcher(here).send(send);
  ASSERT_TRUE(run_all({&early}, [&] { return early.links[there]->is_connected(); }));
  EXPECT_TRUE(run_all({&early, &late}, [&] { return receive.done; }));
  EXPECT_TRUE(receive.status.ok()) << receive.status.message();
  EXPECT_TRUE(run_all({&early, &late}, [&] { return late.links[here]->is_connected(); }));
  EXPECT_TRUE(late.heard.lost.empty()) << late.heard.lost.front().second.message();
}

// Wherever it runs out, in the middle of connecting, they connect or an error says why not.
TEST(ShmLinks, AnErrorNamesTheLimitOfDescriptorsWhereNoneIsLeft) {
  int refused = 0, connected = 0;
  for (rlim_t room = 0; room < 24; ++room) {
    SCOPED_TRACE("room for " + std::to_string(room));
    ShmNode a(false), b(false);
    const PeerId ab = a.join(b.address()), ba = b.join(a.address());
    const std::byte word{1};
    ShmSend send({1, 2}, &word, 1);
    std::byte target{};
    ShmReceive receive({1, 2}, Sink::place(&target), 1);
    const auto lost = [&] { return !a.heard.lost.empty() || !b.heard.lost.empty(); };
    {
      const RoomFor few(room);
      b.matcher(ba).recv(receive);
      a.matcher(ab).send(send);
      EXPECT_TRUE(run_all({&a, &b}, [&] { return receive.done || lost(); }));
    }
    (lost() ? refused : connected) += 1;
    for (const ShmNode* node : {&a, &b}) {
      for (const auto& [peer, why] : node->heard.lost) {
        EXPECT_NE(why.message().find("(ulimit -n)"), std::string::npos) << why.message();
      }
    }
  }
  EXPECT_GT(refused, 4);
  EXPECT_GT(connected, 4);
}

// The peer that had called, and was refused, gives up before it is called itself.
TEST(ShmLinks, AnErrorNamesTheLimitOfDescriptorsWhereOneThatWasRefusedHangsUp) {
  ShmNode a(false), b(false);
  const PeerId ab = a.join(b.address()), ba = b.join(a.address());
  std::byte word{1}, target{};
  ShmReceive receive({1, 2}, Sink::place(&target), 1);
  ShmSend send({1, 2}, &word, 1);
  b.matcher(ba).recv(receive);
  b.links[ba]->connect();
  {
    const RoomFor few(kCallAlone);
    ASSERT_TRUE(run_all({&a, &b}, [&] { return !b.heard.lost.empty(); }));
  }
  a.matcher(ab).send(send);
  ASSERT_TRUE(run_all({&a, &b}, [&] { return !a.heard.lost.empty(); }));
  for (const ShmNode* node : {&a, &b}) {
    const Status& why = node->heard.lost.front().second;
    EXPECT_NE(why.message().find("(ulimit -n)"), std::string::npos) << why.message();
  }
}

// Two call each other, and one has what it needs before the other finds that it has no descriptor
// left: it would wait for ever for a peer that has given it up, and whose process lives.
TEST(ShmLinks, APeerThatIsUpHearsThatTheOtherHasNoDescriptorLeft) {
  ShmNode up(false), poor(false);
  const PeerId there = up.join(poor.address()), here = poor.join(up.address());
  std::byte word{1}, target{};
  ShmReceive receive({1, 2}, Sink::place(&target), 1);
  up.matcher(there).recv(receive);
  up.links[there]->connect();
  poor.links[here]->connect();
  ASSERT_TRUE(run_all({&up}, [&] { return up.links[there]->is_connected(); }));
  {
    const RoomFor few(kCallAlone);
    ASSERT_TRUE(run_all({&poor}, [&] { return !poor.heard.lost.empty(); }));
  }
  ASSERT_TRUE(run_all({&up}, [&] { return receive.done; }));
  EXPECT_EQ(receive.status.code(), Code::kPeerLost);
  for (const ShmNode* node : {&up, &poor}) {
    ASSERT_EQ(node->heard.lost.size(), 1U);
    const Status& why = node->heard.lost.front().second;
    EXPECT_NE(why.message().find("(ulimit -n)"), std::string::npos) << why.message();
  }
}

// A process that comes once descriptors are free again finds nothing changed.
TEST(ShmLinks, AProcessThatHadNoDescriptorLeftForOnePeerMeetsOthersLater) {
  ShmNode a(false), refused(false), later(false);
  a.join(refused.address());
  const PeerId there = refused.join(a.address());
  const PeerId from = a.join(later.address()), to = later.join(a.address());
  refused.links[there]->connect();
  {
    const RoomFor few(kCallAlone);
    ASSERT_TRUE(run_all({&a, &refused}, [&] { return !refused.heard.lost.empty(); }));
  }
  std::byte word{1}, target{};
  ShmReceive receive({1, 2}, Sink::place(&target), 1);
  ShmSend send({1, 2}, &word, 1);
  a.matcher(from).recv(receive);
  later.matcher(to).send(send);
  ASSERT_TRUE(run_all({&a, &later}, [&] { return receive.done; }));
  EXPECT_TRUE(receive.status.ok()) << receive.status.message();
  EXPECT_EQ(target, word);
  EXPECT_TRUE(a.links[from]->is_connected());
}

// The kernel says who connects by what he was then.
void connect_as_another_user(const ShmAddress& to, std::vector<OwnFd>& sockets, std::size_t count) {
  constexpr uid_t kNobody = 65534;
  ASSERT_EQ(seteuid(kNobody), 0);
  for (std::size_t i = 0; i < count; ++i) {
    auto socket = shm_connect(to.name);
    if (!socket.ok()) break;
    sockets.push_back(std::move(socket).value());
  }
  ASSERT_EQ(seteuid(0), 0);
}

std::size_t hung_up(const std::vector<OwnFd>& sockets) {
  return static_cast<std::size_t>(std::ranges::count_if(sockets, [](const OwnFd& socket) {
    pollfd one{socket.get(), POLLIN, 0};
    return poll(&one, 1, 0) == 1 && (one.revents & POLLHUP) != 0;
  }));
}

TEST(ShmStrangers, AreShownTheDoorAFewAtATime) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can connect as somebody else";
  ShmNode node, friendly;
  std::vector<OwnFd> strangers;
  constexpr std::size_t kStrangers = 300;
  ASSERT_NO_FATAL_FAILURE(connect_as_another_user(node.address(), strangers, kStrangers));
  ASSERT_EQ(strangers.size(), kStrangers);
  Time now = monotonic_now();
  node.endpoint->on_events(now);
  const std::size_t first = hung_up(strangers);
  EXPECT_GT(first, 0u);
  EXPECT_LE(first, 16u) << "a turn waits for whoever connects";
  EXPECT_LT(node.endpoint->next_deadline(), kNever);
  EXPECT_GE(node.endpoint->next_deadline(), now + 20 * kMillisecond) << "more than 800 a second";
  ASSERT_TRUE(node.endpoint->prepare_sleep()) << "it has nothing to do meanwhile";
  node.endpoint->cancel_sleep();
  for (int i = 0; i < 9; ++i) node.endpoint->on_events(now);
  EXPECT_EQ(hung_up(strangers), first) << "it does not rest";
  for (int i = 0; i < 100 && hung_up(strangers) < kStrangers; ++i) {
    now = std::max(now, node.endpoint->next_deadline());
    node.endpoint->on_events(now);
  }
  EXPECT_EQ(hung_up(strangers), kStrangers);
  const PeerId there = node.join(friendly.address());
  friendly.join(node.address());
  const std::byte word{1};
  friendly.matcher(0).notify({&word, 1});
  EXPECT_TRUE(run_all({&node, &friendly}, [&] { return !node.heard.notices.empty(); })) << there;
}

// Or each of them would wake an engine that sleeps.
TEST(ShmStrangers, AreNotListenedToForAWhileAfterOne) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can connect as somebody else";
  ShmNode node;
  std::vector<OwnFd> strangers;
  ASSERT_NO_FATAL_FAILURE(connect_as_another_user(node.address(), strangers, 1));
  node.endpoint->on_events(monotonic_now());
  EXPECT_EQ(hung_up(strangers), 1u);
  EXPECT_LT(node.endpoint->next_deadline(), kNever);
}

}  // namespace
}  // namespace taco::harp
