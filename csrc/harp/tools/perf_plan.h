// The wishes of whoever starts harp-perf, and the jobs that follow from it.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "harp/tools/perf_ranks.h"
#include "harp/tools/perf_session.h"

namespace taco::harp::perf {

struct Choices {
  bool help = false, json = false, tcp = false;
  // Sides.
  bool server = false, once = false;
  std::string client, listen;
  std::int64_t port = kDefaultPort;
  // Settings of both sides.
  std::string transport, driver, security, checksum;
  std::int64_t paths = 0, engines = 0;  // 0: as the environment says
  std::string cores;
  // Measures.
  std::vector<Measure> measures = {Measure::kLatency, Measure::kBandwidth, Measure::kRate};
  std::vector<std::size_t> sizes;  // empty: some for each measure
  std::int64_t rounds = 5'000, window = 4, batch = 64;
  double seconds = 1;
  // Ranks that meet by files.
  RankSettings ranks;
  std::string only_of_ranks;  // an option that was given and is for them alone

  bool meets_by_files() const { return !ranks.files.empty() || ranks.ranks > 2; }
};

// kInvalidArgument names the argument, its value and what to do.
Status take_choices(const std::vector<std::string>& arguments, Choices& choices);
std::string help_text();
std::vector<Setting> settings_of(const Choices& choices);
std::vector<Job> jobs_of(const Choices& choices);

}  // namespace taco::harp::perf
