// Answers to a peer that does not acknowledge them are bounded: each question costs it next to
// nothing, and each answer memory here until it is known to have arrived.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "harp/quotas.h"
#include "support/sim_cluster.h"

namespace taco::harp {
namespace {

// A service that answers each notice by so many, as long as a notice can be.
struct Answering final : Observer {
  Answering(SimProcess& process, int answers) : process(process), answers(answers) {
    process.loop().services().set(Service::kCollectives, this);
  }
  void on_unmatched_st(PeerId, const MessageKey&, std::uint64_t, bool) override {}
  void on_mismatch_st(PeerId, const MessageKey&, std::uint64_t, std::uint64_t) override {}
  void on_peer_lost_st(PeerId, const Status& status) override { why = status.message(); }
  void on_peer_left_st(PeerId) override {}
  void on_notice_st(PeerId peer, std::span<const std::byte>) override {
    ++heard;
    for (int i = 0; i < answers; ++i) process.loop().notify_st(peer, words);
    most = std::max(most, process.session(1)->memory_bytes());
  }

  SimProcess& process;
  const int answers;
  const std::vector<std::byte> words = std::vector<std::byte>(kMaxNoticeBytes);
  int heard = 0;
  std::size_t most = 0;  // that the session with the one who asks has held
  std::string why;
};

class Answers : public ::testing::Test {
 protected:
  Answers() : cluster_(2, 1, {}) {
    cluster_[0].matcher(1);
    cluster_[1].matcher(0);
    EXPECT_TRUE(run([&] {
      return cluster_[0].session(1)->established() && cluster_[1].session(0)->established();
    }));
  }
  ~Answers() override { cluster_.end(); }

  bool run(const std::function<bool()>& done, Duration time = 5 * kSecond) {
    return cluster_.run(cluster_.now() + time, done);
  }
  void ask(int times, std::size_t bytes = 1) {
    const std::vector<std::byte> question(bytes);
    for (int i = 0; i < times; ++i) cluster_[1].matcher(0).notify(question);
  }

  SimCluster cluster_;
};

// None of node 0's packets arrives, so that it hears of none that it has arrived.
TEST_F(Answers, that_are_never_acknowledged_end_the_peer_before_they_take_much_memory) {
  Answering observer(cluster_[0], 2000);  // its window lets it ask a few times
  cluster_.network().kill_link(0, 1, kNever);
  ask(20);
  run([&] { return cluster_[0].matcher(1).lost(); });
  EXPECT_TRUE(cluster_[0].matcher(1).lost()) << observer.heard << " questions";
  EXPECT_NE(observer.why.find("goes on asking"), std::string::npos) << observer.why;
  EXPECT_GT(observer.most, kMaxAnswerBytes / 2) << "an honest peer may ask for that";
  EXPECT_LT(observer.most, 4 * kMaxAnswerBytes);  // blocks are larger than what is in them
}

TEST_F(Answers, that_are_acknowledged_are_as_many_as_it_likes) {
  Answering observer(cluster_[0], 20);
  const int rounds = static_cast<int>(2 * kMaxAnswerBytes / (20 * kMaxNoticeBytes));
  for (int round = 0; round < rounds; ++round) {
    ask(1);
    ASSERT_TRUE(run([&] { return observer.heard == round + 1 && !cluster_[0].busy(); }));
  }
  EXPECT_EQ(observer.why, "");
}

// A program's own words are its own affair.
TEST_F(Answers, are_not_what_nobody_has_asked_for) {
  Answering observer(cluster_[0], 0);
  cluster_.network().kill_link(0, 1, cluster_.now() + kSecond);
  const std::size_t count = 2 * kMaxAnswerBytes / kMaxNoticeBytes;
  for (std::size_t i = 0; i < count; ++i) cluster_[0].matcher(1).notify(observer.words);
  ask(10);
  EXPECT_TRUE(run([&] { return observer.heard == 10 && !cluster_[0].busy(); }, 60 * kSecond));
  EXPECT_EQ(observer.why, "");
}

}  // namespace
}  // namespace taco::harp
