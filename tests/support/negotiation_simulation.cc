#include "support/negotiation_simulation.h"

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "base/mixed_bits.h"
#include "pg/controller/agreement.h"
#include "support/negotiating_ranks.h"

namespace taco::pg::controller {
namespace {

using Random = std::mt19937_64;

int between(Random& random, int least, int most) {
  return std::uniform_int_distribution<int>(least, most)(random);
}

// The requests of a program: a name's n-th one is the same whatever the order of submission. Some
// are of another form on one rank.
class Catalogue {
 public:
  Catalogue(std::uint64_t seed, int world) : seed_(seed), world_(world) {}

  Request request(int name, int instance, int rank) const {
    Random shared(mixed_bits(seed_ * 1000 + static_cast<std::uint64_t>(name)));
    static constexpr Kind kSome[] = {Kind::kAllReduce,     Kind::kAllReduce, Kind::kAllReduce,
                                     Kind::kAllReduce,     Kind::kAllGather, Kind::kAllToAll,
                                     Kind::kReduceScatter, Kind::kBroadcast, Kind::kAdasum,
                                     Kind::kBarrier};
    Request made = make_request(kSome[between(shared, 0, 9)], "tensor." + std::to_string(name));
    made.dtype = between(shared, 0, 2) == 0 ? kernels::Dtype::kF16 : kernels::Dtype::kF32;
    made.op = static_cast<kernels::ReduceOp>(between(shared, 0, 4));
    if (made.kind == Kind::kReduceScatter) made.op = kernels::ReduceOp::kSum;
    made.root = between(shared, 0, world_ - 1);
    const int version = instance / between(shared, 1, 9);  // changes from time to time
    add_tensors(made, version, rank, between(shared, 1, 2));
    if (odd_rank(name, instance) == rank) make_odd(made, name + instance);
    return made;
  }
  // The rank that has another form of it, or -1.
  int odd_rank(int name, int instance) const {
    Random random(mixed_bits(seed_ + 77) + static_cast<std::uint64_t>(name * 1000 + instance));
    return between(random, 0, 19) == 0 ? between(random, 0, world_ - 1) : -1;
  }

 private:
  void add_tensors(Request& made, int version, int rank, int tensors) const {
    if (made.kind == Kind::kBarrier) return;
    if (made.kind == Kind::kAllToAll) {
      std::int64_t rows = 0;
      for (int to = 0; to < world_; ++to) {
        made.splits.push_back((rank + to + version) % 3);
        rows += made.splits.back();
      }
      made.shapes = {{rows, 5}};
      return;
    }
    const bool own_rows = made.kind == Kind::kAllGather;
    for (int t = 0; t < tensors; ++t) {
      made.shapes.push_back({own_rows ? (rank * 7 + version + t) % 5 : version + 1, 3});
    }
  }
  static void make_odd(Request& made, int choice) {
    const bool has_tensors = !made.shapes.empty();
    if (has_tensors && choice % 3 == 0) {
      made.shapes.back().back() += 1;
    } else if (has_tensors && choice % 3 == 1) {
      made.dtype = kernels::Dtype::kF64;
    } else {
      made = make_request(made.kind == Kind::kBroadcast ? Kind::kAllReduce : Kind::kBroadcast,
                          made.name, made.shapes);
    }
  }

  const std::uint64_t seed_;
  const int world_;
};

// A request as the simulation knows it.
struct Submitted {
  int instance = 0;
  Request request;
  std::uint64_t since = 0;
};

// One rank's program: what it has still to submit in this epoch, and what it waits for.
struct RankProgram {
  std::vector<std::vector<int>> steps;  // names, in its own order
  std::map<int, int> instances;         // submitted so far, by name
  std::map<std::string, Submitted> pending;
  bool joins = false;             // it has submitted its join
  std::uint64_t joins_since = 0;  // the round that takes it
};

class Simulation {
 public:
  explicit Simulation(const SimulatedProgram& program)
      : program_(program),
        random_(program.seed),
        world_(program.world > 0 ? program.world : between(random_, 1, 6)),
        catalogue_(program.seed, world_),
        names_(between(random_, 1, 12)),
        ranks_(world_, options()),
        programs_(static_cast<std::size_t>(world_)) {}

  std::string run() {
    ranks_.in_between = [this] {
      if (between(random_, 0, 3) == 0) submit_some(ranks_[0].round() + 1);
    };
    for (int epoch = 0; epoch < program_.epochs && ranks_.failure().empty(); ++epoch) {
      plan_epoch();
      const std::uint64_t most = ranks_[0].round() + 2000;
      for (epoch_on_ = true; epoch_on_ && ranks_.failure().empty();) {
        if (ranks_[0].round() > most) ranks_.fail("nothing comes to an end");
        play_round();
      }
    }
    for (int rank = 0; rank < world_; ++rank) {
      if (ranks_[rank].wants_round()) ranks_.fail("a rank wants to go on");
    }
    return ranks_.failure();
  }

