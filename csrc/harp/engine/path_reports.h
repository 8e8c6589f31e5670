// The single paths of this process, for people to read. Any thread, without the GIL and without a
// lock that the engine takes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"

namespace taco::harp {

// One way to a peer over the network, as it stands.
struct PathReport {
  std::string peer;              // as Stack::describe() says
  std::string local, remote;     // "10.0.0.1:41234"
  const char* state = "";        // "live", "proving", "left", "resting"
  Duration round_trip = 0;       // smoothed; 0: not known
  std::uint64_t window = 0;      // packets that may be under way
  std::uint64_t bytes_sent = 0;  // payload
  std::uint64_t lost = 0;        // packets
  std::uint64_t datagram = 0;    // the largest that is known to arrive
};

// An interface of Transports that reach peers over a network, by paths. Engine only.
class PathSource {
 public:
  virtual ~PathSource() = default;
  virtual std::vector<PathReport> paths_st() const = 0;  // peer by peer
};

// The reports of all Stacks that are in use, peer by peer.
struct PathReports {
  std::vector<PathReport> paths;
  bool complete = true;  // false: an engine did not answer in time
};
PathReports report_paths(Time deadline = kNever);

// "10.0.0.1:5000 to 10.0.0.2:5000: live, round trip 0.310 ms, ..."
std::string describe(const PathReport& path);

}  // namespace taco::harp
