// _C.zerocache: what a step took, and what it will take, for taco_torch/zerocache/step_plan.py,
// plan.py, report.py and plot.py.
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "edge/errors.h"
#include "zerocache/schedule/min_moves.h"
#include "zerocache/schedule/open_uses.h"
#include "zerocache/schedule/plan.h"
#include "zerocache/torch/bind.h"
#include "zerocache/torch/store.h"

namespace py = pybind11;

namespace taco::zerocache {
namespace {

constexpr Way kAllWays[kWays] = {Way::kUpload, Way::kDownload, Way::kRead, Way::kWrite};
constexpr Tier kAllTiers[kTiers] = {Tier::kDevice, Tier::kHost, Tier::kDisk};
constexpr const char* kTierNames[kTiers] = {"device", "host", "ssd"};

double seconds(Duration time) { return static_cast<double>(time) * 1e-9; }

// The bytes of a number of copies, by way.
py::dict bytes_of(const double (&copies)[kWays], std::size_t page_bytes) {
  py::dict found;
  for (const Way way : kAllWays) {
    const double bytes = copies[static_cast<int>(way)] * static_cast<double>(page_bytes);
    found[py::str(std::string(name_of(way)))] = bytes;
  }
  return found;
}

std::uint32_t pages_of(std::uint64_t bytes, std::size_t page_bytes) {
  return static_cast<std::uint32_t>(
      std::min<std::uint64_t>(bytes / page_bytes, std::numeric_limits<std::int32_t>::max()));
}

// A program, and the pages that its numbers are of.
class PlannedProgram {
 public:
  PlannedProgram(Program program, std::size_t page_bytes)
      : program_(std::move(program)), page_bytes_(page_bytes) {}

  void check(std::uint64_t device, std::uint64_t host, std::uint64_t disk) const {
    raise_if_error(check_fits(program_, room(device, host, disk), page_bytes_));
  }

  py::dict predict(std::uint64_t device, std::uint64_t host, std::uint64_t disk,
                   const std::array<double, kWays>& speeds, bool disk_in_turns) const {
    Costs costs;
    costs.page_bytes = page_bytes_;
    for (int way = 0; way < kWays; ++way) costs.ways[way].bytes_per_second = speeds[way];
    Result<Prediction> found = Status();
    {
      const py::gil_scoped_release others_run;
      found = zerocache::predict(program_, room(device, host, disk), costs,
                                 disk_in_turns ? DiskWays::kInTurns : DiskWays::kAtOnce);
    }
    const Prediction made = value_or_raise(std::move(found));
    return py::dict(py::arg("step_s") = seconds(made.time),
                    py::arg("compute_s") = seconds(made.compute),
                    py::arg("moved") = bytes_of(made.copies, page_bytes_),
                    py::arg("least") = bytes_of(made.least, page_bytes_),
                    py::arg("hits") = made.hits, py::arg("misses") = made.misses);
  }

  std::uint64_t held_bytes() const { return program_.held() * page_bytes_; }

 private:
  Capacities room(std::uint64_t device, std::uint64_t host, std::uint64_t disk) const {
    return {pages_of(device, page_bytes_), pages_of(host, page_bytes_),
            pages_of(disk, page_bytes_)};
  }

