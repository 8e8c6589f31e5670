#include "harp/tools/perf_job.h"

#include <sys/resource.h>

#include <sstream>

#include "harp/transport.h"

namespace taco::harp::perf {
namespace {

double processor_seconds_so_far() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

template <class Enum>
bool named(const std::string& name, Enum last, Enum* value) {
  for (int i = 0; i <= static_cast<int>(last); ++i) {
    *value = static_cast<Enum>(i);
    if (name == name_of(*value)) return true;
  }
  return false;
}

bool is_sensible(const Job& job) {
  constexpr std::size_t kMaxAtOnce = 65'536;
  return job.bytes >= 1 && job.bytes <= kMaxMessageBytes && job.rounds >= 1 &&
         job.rounds <= 100'000'000 && job.batch >= 1 && job.batch <= kMaxAtOnce && job.depth >= 1 &&
         job.depth <= kMaxAtOnce && job.seconds > 0 && job.seconds <= 3600 &&
         job.batch * job.depth <= kMaxMemory / job.bytes;
}

}  // namespace

const char* name_of(By by) {
  switch (by) {
    case By::kHarp:
      return "harp";
    case By::kTcp:
      return "tcp";
    case By::kTcpPolling:
      return "tcp-polling";
  }
  return "";
}

const char* name_of(Measure measure) {
  switch (measure) {
    case Measure::kLatency:
      return "latency";
    case Measure::kBandwidth:
      return "bandwidth";
    case Measure::kRate:
      return "rate";
  }
  return "";
}

std::string line_of(const Job& job) {
  std::ostringstream line;
  line << "job " << name_of(job.by) << ' ' << name_of(job.measure) << ' ' << job.bytes << ' '
       << job.rounds << ' ' << job.batch << ' ' << job.depth << ' ' << job.seconds;
  return line.str();
}

Result<Job> job_from(const std::string& line) {
  std::istringstream words(line);
  std::string first, by, measure, rest;
  Job job;
  words >> first >> by >> measure >> job.bytes >> job.rounds >> job.batch >> job.depth >>
      job.seconds;
  const bool whole = !words.fail() && !(words >> rest);
  if (whole && first == "job" && named(by, By::kTcpPolling, &job.by) &&
      named(measure, Measure::kRate, &job.measure) && is_sensible(job)) {
    return job;
  }
  return invalid("\"" + line.substr(0, 100) + "\" is no job for harp-perf");
}

Result<Figures> run_job(Way& way, const Job& job, bool is_client) {
  const double before = processor_seconds_so_far();
  auto figures =
      job.measure == Measure::kLatency ? way.latency(job, is_client) : way.stream(job, is_client);
  if (figures.ok()) figures->processor = processor_seconds_so_far() - before;
  return figures;
}

}  // namespace taco::harp::perf
