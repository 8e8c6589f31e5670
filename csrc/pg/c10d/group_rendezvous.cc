#include "pg/c10d/group_rendezvous.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/log.h"
#include "harp/engine/stack.h"
#include "kernels/kernels.h"
#include "pg/algorithms/forced.h"
#include "pg/tuning/cost_block.h"

namespace taco::pg {
namespace {

// The settings that change which messages a rank sends, or when, or by which engine: two ranks must
// not disagree about them.
std::vector<edge::Setting> agreed_settings(const Env& env, const GroupRendezvousOptions& options) {
  const bool own = !options.algorithm.empty();
  std::vector<edge::Setting> settings = {
      {own ? "Options.algorithm" : "TACO_ALGORITHM", own ? options.algorithm : env.algorithm},
      {"Options.compress_all_reduce", options.compress_all_reduce},
      {"TACO_CHUNK_BYTES", std::to_string(env.chunk_bytes)},
      {"TACO_TUNE", env.tune ? "1" : "0"},
      {"TACO_HARP_ENGINES", std::to_string(env.harp_engines)}};
  for (const Env::Setting& light : env.light_settings()) {
    settings.push_back({light.name, light.value});
  }
  return settings;
}

// LIGHT_INTRA_SIZE is about the default group. All ranks come to the same.
Result<int> intra_size_of(const Env& env, const edge::RendezvousResult& result,
                          const GroupRendezvousOptions& options) {
  const auto size = static_cast<int>(env.light_intra_size);
  if (size == 0 || options.world == 1) return 0;
  if (options.world % size == 0) return size;
  if (!options.global_ranks.empty()) return 0;
  Result<Topology> topology = Topology::make(result.host_of_rank, result.host_gbits);
  if (!topology.ok()) return topology.status();
  const std::string prefix = "LIGHT_INTRA_SIZE is " + std::to_string(size) + ": ";
  return topology->grouped(size).status().with_prefix(prefix);
}

edge::RendezvousOptions rendezvous_options(const Env& env, const GroupRendezvousOptions& options) {
  const std::vector<std::byte> costs = encode(options.costs.value_or(CostParameters()));
  return {.group = options.name,
          .rank = options.rank,
          .world = options.world,
          .timeout = options.timeout,
          .settings = agreed_settings(env, options),
          .word = std::string(reinterpret_cast<const char*>(costs.data()), costs.size()),
          .service = harp::Service::kCollectives,
          .engines = edge::StackUse::Engines::kAll};
}

GroupOptions options_of_group(const edge::RendezvousResult& result,
                              const GroupRendezvousOptions& options) {
  GroupOptions group;
  group.id = result.group_id;
  group.name = options.name;
  group.rank = options.rank;
  group.world = options.world;
  group.peers = result.peers;
  group.host_of_rank = result.host_of_rank;
  group.host_gbits = result.host_gbits;
  group.timeout = options.timeout;
  group.algorithm = options.algorithm;
  group.global_ranks = options.global_ranks;
  if (static_cast<int>(group.global_ranks.size()) != options.world) {
    group.global_ranks.resize(options.world);
    std::iota(group.global_ranks.begin(), group.global_ranks.end(), 0);
  }
  return group;
}

void announce(const GroupRendezvousResult& result, bool tuned) {
  const GroupOptions& group = result.group;
  const std::vector<int>& hosts = group.host_of_rank;
  const int count = hosts.empty() ? 1 : *std::max_element(hosts.begin(), hosts.end()) + 1;
  std::vector<int> ranks(count, 0);
  for (int host : hosts) ++ranks[host];
  const auto [fewest, most] = std::minmax_element(ranks.begin(), ranks.end());
  std::string per_host = std::to_string(*fewest);
  if (*fewest != *most) per_host += "-" + std::to_string(*most);
  TACO_LOG_INFO("pg",
                "taco_torch %s: world %d = %d host%s x %s rank%s, transport %s, planner costs %s",
                TACO_VERSION, group.world, count, count == 1 ? "" : "s", per_host.c_str(),
                per_host == "1" ? "" : "s",
                result.stack ? result.stack->transport_summary().c_str() : "none (one rank)",
                tuned && group.world > 1 ? "to be measured" : "from the table");
}

// Releases what the rendezvous took where it makes no group.
Result<GroupRendezvousResult> finish(const Env& env, edge::RendezvousResult joined,
                                     const GroupRendezvousOptions& options) {
  Result<CostParameters> costs = decode_costs(std::as_bytes(std::span(joined.word)));
  Result<int> intra_size = intra_size_of(env, joined, options);
  for (const Status& status : {costs.status(), intra_size.status()}) {
    if (status.ok()) continue;
    edge::release(joined);
    return status;
  }
  GroupRendezvousResult result{std::move(joined), {}};
  result.group = options_of_group(result, options);
  result.group.costs = *costs;
  result.group.intra_size = *intra_size;
  return result;
}

}  // namespace

Status check_settings(const Env& env) {
  TACO_RETURN_IF_ERROR(kernels::isa_status());
  TACO_RETURN_IF_ERROR(check_forced(env.algorithm).with_prefix("TACO_ALGORITHM="));
  return harp::StackOptions::from_env().status();
}

Result<GroupRendezvousResult> rendezvous(const c10::intrusive_ptr<c10d::Store>& store,
                                         const GroupRendezvousOptions& options) {
  Result<Env> env = Env::get();
  if (!env.ok()) return env.status();
  // A mistake of this rank is found before the others are joined, to whom it would look like a
  // loss.
  TACO_RETURN_IF_ERROR(check_settings(*env));
  if (options.global_ranks.empty()) set_log_rank(options.rank);
  Result<edge::RendezvousResult> joined =
      edge::rendezvous(store, rendezvous_options(*env, options));
  if (!joined.ok()) return joined.status();
  Result<GroupRendezvousResult> result = finish(*env, std::move(*joined), options);
  if (result.ok() && options.global_ranks.empty() && options.rank == 0)
    announce(*result, env->tune);
  return result;
}

Result<std::shared_ptr<edge::Roster>> open_roster(const c10::intrusive_ptr<c10d::Store>& store,
                                                  const GroupRendezvousOptions& options) {
  Result<Env> env = Env::get();
  if (!env.ok()) return env.status();
  TACO_RETURN_IF_ERROR(check_settings(*env));
  if (env->tune) {
    return Status(Code::kUnsupported,
                  "TACO_TUNE=1 measures a group when its ranks meet, and a group that is made with "
                  "enable_reconfigure=True has no ranks yet: unset TACO_TUNE");
  }
  if (options.global_ranks.empty()) set_log_rank(options.rank);
  return edge::Roster::open(store, rendezvous_options(*env, options));
}

Result<GroupRendezvousResult> group_of(edge::Gathering gathering, GroupRendezvousOptions options) {
  Result<Env> env = Env::get();
  if (!env.ok()) {
    edge::release(gathering);
    return env.status();
  }
  options.rank = gathering.member.rank;
  options.world = gathering.member.world;
  if (options.global_ranks.empty() && !gathering.use->shares_process()) set_log_rank(options.rank);
  // As a subset of ranks would: the number of ranks a host may be one that does not divide them.
  options.global_ranks.resize(options.world);
  std::iota(options.global_ranks.begin(), options.global_ranks.end(), 0);
  return finish(*env, std::move(gathering), options);
}

}  // namespace taco::pg