 private:
  NegotiationOptions options() {
    static constexpr std::size_t kSlots[] = {0, 1, 2, 3, 5, 8, 1024};
    static constexpr std::uint64_t kFusion[] = {0, 50, 200, 64 << 20};
    return {.fusion_bytes = kFusion[between(random_, 0, 3)],
            .cache_slots = kSlots[between(random_, 0, 6)]};
  }
  RankProgram& program(int rank) { return programs_[static_cast<std::size_t>(rank)]; }

  // All ranks have the same steps; some join early.
  void plan_epoch() {
    std::vector<std::vector<int>> steps;
    for (int step = 0; step < program_.steps; ++step) {
      std::vector<int> names;
      for (int name = 0; name < names_; ++name) {
        if (between(random_, 0, 3) > 0) names.push_back(name);
      }
      steps.push_back(std::move(names));
    }
    // Instances go on from where the rank that did most stopped.
    std::map<int, int> instances;
    for (const RankProgram& each : programs_) {
      for (const auto& [name, count] : each.instances) {
        instances[name] = std::max(instances[name], count);
      }
    }
    for (RankProgram& each : programs_) {
      each = RankProgram{.steps = steps, .instances = instances};
      if (between(random_, 0, 2) == 0) {
        each.steps.resize(static_cast<std::size_t>(between(random_, 0, program_.steps)));
      }
      for (auto& step : each.steps) std::shuffle(step.begin(), step.end(), random_);
    }
  }

  void submit_some(std::uint64_t since) {
    for (int rank = 0; rank < world_; ++rank) {
      for (int count = between(random_, 0, 5); count > 0; --count) submit_next(rank, since);
    }
  }

  void submit_next(int rank, std::uint64_t since) {
    RankProgram& own = program(rank);
    if (own.joins) return;
    while (!own.steps.empty() && own.steps.front().empty()) own.steps.erase(own.steps.begin());
    if (own.steps.empty()) {
      own.joins = true;
      own.joins_since = since;
      take(rank, ranks_[rank].submit(make_request(Kind::kJoin, "join")), true);
      return;
    }
    const int name = own.steps.front().back();
    const int instance = own.instances[name];
    Request request = catalogue_.request(name, instance, rank);
    const bool is_free = !own.pending.contains(request.name);
    take(rank, ranks_[rank].submit(request), is_free);
    if (!is_free) return;
    own.steps.front().pop_back();
    ++own.instances[name];
    std::string key = request.name;
    own.pending.emplace(std::move(key), Submitted{instance, std::move(request), since});
  }

  void take(int rank, const Status& status, bool expected) {
    if (status.ok() == expected) return;
    ranks_.fail("rank " + std::to_string(rank) + " submits, and is told: " + status.message());
  }

  void play_round() {
    submit_some(ranks_[0].round() + 1);
    const bool asks = between(random_, 0, 9) == 0, shuts = between(random_, 0, 29) == 0;
    const int who = between(random_, 0, world_ - 1);
    if (asks) ranks_[who].raise(Negotiation::Flag::kTellWaiting);
    if (shuts) ranks_[who].raise(Negotiation::Flag::kShutdown);
    const auto responses = ranks_.round();
    if (!ranks_.failure().empty()) return;
    if (ranks_[0].shutdown_asked() != shuts) ranks_.fail("a shutdown is asked for, or not");
    for (std::size_t i = 0; i < responses[0].size() && ranks_.failure().empty(); ++i) {
      if (!epoch_on_) ranks_.fail("more runs after all have joined");
      check_response(responses, i);
    }
    if (!ranks_.failure().empty()) return;
    if (epoch_on_) check_nothing_is_late();
    if (asks && epoch_on_) check_waiting();
  }

  bool is_joined(int rank) {
    return program(rank).joins && program(rank).joins_since <= ranks_[0].round();
  }

  void check_response(const std::vector<std::vector<Response>>& all, std::size_t index) {
    if (all[0][index].requests.empty()) return ranks_.fail("a response without requests");
    if (all[0][index].requests[0].kind == Kind::kJoin) return check_join(all[0][index]);
    for (std::size_t i = 0; i < all[0][index].requests.size(); ++i) check_request(all, index, i);
    std::uint64_t bytes = 0;
    for (const Request& request : all[0][index].requests) bytes += bytes_of(request);
    const bool is_fused = all[0][index].requests.size() > 1;
    if (is_fused && bytes > 64 << 20) ranks_.fail("too much is fused");
  }

  void check_join(const Response& response) {
    std::uint64_t last = 0;
    for (int rank = 0; rank < world_; ++rank) {
      if (!is_joined(rank)) ranks_.fail("not all have joined");
      if (!program(rank).pending.empty()) ranks_.fail("something has not run before the join");
      last = std::max(last, program(rank).joins_since);
    }
    const int by = response.last_joined;
    if (by < 0 || by >= world_) return ranks_.fail("nobody joined last");
    if (program(by).joins_since != last) ranks_.fail("another rank joined last");
    epoch_on_ = false;
  }

