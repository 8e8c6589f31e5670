// Two simulated processes with an endpoint each, connected to one another, and operations that note
// what came of them. Test support.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "remote/directory.h"
#include "support/sim_cluster.h"

namespace taco::remote {

using harp::SimCluster;
using harp::SimFaults;
using Bytes = std::vector<std::byte>;

inline Bytes random_bytes(std::size_t count, std::uint64_t seed) {
  Bytes bytes(count);
  harp::SimRandom(seed).fill(bytes);
  return bytes;
}

// A read or write with the memory at this end of it.
struct Noted : Operation {
  Noted(Action which, Bytes here, const Handle& there) : local(std::move(here)) {
    action = which;
    memory = local.data();
    bytes = local.size();
    remote = there;
    on_done = [](Operation& operation, const Status& status) {
      Noted& self = static_cast<Noted&>(operation);
      ++self.calls;
      self.outcome = status;
    };
  }
  Bytes local;
  int calls = 0;
  Status outcome;
};
using NotedPtr = std::unique_ptr<Noted>;

class RemotePair {
 public:
  explicit RemotePair(std::uint64_t seed, const SimFaults& faults = {}, std::uint32_t nodes = 2,
                      std::uint64_t part_bytes = harp::kPartBytes)
      : cluster(nodes, seed, faults) {
    for (std::uint32_t node = 0; node < nodes; ++node) {
      directories.push_back(std::make_unique<Directory>(cluster[node].loop()));
      ends.push_back(std::make_unique<EndpointCore>(id_of(node), part_bytes));
      directories[node]->add_st(*ends[node]);
      cluster[node].loop().services().set(kRemoteMemory, directories[node].get());
    }
  }
  ~RemotePair() { cluster.end(); }

  static std::uint64_t id_of(std::uint32_t node) {
    return harp::group_id(kRemoteMemory, 0x1000 + node);
  }
  void connect(std::uint32_t from, std::uint32_t to) {
    ends[from]->connect_st(cluster[from].id_of(to), id_of(to), "node " + std::to_string(to),
                           in_turn(from));
  }
  void connect_both() {
    connect(0, 1);
    connect(1, 0);
  }
  // Requests are posted in a turn.
  harp::Transport& in_turn(std::uint32_t node) {
    cluster[node].loop().begin_turn_st(cluster.now(), 0);
    return cluster[node].loop();
  }
  Handle expose(std::uint32_t node, Bytes& memory) {
    Token token;
    for (std::byte& byte : token) byte = static_cast<std::byte>(cluster.network().random().next());
    return ends[node]->owner.add_st(memory.data(), memory.size(), token);
  }
  Noted& start(std::uint32_t node, Action action, Bytes local, const Handle& remote) {
    operations.push_back(std::make_unique<Noted>(action, std::move(local), remote));
    ends[node]->requester.start_st(*operations.back(), in_turn(node));
    return *operations.back();
  }
  bool all_done() const {
    for (const NotedPtr& each : operations)
      if (each->calls == 0) return false;
    return true;
  }
  bool run(const std::function<bool()>& done, const std::function<void()>& disturb = nullptr) {
    return cluster.run(cluster.now() + 120 * kSecond, done, disturb);
  }
  Status run_one(Noted& operation) {
    EXPECT_TRUE(run([&] { return operation.calls > 0; })) << "it has no end";
    EXPECT_EQ(operation.calls, 1);
    return operation.outcome;
  }

  SimCluster cluster;
  std::vector<std::unique_ptr<Directory>> directories;
  std::vector<std::unique_ptr<EndpointCore>> ends;
  std::vector<NotedPtr> operations;
};

}  // namespace taco::remote
