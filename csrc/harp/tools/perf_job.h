// The jobs that the two sides of harp-perf do together, one thing after the other: the client says
// each job to the server in a line, both do it, and each knows what it took.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace taco::harp::perf {

enum class By : std::uint8_t { kHarp, kTcp, kTcpPolling };
enum class Measure : std::uint8_t { kLatency, kBandwidth, kRate };
const char* name_of(By by);
const char* name_of(Measure measure);

struct Job {
  By by = By::kHarp;
  Measure measure = Measure::kLatency;
  std::size_t bytes = 8;    // of a message
  std::int64_t rounds = 1;  // of kLatency, at most
  // For streams: messages that are posted together, and how many such batches are under way.
  std::size_t batch = 1, depth = 1;
  double seconds = 1;  // so long the client goes on

  // Behind that round of kLatency, which begins after so long.
  bool has_time_for_another(std::int64_t round, Duration taken) const {
    return round + 1 < rounds && static_cast<double>(taken) / kSecond < seconds;
  }

  std::size_t memory_bytes() const { return bytes * batch * depth; }
};
// A side holds so much at once, at most.
inline constexpr std::size_t kMaxMemory = std::size_t{4} << 30;

std::string line_of(const Job& job);
// kInvalidArgument: the line is no job, or asks for more than is sensible.
Result<Job> job_from(const std::string& line);

// The findings of one side.
struct Figures {
  std::vector<Duration> half_round_trips;  // of the client's latency
  std::uint64_t messages = 0;              // of streams
  double seconds = 0;
  double processor = 0;  // seconds, of the whole process
};

// A way for messages to the other side.
class Way {
 public:
  virtual ~Way() = default;
  virtual Result<Figures> latency(const Job& job, bool is_client) = 0;
  // The client sends.
  virtual Result<Figures> stream(const Job& job, bool is_client) = 0;
};

// Runs the job by that way, beside the processor's time.
Result<Figures> run_job(Way& way, const Job& job, bool is_client);

}  // namespace taco::harp::perf
