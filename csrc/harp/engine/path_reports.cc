#include "harp/engine/path_reports.h"

#include <cinttypes>
#include <cstdio>
#include <memory>
#include <utility>

#include "harp/engine/engine_call.h"
#include "harp/engine/held_stacks.h"

namespace taco::harp {

PathReports report_paths(Time deadline) {
  PathReports all;
  for (const auto& stack : live_stacks()) {
    if (!stack->usable().ok()) continue;
    auto found = std::make_shared<std::vector<PathReport>>();  // the engine may come to it too late
    const bool ran = call_on_engine(
        stack->engine(),
        [found](Transport& transport) {
          if (const auto* source = dynamic_cast<PathSource*>(&transport)) {
            *found = source->paths_st();
          }
        },
        deadline);
    if (!ran) {
      // One that was closed meanwhile has no paths any more.
      all.complete = all.complete && !stack->usable().ok();
      continue;
    }
    for (PathReport& path : *found) all.paths.push_back(std::move(path));
  }
  return all;
}

std::string describe(const PathReport& path) {
  char facts[160];
  std::snprintf(facts, sizeof facts,
                "round trip %.3f ms, window %" PRIu64 " packets, %.1f MiB sent, %" PRIu64
                " packets lost, datagrams of %" PRIu64 " bytes",
                static_cast<double>(path.round_trip) / kMillisecond, path.window,
                static_cast<double>(path.bytes_sent) / (1 << 20), path.lost, path.datagram);
  return path.local + " to " + path.remote + ": " + path.state + ", " + facts;
}

}  // namespace taco::harp