  // One request of a response, on all ranks: all have submitted it, but for those that joined.
  void check_request(const std::vector<std::vector<Response>>& all, std::size_t index,
                     std::size_t place) {
    const std::string name = all[0][index].requests[place].name;
    std::vector<Variant> variants;
    std::set<int> instances;
    std::vector<int> zeros;
    for (int rank = 0; rank < world_; ++rank) {
      const Response& response = all[static_cast<std::size_t>(rank)][index];
      const auto own = program(rank).pending.find(name);
      const bool has_it =
          own != program(rank).pending.end() && own->second.since <= ranks_[0].round();
      if (response.stands_for_joined == has_it) ranks_.fail(name + ": zeros, or not");
      if (!has_it) {
        if (!is_joined(rank))
          return ranks_.fail(name + " runs without rank " + std::to_string(rank));
        zeros.push_back(rank);
        continue;
      }
      if (!(own->second.request == response.requests[place])) ranks_.fail(name + " was changed");
      instances.insert(own->second.instance);
      variants.push_back({.request = own->second.request, .ranks = {rank}});
      program(rank).pending.erase(own);
    }
    if (instances.size() != 1) return ranks_.fail(name + " runs at different times");
    check_outcome(all[0][index], variants, zeros, *instances.begin());
  }

  void check_outcome(const Response& response, const std::vector<Variant>& variants,
                     const std::vector<int>& zeros, int instance) {
    const Request& first = variants[0].request;
    const int odd = catalogue_.odd_rank(std::stoi(first.name.substr(7)), instance);
    const bool odd_is_there =
        std::ranges::any_of(variants, [&](const Variant& each) { return each.ranks[0] == odd; });
    const bool differ = odd_is_there && variants.size() > 1;
    const bool is_possible = zeros.empty() || zeros_can_stand(first);
    const bool expected = !differ && is_possible;
    if (response.error.ok() != expected) {
      ranks_.fail(first.name + (expected ? " fails: " : " runs ") + response.error.message());
    }
    if (!response.error.ok()) {
      if (response.error.code() != Code::kMismatch) ranks_.fail("another kind of failure");
      if (response.requests.size() > 1) ranks_.fail("failures are fused");
      return;
    }
    if (response.joined != static_cast<int>(zeros.size())) ranks_.fail("how many give zeros");
    if (first.kind == Kind::kAllGather || first.kind == Kind::kAllToAll) {
      for (const Variant& each : variants) check_rows(response.rows, each);
    }
  }

  void check_rows(const std::vector<std::vector<std::int64_t>>& rows, const Variant& each) {
    const auto rank = static_cast<std::size_t>(each.ranks[0]);
    const Request& request = each.request;
    const bool is_split = request.kind == Kind::kAllToAll;
    const std::size_t lists = is_split ? static_cast<std::size_t>(world_) : request.shapes.size();
    if (rows.size() != lists) return ranks_.fail("rows of another number of things");
    if (is_split) {
      if (rows[rank] != request.splits) ranks_.fail("other splits");
      return;
    }
    for (std::size_t t = 0; t < request.shapes.size(); ++t) {
      if (rows[t][rank] != request.shapes[t][0]) ranks_.fail("other rows");
    }
  }

  // A request that all have submitted runs in that round, or in the next one.
  void check_nothing_is_late() {
    const std::uint64_t round = ranks_[0].round();
    for (int rank = 0; rank < world_; ++rank) {
      for (const auto& [name, submitted] : program(rank).pending) {
        std::uint64_t complete = submitted.since;
        for (int other = 0; other < world_; ++other) complete = std::max(complete, by(other, name));
        if (complete < round) ranks_.fail(name + " should have run");
      }
    }
  }
  // The first round that had this rank's part in it.
  std::uint64_t by(int rank, const std::string& name) {
    const auto own = program(rank).pending.find(name);
    if (own != program(rank).pending.end()) return own->second.since;
    return program(rank).joins ? program(rank).joins_since : UINT64_MAX;
  }

  void check_waiting() {
    const std::uint64_t round = ranks_[0].round();
    for (int rank = 0; rank < world_; ++rank) {
      for (const Negotiation::Waiting& each : ranks_[rank].waiting()) {
        if (each.since_round > round) continue;
        std::vector<int> missing;
        for (int other = 0; other < world_; ++other) {
          const auto own = program(other).pending.find(each.name);
          const bool has_it = own != program(other).pending.end() && own->second.since <= round;
          if (!is_joined(other) && !has_it) missing.push_back(other);
        }
        if (each.missing == missing) continue;
        ranks_.fail("rank " + std::to_string(rank) + " lacks " + each.name + " of " +
                    ranks_text(each.missing) + ", not " + ranks_text(missing));
      }
    }
  }

  const SimulatedProgram program_;
  Random random_;
  const int world_;
  const Catalogue catalogue_;
  const int names_;
  NegotiatingRanks ranks_;
  std::vector<RankProgram> programs_;
  bool epoch_on_ = false;
};

}  // namespace

std::string failure_of(const SimulatedProgram& program) { return Simulation(program).run(); }

}  // namespace taco::pg::controller
