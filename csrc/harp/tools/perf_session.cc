#include "harp/tools/perf_session.h"

#include <stdlib.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "base/names.h"
#include "harp/tools/perf_ways.h"

namespace taco::harp::perf {
namespace {

constexpr char kGreeting[] = "harp-perf 3";
// The variables that a client may set at its server.
constexpr const char* kSettable[] = {
    "TACO_TRANSPORT",     "TACO_HARP_DRIVER",  "TACO_PATHS",     "TACO_HARP_SECURITY",
    "TACO_HARP_CHECKSUM", "TACO_HARP_ENGINES", "TACO_HARP_CORES"};

std::string hex_text(const std::string& bytes) {
  return hex_of(std::as_bytes(std::span(bytes.data(), bytes.size())));
}

Result<std::string> bytes_of_hex(const std::string& text) {
  std::string bytes;
  const auto digit = [](char each) { return std::string_view("0123456789abcdef").find(each); };
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    if (digit(text[i]) > 15 || digit(text[i + 1]) > 15) break;
    bytes += static_cast<char>(digit(text[i]) << 4 | digit(text[i + 1]));
  }
  if (2 * bytes.size() == text.size()) return bytes;
  return invalid("the other side's address is damaged");
}

Status greet(Connection& connection, bool is_client) {
  if (is_client) TACO_RETURN_IF_ERROR(connection.send_line(kGreeting));
  const auto said = connection.receive_line();
  if (!said.ok()) return said.status();
  if (!is_client) TACO_RETURN_IF_ERROR(connection.send_line(kGreeting));
  if (said.value() == kGreeting) return {};
  return Status(Code::kVersionMismatch, "the other side says \"" + said.value().substr(0, 40) +
                                            "\", this one \"" + kGreeting +
                                            "\": use the same taco_torch on both");
}

// An end of a session that is under way, of one engine: what connects the two sides besides the
// connection.
struct End {
  std::shared_ptr<Stack> stack;
  PeerId peer = 0;

  explicit End(std::shared_ptr<Stack> made) : stack(std::move(made)) {}
  End(End&&) = default;
  End& operator=(End&&) = delete;
  ~End() {
    if (stack != nullptr) stack->close();
  }
};
using Ends = std::vector<End>;  // by engine

Status exchange_addresses(Connection& connection, End& end) {
  TACO_RETURN_IF_ERROR(connection.send_line("address " + hex_text(end.stack->address())));
  auto said = connection.expect("address");
  if (!said.ok()) return said.status();
  const auto address = bytes_of_hex(said.value());
  if (!address.ok()) return address.status();
  const auto peer = end.stack->add_peer(address.value());
  if (!peer.ok()) return peer.status();
  end.peer = peer.value();
  return {};
}

Status agree_on_engines(Connection& connection, int engines) {
  const std::string own = std::to_string(engines);
  TACO_RETURN_IF_ERROR(connection.send_line("engines " + own));
  const auto said = connection.expect("engines");
  if (!said.ok()) return said.status();
  if (said.value() == own) return {};
  return invalid("TACO_HARP_ENGINES is " + own + " here and " + said.value().substr(0, 40) +
                 " on the other side: say --engines, which holds for both");
}

Result<Ends> connect_engines(Connection& connection) {
  auto options = StackOptions::from_env();
  if (!options.ok()) return options.status();
  options->master = connection.other_host();
  TACO_RETURN_IF_ERROR(agree_on_engines(connection, options->engines));
  Ends ends;
  for (options->engine = 0; options->engine < options->engines; ++options->engine) {
    auto stack = Stack::acquire(*options);
    if (!stack.ok()) return stack.status();
    ends.emplace_back(std::move(stack).value());
    TACO_RETURN_IF_ERROR(exchange_addresses(connection, ends.back()));
  }
  return ends;
}

std::vector<Lane> lanes_of(const Ends& ends) {
  std::vector<Lane> lanes;
  for (const End& end : ends) lanes.emplace_back(*end.stack, end.peer);
  return lanes;
}

class Ways {
 public:
  Ways(Connection& connection, const Ends& ends)
      : harp_(lanes_of(ends)), tcp_(connection, false), polling_(connection, true) {}
  Way& by(By by) {
    if (by == By::kHarp) return harp_;
    return by == By::kTcp ? tcp_ : polling_;
  }

