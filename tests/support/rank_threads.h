// A group whose ranks are threads of the test, over the loopback network. Tests speak to it as to
// any other: what runs is the real Communicator.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pg/communicator.h"
#include "support/loopback_stack.h"

namespace taco::testing {

struct RankOptions {
  int world = 2;
  std::uint64_t seed = 0;
  Duration timeout = 20 * kSecond;
  std::string algorithm;
  int ranks_per_host = 0;  // 0: one host
  int intra_size = 0;      // GroupOptions::intra_size
  std::size_t eager_limit = 256;
  int engines = 1;  // of each process; groups cut large operations among them
};

class RankThreads {
 public:
  explicit RankThreads(const RankOptions& options);
  ~RankThreads();

  // Another group over the same processes: members by process, in rank order. The result is by
  // rank.
  std::vector<std::shared_ptr<pg::Communicator>> make_group(const std::vector<int>& members,
                                                            const std::string& name,
                                                            const pg::Parent& parent = {});
  // One rank's side of a group: what it believes about the members is its own affair.
  std::shared_ptr<pg::Communicator> enter_group(std::uint64_t id, const std::vector<int>& members,
                                                int rank, const std::string& name,
                                                const pg::Parent& parent = {},
                                                std::optional<pg::WindowMemory> window = {});
  // Calls `body` for every rank on a thread of its own and waits for all of them.
  void run(const std::function<void(int rank, pg::Communicator& group)>& body);
  // The same in a group made for it, which the body closes or leaves to this.
  void run_in_group(const std::vector<int>& members,
                    const std::function<void(int rank, pg::Communicator& group)>& body);

  pg::Communicator& group(int rank) { return *world_[rank]; }
  void close(int rank, Duration linger) { (void)world_[rank]->close(linger); }
  // The network of the groups' own engine, or of a further one.
  LoopbackNetwork& network(int engine = 0) {
    return engine == 0 ? network_ : *further_[engine - 1];
  }
  int size() const { return options_.world; }

 private:
  RankOptions options_;
  LoopbackNetwork network_;
  std::vector<std::unique_ptr<LoopbackNetwork>> further_;  // of further engines
  std::uint64_t next_id_ = 0x7ac0;
  std::vector<std::shared_ptr<pg::Communicator>> world_;
};

// Calls `body(i)` for 0 <= i < count, each on its own thread, and joins them.
void on_threads(int count, const std::function<void(int)>& body);

}  // namespace taco::testing
