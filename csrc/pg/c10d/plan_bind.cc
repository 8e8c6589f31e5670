// What the planner expects of an all_reduce in a world that need not be at hand, for
// taco_torch/lightcc/plan.py.
#include <pybind11/stl.h>

#include <cmath>
#include <string>

#include "edge/errors.h"
#include "pg/algorithms/list.h"
#include "pg/c10d/bind.h"
#include "pg/lightcc/settings.h"
#include "pg/planning/planner.h"
#include "pg/tuning/cost_block.h"

namespace py = pybind11;

namespace taco::pg {
namespace {

// As the hook would send a bucket of any length.
std::shared_ptr<const Codec> codec_of(const std::string& compression, std::uint64_t bytes,
                                      double ratio, bool f16_values) {
  lightcc::Settings settings;
  settings.compression = value_or_raise(lightcc::compression_named(compression));
  settings.ratio = ratio;
  settings.threshold = 0;
  settings.f16_values = f16_values;
  raise_if_error(lightcc::check(settings));
  return value_or_raise(lightcc::codec_for(settings, bytes, 0));
}

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

double wire_bytes(const char* name, const Problem& problem, const Topology& topology) {
  for (const Algorithm* algorithm : all_algorithms()) {
    if (algorithm->kind == problem.kind && std::string(algorithm->name) == name) {
      return algorithm->work(problem, topology).wire_bytes;
    }
  }
  return 0;
}

// Every algorithm that would average float32 gradients of `bytes`, fastest first: its name, its
// seconds and what a host sends.
py::list predict_all_reduce(std::uint64_t bytes, int hosts, int ranks_per_host, double gbits,
                            const std::string& compression, double ratio, bool f16_values) {
  Problem problem;
  problem.kind = Kind::kAllReduce;
  problem.element_bytes = sizeof(float);
  problem.average = true;
  problem.in_place = true;
  problem.bytes = bytes / sizeof(float) * sizeof(float);
  problem.codec = codec_of(compression, problem.bytes, ratio, f16_values);
  const Topology topology = world_of(hosts, ranks_per_host, gbits);
  const std::unique_ptr<Planner> planner =
      value_or_raise(Planner::create(all_algorithms(), topology, first_costs().parameters, 0, ""));
  py::list out;
  for (const Prediction& prediction : planner->predictions(problem)) {
    out.append(py::make_tuple(prediction.algorithm, prediction.seconds,
                              wire_bytes(prediction.algorithm, problem, topology)));
  }
  return out;
}

}  // namespace

void bind_plan(py::module_& module) {
  module.def("predict_all_reduce", &predict_all_reduce, py::arg("bytes"), py::arg("hosts"),
             py::arg("ranks_per_host"), py::arg("gbits"), py::arg("compression"), py::arg("ratio"),
             py::arg("f16_values"));
}

}  // namespace taco::pg
