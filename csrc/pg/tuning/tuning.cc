#include "pg/tuning/tuning.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "base/far_future.h"
#include "base/heed.h"
#include "base/log.h"
#include "kernels/kernels.h"
#include "pg/group/nested_groups.h"
#include "pg/tuning/cost_block.h"
#include "pg/tuning/link_probe.h"

namespace taco::pg {
namespace {

constexpr std::uint64_t kOwnGroup = 0x74756e696e67;  // number of no operation
constexpr std::uint64_t kProbeMessages = 0x70726f6265;
constexpr Duration kLinger = kSecond;
constexpr std::size_t kArithmeticBytes = 16 << 20;  // out of cache, mostly
constexpr int kArithmeticRounds = 3;

struct Pair {
  int leader = 0, follower = 0;
};

std::vector<int> hosts_of(const GroupOptions& options) {
  std::vector<int> hosts = options.host_of_rank;
  if (hosts.empty()) hosts.assign(options.world, 0);
  return hosts;
}

// The first two ranks that share a host, or that do not.
std::optional<Pair> first_pair(const std::vector<int>& hosts, bool same_host) {
  for (int a = 0; a < static_cast<int>(hosts.size()); ++a) {
    for (int b = a + 1; b < static_cast<int>(hosts.size()); ++b)
      if ((hosts[a] == hosts[b]) == same_host) return Pair{a, b};
  }
  return std::nullopt;
}

double slowest_gbits(const std::vector<double>& gbits) {
  double least = 0;
  for (const double speed : gbits)
    if (speed > 0 && (least == 0 || speed < least)) least = speed;
  return least;
}

template <class Function>
double bytes_per_second(Function function) {
  double best = 0;
  for (int i = 0; i < kArithmeticRounds; ++i) {
    const Time begin = monotonic_now();
    function();
    const auto seconds = static_cast<double>(monotonic_now() - begin) / kSecond;
    best = std::max(best, kArithmeticBytes / seconds);
  }
  return best;
}

void measure_arithmetic(Measurement* measurement) {
  std::vector<std::byte> memory(2 * kArithmeticBytes, std::byte{1});
  std::byte *first = memory.data(), *second = first + kArithmeticBytes;
  measurement->copy_bytes_per_second =
      bytes_per_second([&] { std::memcpy(first, second, kArithmeticBytes); });
  const kernels::ReduceFn add =
      kernels::reduce_function(kernels::ReduceOp::kSum, kernels::Dtype::kF32);
  measurement->reduce_bytes_per_second =
      bytes_per_second([&] { add(first, first, second, kArithmeticBytes / sizeof(float)); });
}

class Tuning {
 public:
  Tuning(const std::shared_ptr<harp::Stack>& stack, const GroupOptions& options,
         Communicator& group)
      : stack_(stack), options_(options), group_(group) {}

  Result<CostParameters> run() {
    TACO_RETURN_IF_ERROR(finish({.kind = Kind::kBarrier}));
    Measurement found;
    const std::vector<int> hosts = hosts_of(options_);
    TACO_RETURN_IF_ERROR(measure_link(first_pair(hosts, true), 0, &found.shared));
    TACO_RETURN_IF_ERROR(measure_link(first_pair(hosts, false), 1, &found.network));
    std::vector<std::byte> block(encoded_bytes());
    if (options_.rank == 0) {
      measure_arithmetic(&found);
      block = encode(measured_block(found, slowest_gbits(options_.host_gbits)));
    }
    TACO_RETURN_IF_ERROR(broadcast(block.data(), block.size(), 0));
    return decode_costs(block);
  }

 private:
  // The leader's result goes to all, though only rank 0 needs it: nobody measures before it has
  // come.
  Status measure_link(const std::optional<Pair>& pair, int number, LinkMeasurement* found) {
    if (!pair) return Status();
    const bool leads = options_.rank == pair->leader;
    if (leads || options_.rank == pair->follower) {
      const Duration limit = options_.timeout > 0 ? options_.timeout : 60 * kSecond;
      LinkProbe probe(stack_->engine(), options_.peers[leads ? pair->follower : pair->leader],
                      (options_.id ^ kProbeMessages) + number, later(monotonic_now(), limit));
      if (leads) {
        Result<LinkMeasurement> measured = probe.lead();
        if (!measured.ok()) return measured.status();
        *found = *measured;
      } else {
        TACO_RETURN_IF_ERROR(probe.follow());
      }
    }
    return broadcast(found, sizeof *found, pair->leader);
  }

  Status broadcast(void* data, std::size_t bytes, int root) {
    OperationSpec spec;
    spec.kind = Kind::kBroadcast;
    spec.dtype = kernels::Dtype::kU8;
    spec.root = root;
    spec.outputs = {{static_cast<std::byte*>(data), bytes}};
    return finish(std::move(spec));
  }

  Status finish(OperationSpec spec) {
    spec.caller_will_wait = true;
    Result<OperationPtr> operation = group_.start(std::move(spec));
    if (!operation.ok()) return operation.status();
    const Result<bool> over =
        wait_and_heed(kNever, [&](Time until) { return (*operation)->wait_until(until); });
    // Its memory is this caller's: who waits no longer ends it first.
    if (!over.ok()) group_.abort(over.status());
    const Status ended = (*operation)->wait(0);
    return over.ok() ? ended : over.status();
  }

  const std::shared_ptr<harp::Stack>& stack_;
  const GroupOptions& options_;
  Communicator& group_;
};

}  // namespace

Result<CostParameters> tune(const std::shared_ptr<harp::Stack>& stack,
                            const GroupOptions& options) {
  const Time begin = monotonic_now();
  GroupOptions own = options;
  own.algorithm = "auto";
  own.costs = CostParameters();
  NestedGroups groups(stack, std::move(own));
  Result<std::shared_ptr<Communicator>> group =
      groups.open(NestedGroups::id_of(options.id, kOwnGroup), Parent{}, "/tuning");
  if (!group.ok()) return group.status();
  Result<CostParameters> found = Tuning(stack, options, **group).run();
  if (!found.ok()) (*group)->abort(found.status());
  (void)(*group)->close(kLinger);
  if (!found.ok()) return found.status().with_prefix("TACO_TUNE=1: ");
  if (options.rank == 0) {
    const CostParameters& block = *found;
    TACO_LOG_INFO("pg",
                  "measured in %.0f ms: inside a host %.1f us and %.1f GB/s, between hosts %.1f us "
                  "and %.1f GB/s, copying %.1f GB/s, reducing %.1f GB/s",
                  static_cast<double>(monotonic_now() - begin) / kMillisecond,
                  block.shared.latency * 1e6, block.shared.bytes_per_second / 1e9,
                  block.network.latency * 1e6, block.network.bytes_per_second / 1e9,
                  block.copy_bytes_per_second / 1e9, block.reduce_bytes_per_second / 1e9);
  }
  return found;
}

}  // namespace taco::pg