  const Program program_;
  const std::size_t page_bytes_;
};

// (bytes, bytes of an element), and (indices of tensors, seconds forward, seconds backward).
using PlannedTensor = std::pair<std::size_t, std::uint32_t>;
using PlannedPart = std::tuple<std::vector<std::uint32_t>, double, double>;

PlannedProgram program_of_model(const std::vector<PlannedTensor>& tensors,
                                const std::vector<PlannedPart>& modules,
                                const std::vector<std::string>& kinds, double step_bytes_per_second,
                                std::size_t page_bytes) {
  PlannedModel model;
  for (const auto& [bytes, element_bytes] : tensors) {
    model.tensors.push_back({std::to_string(model.tensors.size()), bytes, element_bytes});
  }
  for (const auto& [indices, forward, backward] : modules) {
    for (const std::uint32_t index : indices) {
      if (index >= tensors.size())
        throw py::index_error("a module names a tensor that is not there");
    }
    model.modules.push_back(
        {indices, static_cast<Duration>(forward * 1e9), static_cast<Duration>(backward * 1e9)});
  }
  for (const std::string& name : kinds) {
    for (int i = 0; i < kStateKinds; ++i) {
      if (name_of(static_cast<StateKind>(i)) == name) model.kinds.push_back(StateKind(i));
    }
  }
  model.step_bytes_per_second = step_bytes_per_second;
  return {value_or_raise(program_of(model, page_bytes)), page_bytes};
}

// The pass of a step that an operator with this key belongs to; none: that of the one before.
const char* phase_of(OperatorKey key) {
  if ((key & kEndKeys) != 0) return nullptr;
  if (key >= kChunkKeys) return "step";
  if (key >= kPartKeys + kKeysOfRange) return nullptr;
  return key % 2 == 1 ? "backward" : "forward";
}

// (name, from, to) in seconds since the run began.
py::list phases_of(const RunRecord& run) {
  py::list found;
  const char* name = nullptr;
  Time from = run.began;
  const auto close = [&](Time to) {
    if (name != nullptr)
      found.append(py::make_tuple(name, seconds(from - run.began), seconds(to - run.began)));
  };
  for (const RunRecord::Operator& each : run.operators) {
    const char* const phase = phase_of(each.key);
    if (phase == nullptr || phase == name) continue;
    close(each.began);
    name = phase;
    from = each.began;
  }
  close(run.ended);
  return found;
}

// {tier: {kind: [bytes at each moment]}}
py::dict residency_of(const Store& store, const RunRecord& run, std::size_t points) {
  std::vector<std::string> names;
  std::vector<std::uint8_t> kinds(run.before.size());
  for (PageId page = 0; page < kinds.size(); ++page) {
    const std::string name(store.kind_of(page));
    const auto known = std::find(names.begin(), names.end(), name);
    kinds[page] = static_cast<std::uint8_t>(known - names.begin());
    if (known == names.end()) names.push_back(name);
  }
  const std::vector<std::uint32_t> pages = residency_over(run, kinds, names.size(), points);
  py::dict found;
  for (const Tier tier : kAllTiers) {
    py::dict of_tier;
    const auto row = static_cast<std::size_t>(index_of(tier)) * names.size();
    for (std::size_t kind = 0; kind < names.size(); ++kind) {
      const auto first = pages.begin() + static_cast<std::ptrdiff_t>((row + kind) * points);
      std::vector<std::uint64_t> bytes(points);
      std::transform(first, first + static_cast<std::ptrdiff_t>(points), bytes.begin(),
                     [&](std::uint32_t count) { return count * store.page_bytes(); });
      of_tier[py::str(names[kind])] = bytes;
    }
    found[kTierNames[index_of(tier)]] = of_tier;
  }
  return found;
}

// None where there was no such run, or one too long to be kept.
py::object residency_over_run(const Store& store, const std::string& name, std::size_t points) {
  const RunRecord run = store.last_run(name);
  if (run.number == 0 || run.cut || points == 0) return py::none();
  py::list waits;
  for (const RunRecord::Wait& wait : run.waits) {
    waits.append(py::make_tuple(std::string(name_of(wait.way)), seconds(wait.from - run.began),
                                seconds(wait.to - run.began)));
  }
  return py::dict(py::arg("number") = run.number, py::arg("seconds") = seconds(run.time()),
                  py::arg("phases") = phases_of(run), py::arg("waits") = waits,
                  py::arg("residency") = residency_of(store, run, points));
}

// The record of the last run and of those before it: None as above.
py::object last_run(const Store& store, const std::string& name) {
  const RunRecord run = store.last_run(name);
  if (run.number == 0 || run.cut) return py::none();
  MinMoves least;
  {
    const py::gil_scoped_release others_run;
    least = min_moves(run.uses(), store.capacities());
  }
  double copies[kWays];
  const bool steady = run.steady_runs > 0;
  for (int way = 0; way < kWays; ++way) {
    const std::uint64_t all = steady ? run.steady_copies[way] : run.copies[way];
    copies[way] = static_cast<double>(all) / static_cast<double>(steady ? run.steady_runs : 1);
  }
  return py::dict(py::arg("number") = run.number, py::arg("seconds") = seconds(run.time()),
                  py::arg("stalled_s") = seconds(run.stalled()),
                  py::arg("steady_runs") = run.steady_runs,
                  py::arg("moved") = bytes_of(copies, store.page_bytes()),
                  py::arg("least") = bytes_of(least.copies, store.page_bytes()));
}

PlannedProgram program_of_run(const Store& store, const std::string& name) {
  return {program_of(store.last_run(name)), store.page_bytes()};
}

}  // namespace

void bind_plan(py::module_& module) {
  py::module_ inner = module.attr("zerocache");
  py::class_<PlannedProgram>(inner, "PlannedProgram")
      .def("check", &PlannedProgram::check, py::arg("device"), py::arg("host"), py::arg("ssd"))
      .def("predict", &PlannedProgram::predict, py::arg("device"), py::arg("host"), py::arg("ssd"),
           py::arg("speeds"), py::arg("disk_in_turns") = false)
      .def_property_readonly("held_bytes", &PlannedProgram::held_bytes);
  inner.def("program_of_model", &program_of_model, py::arg("tensors"), py::arg("modules"),
            py::arg("kinds"), py::arg("step_bytes_per_second"), py::arg("page_bytes"));
  inner.def("progress", [](const Store& store) {
    const Store::Progress now = store.progress();
    return std::pair(now.done, now.bytes);
  });
  inner.def("program_of_run", &program_of_run, py::arg("store"), py::arg("name"));
  inner.def("last_run", &last_run, py::arg("store"), py::arg("name"));
  inner.def("residency_over_run", &residency_over_run, py::arg("store"), py::arg("name"),
            py::arg("points"));
}

}  // namespace taco::zerocache