 private:
  HarpWay harp_;
  TcpWay tcp_, polling_;
};

Status take_setting(const std::string& text) {
  const std::size_t equals = text.find('=');
  const std::string name = text.substr(0, equals);
  if (equals == std::string::npos || std::ranges::count(kSettable, name) == 0) {
    return invalid("\"" + text.substr(0, 100) + "\" is not for a client of harp-perf to set");
  }
  setenv(name.c_str(), text.c_str() + equals + 1, 1);
  return {};
}

// Up to the address: settings, one a line, then "settled".
Status take_settings(Connection& connection) {
  for (;;) {
    auto line = connection.receive_line();
    if (!line.ok()) return line.status();
    if (*line == "settled") return {};
    if (!line->starts_with("set ")) return invalid("\"" + line->substr(0, 100) + "\" is unknown");
    TACO_RETURN_IF_ERROR(take_setting(line->substr(4)));
  }
}

Status serve_jobs(Connection& connection, Ways& ways) {
  for (;;) {
    const auto line = connection.receive_line();
    if (!line.ok()) return line.status();
    if (line.value() == "bye") return {};
    const auto job = job_from(line.value());
    if (!job.ok()) return job.status();
    TACO_RETURN_IF_ERROR(connection.send_line("ready"));
    const auto figures = run_job(ways.by(job.value().by), job.value(), false);
    if (!figures.ok()) return figures.status();
    std::ostringstream done;
    done << "done " << figures.value().processor;
    TACO_RETURN_IF_ERROR(connection.send_line(done.str()));
  }
}

Status serve_session(Connection& connection) {
  TACO_RETURN_IF_ERROR(greet(connection, false));
  TACO_RETURN_IF_ERROR(take_settings(connection));
  auto ends = connect_engines(connection);
  if (!ends.ok()) return ends.status();
  Ways ways(connection, ends.value());
  return serve_jobs(connection, ways);
}

Result<Row> measure_one(Connection& connection, Ways& ways, const Job& job) {
  TACO_RETURN_IF_ERROR(connection.send_line(line_of(job)));
  const auto ready = connection.expect("ready");
  if (!ready.ok()) return ready.status();
  auto figures = run_job(ways.by(job.by), job, true);
  if (!figures.ok()) return figures.status();
  const auto done = connection.expect("done");
  if (!done.ok()) return done.status();
  Row row{job, std::move(figures).value(), {}};
  row.server.processor = strtod(done.value().c_str(), nullptr);
  return row;
}

}  // namespace

Status serve(Connection connection) {
  Status status = serve_session(connection);
  if (status.ok()) return status;
  std::string text = status.message();
  std::ranges::replace(text, '\n', ' ');
  static_cast<void>(connection.send_line("failed " + text));  // whoever is there still may know
  return status;
}

Result<Findings> measure(Connection connection, const std::vector<Setting>& settings,
                         const std::vector<Job>& jobs,
                         const std::function<void(const Row&)>& on_row) {
  TACO_RETURN_IF_ERROR(greet(connection, true));
  for (const Setting& each : settings) {
    if (each.value.empty()) continue;
    const std::string text = each.name + "=" + each.value;
    TACO_RETURN_IF_ERROR(take_setting(text));
    TACO_RETURN_IF_ERROR(connection.send_line("set " + text));
  }
  TACO_RETURN_IF_ERROR(connection.send_line("settled"));
  auto ends = connect_engines(connection);
  if (!ends.ok()) return ends.status();
  Ways ways(connection, ends.value());
  Findings findings;
  const End& first = ends->front();
  findings.transport = first.stack->transport_summary();
  findings.peer = first.stack->describe(first.peer);
  findings.engines = ends->size();
  for (const Job& job : jobs) {
    auto row = measure_one(connection, ways, job);
    if (!row.ok()) return row.status();
    on_row(row.value());
    findings.rows.push_back(std::move(row).value());
  }
  TACO_RETURN_IF_ERROR(connection.send_line("bye"));
  return findings;
}

}  // namespace taco::harp::perf
