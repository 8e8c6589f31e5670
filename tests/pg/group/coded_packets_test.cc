// Gradients in fewer bytes over real transports, between processes: what is cut into packets and
// rings, and partly added up as it arrives, is the same on all ranks.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "harp/engine/stacks.h"
#include "kernels/kernels.h"
#include "pg/algorithms/gradient_shard.h"
#include "pg/codecs/half_codec.h"
#include "pg/codecs/top_k_codec.h"
#include "pg/communicator.h"
#include "support/processes.h"

namespace taco::pg {
namespace {

using harp::StackOptions;
using testing::Fellowship;
using testing::run_processes;
using Floats = std::vector<float>;
using Force = StackOptions::Force;

// A rank a process. Which rank is on which host is what the test says, whatever carries the bytes.
class OneRank {
 public:
  OneRank(Fellowship& fellowship, const std::vector<int>& hosts, Force transport) {
    auto made = harp::acquire_beside({}, {.transport = transport});
    EXPECT_TRUE(made.ok()) << made.status().message();
    stack_ = std::move(made).value();
    const std::vector<std::string> all = fellowship.all_gather(std::string(stack_->address()));
    GroupOptions options;
    options.id = 0xc0ded;
    options.name = "packets";
    options.rank = fellowship.rank();
    options.world = fellowship.world();
    options.timeout = 60 * kSecond;
    options.host_of_rank = hosts;
    for (int rank = 0; rank < options.world; ++rank) {
      harp::PeerId peer = 0;
      if (rank != options.rank) peer = stack_->add_peer(all[rank]).value();
      options.peers.push_back(peer);
    }
    auto group = Communicator::create(stack_, options);
    EXPECT_TRUE(group.ok()) << group.status().message();
    group_ = *group;
    fellowship.barrier();
  }
  ~OneRank() {
    (void)group_->close(5 * kSecond);
    group_.reset();
    stack_->close();
  }
  Communicator& group() { return *group_; }

 private:
  std::shared_ptr<harp::Stack> stack_;
  std::shared_ptr<Communicator> group_;
};

Floats gradient_of(int rank, std::size_t count) {
  std::mt19937 random(static_cast<unsigned>(rank) + 1);
  std::uniform_real_distribution<float> values(-1, 1);
  Floats made(count);
  for (float& value : made) value = values(random);
  return made;
}

void average(Communicator& group, Floats& gradient, const std::shared_ptr<const Codec>& codec) {
  OperationSpec spec{
      .kind = Kind::kAllReduce, .dtype = kernels::Dtype::kF32, .op = kernels::ReduceOp::kAvg};
  const std::size_t bytes = gradient.size() * sizeof(float);
  spec.inputs = spec.outputs = {{reinterpret_cast<std::byte*>(gradient.data()), bytes}};
  spec.codec = codec;
  spec.caller_will_wait = true;
  if (codec->has_memory()) {
    const Shard shard =
        gradient_shard(bytes, sizeof(float), group.topology(), group.options().rank);
    spec.feedback = std::make_shared<Feedback>();
    spec.feedback->residual.resize(shard.bytes / sizeof(float));
  }
  const Status status = (*group.start(std::move(spec)))->wait(0);
  ASSERT_TRUE(status.ok()) << status.message();
}

// The mean error of an element, in units of the mean magnitude.
double error_of(const Floats& got, int world) {
  std::vector<double> exact(got.size());
  for (int rank = 0; rank < world; ++rank) {
    const Floats one = gradient_of(rank, got.size());
    for (std::size_t i = 0; i < got.size(); ++i) exact[i] += one[i] / double{1.0 * world};
  }
  double error = 0, magnitude = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    error += std::abs(got[i] - exact[i]);
    magnitude += std::abs(exact[i]);
  }
  return magnitude == 0 ? 0 : error / magnitude;
}

class CodedPackets : public ::testing::TestWithParam<Force> {};

TEST_P(CodedPackets, GiveAllRanksTheSameBitsNearTheExactOnes) {
  struct Case {
    std::shared_ptr<const Codec> codec;
    double least, most;  // error
  };
  for (const std::vector<int>& hosts : std::vector<std::vector<int>>{{0, 0, 1, 1}, {0, 1, 2, 1}}) {
    SCOPED_TRACE(::testing::PrintToString(hosts));
    const int world = static_cast<int>(hosts.size());
    const auto body = [&](Fellowship& fellowship) {
      OneRank rank(fellowship, hosts, GetParam());
      const std::vector<Case> cases = {{half_codec(HalfFormat::kF16), 1e-6, 1e-3},
                                       {half_codec(HalfFormat::kBF16), 1e-5, 1e-2},
                                       {*top_k_codec({.ratio = 0.05}), 0.1, 1}};
      for (const std::size_t count : {std::size_t{1}, std::size_t{777}, std::size_t{400'001}}) {
        for (const Case& one : cases) {
          Floats gradient = gradient_of(fellowship.rank(), count);
          average(rank.group(), gradient, one.codec);
          const double error = error_of(gradient, world);
          EXPECT_LE(error, one.most) << one.codec->name() << " " << count;
          if (count > 1000) {
            EXPECT_GE(error, one.least) << one.codec->name() << ": was it coded?";
          }
          const std::uint32_t sum =
              kernels::crc32c(0, gradient.data(), gradient.size() * sizeof(float));
          const auto sums = fellowship.all_gather(std::to_string(sum));
          EXPECT_EQ(sums, std::vector<std::string>(world, sums[0])) << one.codec->name();
        }
      }
    };
    EXPECT_EQ(run_processes({world, 120 * kSecond, {}}, body), std::vector<int>(world, 0));
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, CodedPackets, ::testing::Values(Force::kShm, Force::kUdp));

}  // namespace
}  // namespace taco::pg
