// Predicts what a training step should take by each way of averaging its gradients, in a world that
// need not be at hand, for taco_torch/lightcc/plan.py.
#include <pybind11/stl.h>

#include <cmath>
#include <functional>
#include <string>

#include "edge/errors.h"
#include "pg/algorithms/list.h"
#include "pg/c10d/bind.h"
#include "pg/lightcc/choice.h"
#include "pg/lightcc/settings.h"
#include "pg/planning/planner.h"
#include "pg/tuning/cost_block.h"

namespace py = pybind11;

namespace taco::pg {
namespace {

using lightcc::Way;

Topology world_of(int hosts, int ranks_per_host, double gbits) {
  if (hosts < 1 || ranks_per_host < 1) {
    raise(Status(Code::kInvalidArgument, std::to_string(hosts) + " hosts with " +
                                             std::to_string(ranks_per_host) +
                                             " ranks each: there must be at least one of both"));
  }
  if (!std::isfinite(gbits) || gbits <= 0) {
    raise(Status(Code::kInvalidArgument, "the speed of a host's interface must be above 0 Gbit/s"));
  }
  return Topology::uniform(hosts, ranks_per_host, gbits);
}

// One bucket, sent in one way.
struct Sent {
  Cost cost;
  std::string algorithm;
  double host_bytes = 0;  // that a host sends
};

bool is_exact_2d(const Algorithm& algorithm) { return algorithm.two_dimensional; }
bool is_coded(const Algorithm& algorithm) { return algorithm.coded; }
bool is_plain(const Algorithm& algorithm) { return !algorithm.coded && !algorithm.two_dimensional; }
bool is_any(const Algorithm&) { return true; }
using Accept = bool (*)(const Algorithm&);

class World {
 public:
  World(const Topology& topology, const lightcc::Settings& settings)
      : topology_(topology),
        settings_(settings),
        planner_(value_or_raise(
            Planner::create(all_algorithms(), topology, first_costs().parameters, 0, ""))) {}

  // By the fastest algorithm that `accept` takes; nothing where there is none.
  std::optional<Sent> send(std::uint64_t bytes, Way way, Accept accept) const {
    if (!lightcc::may_use(settings_, way, bytes)) return std::nullopt;
    const std::uint64_t whole = bytes / sizeof(float) * sizeof(float);
    const Problem problem = average_problem(
        whole, value_or_raise(lightcc::codec_for(lightcc::by_way(settings_, way), whole, 0)));
    for (const Prediction& found : planner_->predictions(problem)) {
      if (!accept(*found.algorithm)) continue;
      return Sent{found, found.algorithm->name,
                  found.algorithm->work(problem, topology_).wire_bytes};
    }
    return std::nullopt;
  }

 private:
  const Topology topology_;
  const lightcc::Settings settings_;
  const std::unique_ptr<Planner> planner_;
};

// A step whose buckets may be sent in up to three ways.
struct Offers {
  lightcc::StepModel step;
  std::vector<std::array<std::optional<Sent>, lightcc::kWays>> sent;

  void add(std::uint64_t bytes, double ready,
           std::array<std::optional<Sent>, lightcc::kWays> ways) {
    lightcc::ReadyBucket bucket{.bytes = bytes, .ready = ready, .costs = {}};
    for (std::size_t way = 0; way < lightcc::kWays; ++way) {
      if (ways[way]) bucket.costs[way] = ways[way]->cost;
    }
    step.buckets.push_back(bucket);
    sent.push_back(std::move(ways));
  }
};

// Name, algorithm of the bucket that takes longest, bytes a host sends, seconds of the
// communication alone and of the whole step, and the way of each bucket.
py::tuple row(const char* name, const Offers& offers, const lightcc::Ways& ways) {
  const Sent* longest = nullptr;
  double bytes = 0;
  std::vector<int> numbers;
  for (std::size_t i = 0; i < ways.size(); ++i) {
    const Sent& one = *offers.sent[i][static_cast<std::size_t>(ways[i])];
    if (!longest || one.cost.seconds > longest->cost.seconds) longest = &one;
    bytes += one.host_bytes;
    numbers.push_back(static_cast<int>(ways[i]));
  }
  lightcc::StepModel bare = offers.step;
  bare.compute = 0;
  for (lightcc::ReadyBucket& bucket : bare.buckets) bucket.ready = 0;
  return py::make_tuple(name, longest->algorithm, bytes, seconds(bare, ways),
                        seconds(offers.step, ways), numbers);
}

// Predicts a step by each choice: "plain" and "2d" (exact), "float16", "topk" and "auto", which
// chooses among all. Those that do not fit are left out.
py::list predict_steps(const std::vector<std::uint64_t>& sizes, const std::vector<double>& ready,
                       double compute, int hosts, int ranks_per_host, double gbits, double ratio,
                       bool f16_values, std::int64_t threshold) {
  lightcc::Settings settings;
  settings.compression = lightcc::Compression::kAuto;
  settings.small = lightcc::Compression::kFloat16;
  settings.may_top_k = true;
  settings.ratio = ratio;
  settings.f16_values = f16_values;
  settings.threshold = threshold;
  raise_if_error(lightcc::check(settings));
  const Topology topology = world_of(hosts, ranks_per_host, gbits);
  const World world(topology, settings);
  py::list out;
  const auto fixed = [&](const char* name, Way way, Accept accept) {
    Offers offers;
    offers.step.compute = compute;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      std::optional<Sent> sent = world.send(sizes[i], way, accept);
      // TopK is not for the shortest.
      if (!lightcc::may_use(settings, way, sizes[i]))
        sent = world.send(sizes[i], Way::kExact, is_any);
      if (!sent) return;
      offers.add(sizes[i], ready[i], {std::move(sent), std::nullopt, std::nullopt});
    }
    out.append(row(name, offers, all_by(offers.step, Way::kExact)));
  };
  fixed("plain", Way::kExact, is_plain);
  fixed("2d", Way::kExact, is_exact_2d);
  fixed("float16", Way::kHalf, is_coded);
  fixed("topk", Way::kTopK, is_coded);
  if (topology.hosts() == 1) return out;
  Offers all;
  all.step.compute = compute;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    all.add(sizes[i], ready[i],
            {world.send(sizes[i], Way::kExact, is_any), world.send(sizes[i], Way::kHalf, is_coded),
             world.send(sizes[i], Way::kTopK, is_coded)});
  }
  out.append(row("auto", all, choose(all.step, lightcc::ChoiceRules().tolerance)));
  return out;
}

}  // namespace

void bind_plan(py::module_& module) {
  module.def("predict_steps", &predict_steps, py::arg("sizes"), py::arg("ready"),
             py::arg("compute"), py::arg("hosts"), py::arg("ranks_per_host"), py::arg("gbits"),
             py::arg("ratio"), py::arg("f16_values"), py::arg("threshold"));
}

}  // namespace taco::pg
