#include "support/rank_threads.h"

#include <gtest/gtest.h>

#include <numeric>
#include <thread>

namespace taco::testing {

void on_threads(int count, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back([&body, i] { body(i); });
  for (std::thread& thread : threads) thread.join();
}

static LoopbackOptions network_of(const RankOptions& options) {
  return {.processes = options.world,
          .seed = options.seed,
          .eager_limit = options.eager_limit,
          .processes_per_host = options.ranks_per_host};
}

RankThreads::RankThreads(const RankOptions& options)
    : options_(options), network_(network_of(options)) {
  for (int engine = 1; engine < options.engines; ++engine)
    further_.push_back(std::make_unique<LoopbackNetwork>(network_of(options)));
  std::vector<int> everyone(options.world);
  std::iota(everyone.begin(), everyone.end(), 0);
  world_ = make_group(everyone, "world");
}

RankThreads::~RankThreads() {
  on_threads(size(), [this](int rank) {
    if (world_[rank] != nullptr) (void)world_[rank]->close(kSecond);
  });
  world_.clear();
}

std::vector<std::shared_ptr<pg::Communicator>> RankThreads::make_group(
    const std::vector<int>& members, const std::string& name, const pg::Parent& parent) {
  std::vector<std::shared_ptr<pg::Communicator>> groups;
  const std::uint64_t id = next_id_++;
  for (int rank = 0; rank < static_cast<int>(members.size()); ++rank)
    groups.push_back(enter_group(id, members, rank, name, parent));
  return groups;
}

std::shared_ptr<pg::Communicator> RankThreads::enter_group(std::uint64_t id,
                                                           const std::vector<int>& members,
                                                           int rank, const std::string& name,
                                                           const pg::Parent& parent,
                                                           std::optional<pg::WindowMemory> window) {
  pg::GroupOptions options;
  options.id = id;
  options.window = window;
  options.name = name;
  options.parent = parent;
  options.rank = rank;
  options.world = static_cast<int>(members.size());
  options.timeout = options_.timeout;
  options.algorithm = options_.algorithm;
  options.intra_size = options_.intra_size;
  for (const int process : members) {
    options.peers.push_back(LoopbackNetwork::peer_of(process));
    options.global_ranks.push_back(process);
    options.host_of_rank.push_back(options_.ranks_per_host > 0 ? process / options_.ranks_per_host
                                                               : 0);
  }
  // Hosts are counted from 0 in the order in which the ranks name them.
  std::vector<int> seen;
  for (int& host : options.host_of_rank) {
    std::size_t index = 0;
    while (index < seen.size() && seen[index] != host) ++index;
    if (index == seen.size()) seen.push_back(host);
    host = static_cast<int>(index);
  }
  std::vector<pg::FurtherEngine> further;
  for (const auto& network : further_)
    further.push_back({network->stack(members[rank]), options.peers});
  auto group = pg::Communicator::create(network_.stack(members[rank]), options, further);
  EXPECT_TRUE(group.ok()) << group.status().message();
  return *group;
}

void RankThreads::run(const std::function<void(int, pg::Communicator&)>& body) {
  on_threads(size(), [&](int rank) { body(rank, *world_[rank]); });
}

void RankThreads::run_in_group(const std::vector<int>& members,
                               const std::function<void(int rank, pg::Communicator& group)>& body) {
  const auto groups = make_group(members, "short-lived");
  on_threads(static_cast<int>(groups.size()), [&](int rank) { body(rank, *groups[rank]); });
}

}  // namespace taco::testing
