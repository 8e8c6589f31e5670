// The two sides of harp-perf: a server that does what clients ask for, and the client, which
// measures.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "harp/tools/perf_connection.h"
#include "harp/tools/perf_job.h"

namespace taco::harp::perf {

inline constexpr std::uint16_t kDefaultPort = 18'519;

// The settings that both sides make before their engines start: environment variables by name
// ("TACO_PATHS"). The client says them to the server; an empty value leaves a side's own.
struct Setting {
  std::string name, value;
};

struct Row {
  Job job;
  Figures client, server;  // of the server: the processor's time alone
};
struct Findings {
  std::string transport, peer;  // "udp(eth0)", "10.0.0.2:4123 (pid 5 on nodeb)"
  std::size_t engines = 1;      // that took part, on each side
  std::vector<Row> rows;
};

// Serves one client to its end. The process must have no Stack yet, and none of its environment
// parsed: the client's settings come into force.
Status serve(Connection connection);

// The same for the client; `on_row` is called as each job is done.
Result<Findings> measure(Connection connection, const std::vector<Setting>& settings,
                         const std::vector<Job>& jobs,
                         const std::function<void(const Row&)>& on_row);

}  // namespace taco::harp::perf
