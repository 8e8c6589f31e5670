// Counters, dumps and facts about this build, for stats.py and info.py.
#include <pybind11/stl.h>

#include "base/env.h"
#include "base/log.h"
#include "base/timeline.h"
#include "harp/engine/held_stacks.h"
#include "harp/engine/path_reports.h"
#include "harp/engine/stacks.h"
#include "kernels/kernels.h"
#include "pg/algorithms/list.h"
#include "pg/c10d/bind.h"
#include "pg/c10d/group_rendezvous.h"
#include "pg/communicator.h"
#include "pg/execution/trace.h"
#include "pg/tuning/cost_block.h"

namespace py = pybind11;

namespace taco::pg {
namespace {

// Sums over all Stacks: a process has one for each engine that it uses, and one for each of several
// ranks of a group. Runs without the GIL, which the thread that drives the engine may be waiting
// for.
harp::StackStats summed_stats() {
  py::gil_scoped_release release;
  harp::StackStats sum;
  for (const auto& stack : harp::live_stacks()) sum += stack->stats();
  return sum;
}

py::dict transport_stats() {
  py::dict out;
  const harp::StackStats stats = summed_stats();
  out["bytes_sent"] = stats.bytes_sent;
  out["bytes_received"] = stats.bytes_received;
  out["packets_sent"] = stats.packets_sent;
  out["packets_received"] = stats.packets_received;
  out["retransmits"] = stats.retransmits;
  out["spurious_retransmits"] = stats.spurious_retransmits;
  out["checksum_failures"] = stats.checksum_failures;
  out["refused_packets"] = stats.refused_packets;
  out["duplicates"] = stats.duplicates;
  out["bytes_copied"] = stats.bytes_copied;
  out["socket_overflows"] = stats.socket_overflows;
  out["shm_bytes"] = stats.shm_bytes;
  out["shm_messages"] = stats.shm_messages;
  out["doorbells"] = stats.doorbells;
  out["sleeps"] = stats.sleeps;
  out["sessions"] = stats.sessions;
  out["shm_links"] = stats.shm_links;
  out["unmatched"] = stats.unmatched;
  out["path_bytes"] = stats.path_bytes;
  out["paths"] = stats.paths;
  out["paths_left"] = stats.paths_left;
  out["paths_moved"] = stats.paths_moved;
  return out;
}

harp::PathReports all_paths() {
  py::gil_scoped_release release;
  return harp::report_paths();
}

// One dict for each path, peer by peer.
py::list network_paths() {
  py::list out;
  for (const harp::PathReport& path : all_paths().paths) {
    py::dict entry;
    entry["peer"] = path.peer;
    entry["local"] = path.local;
    entry["remote"] = path.remote;
    entry["state"] = path.state;
    entry["round_trip_s"] = static_cast<double>(path.round_trip) / kSecond;
    entry["window"] = path.window;
    entry["bytes_sent"] = path.bytes_sent;
    entry["lost"] = path.lost;
    entry["datagram"] = path.datagram;
    entry["text"] = harp::describe(path);
    out.append(entry);
  }
  return out;
}

// One dict for each group of this process, as GroupReport says it.
py::list group_reports() {
  const std::vector<GroupReport> reports = [] {
    py::gil_scoped_release release;
    return report_all_groups();
  }();
  py::list out;
  for (const GroupReport& report : reports) {
    const PeerLoss* loss = report.error.peer_loss();
    py::dict entry;
    entry["name"] = report.name;
    entry["rank"] = report.rank;
    entry["world"] = report.world;
    entry["global_ranks"] = report.global_ranks;
    entry["sequence"] = report.sequence;
    entry["error"] = report.error.message();
    entry["lost"] = loss != nullptr ? loss->rank : -1;
    entry["destroyed"] = report.destroyed;
    entry["answers"] = report.open.has_value();
    py::list open;
    for (const OpenOperation& operation : report.open.value_or(std::vector<OpenOperation>{}))
      open.append(py::make_tuple(operation.sequence, operation.text));
    entry["open"] = open;
    out.append(entry);
  }
  return out;
}

py::dict known_algorithms() {
  py::dict out;
  for (const Algorithm* algorithm : all_algorithms()) {
    const char* kind = name_of(algorithm->kind);
    if (!out.contains(kind)) out[kind] = py::list();
    out[kind].cast<py::list>().append(algorithm->name);
  }
  return out;
}

py::list calls_by_algorithm() {
  py::list out;
  for (const AlgorithmStats& stats : algorithm_stats()) {
    out.append(py::make_tuple(stats.name, stats.calls, stats.bytes, stats.seconds));
  }
  return out;
}

py::dict planner_costs() {
  const CostBlock block = first_costs();
  const CostParameters& costs = block.parameters;
  py::dict out;
  out["block"] = block.name();
  const auto link = [&](const char* name, const LinkCost& cost) {
    const std::string prefix(name);
    out[py::str(prefix + "_latency_us")] = cost.latency * 1e6;
    out[py::str(prefix + "_message_us")] = cost.message_cpu * 1e6;
    out[py::str(prefix + "_gbytes_per_s")] = cost.bytes_per_second / 1e9;
  };
  link("shared", costs.shared);
  link("network", costs.network);
  out["wire_gbits"] = costs.wire_gbits;
  out["copy_gbytes_per_s"] = costs.copy_bytes_per_second / 1e9;
  out["reduce_gbytes_per_s"] = costs.reduce_bytes_per_second / 1e9;
  return out;
}

py::list environment() {
  py::list out;
  for (const Env::Row& row : Env::table()) {
    py::dict entry;
    entry["name"] = row.name;
    entry["type"] = row.type;
    entry["unit"] = row.unit;
    entry["default"] = row.fallback;
    entry["meaning"] = row.meaning;
    entry["value"] = row.value;
    entry["is_set"] = row.is_set;
    out.append(entry);
  }
  return out;
}

std::string check_environment() {
  Result<Env> env = Env::get();
  return (env.ok() ? check_settings(*env) : env.status()).message();
}

}  // namespace

void bind_stats(py::module_& module) {
  module.def("transport_stats", &transport_stats);
  module.def("network_paths", &network_paths);
  module.def("group_reports", &group_reports);
  module.def("algorithm_stats", &calls_by_algorithm);
  module.def("known_algorithms", &known_algorithms);
  module.def("planner_costs", &planner_costs);
  module.def("environment", &environment);
  module.def("environment_markdown", &environment_markdown);
  module.def("check_environment", &check_environment);
  module.def("isa_name", [] { return std::string(kernels::isa_name()); });
  module.def("enable_timeline", &timeline::enable, py::arg("enabled"));
  module.def("chrome_trace_json", &timeline::chrome_json);
  module.def("flight_recorder_json", &trace::flight_recorder_json);
  module.def("dump", &dump_all_groups, py::call_guard<py::gil_scoped_release>());
}

}  // namespace taco::pg
