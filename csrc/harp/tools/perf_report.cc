#include "harp/tools/perf_report.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>

#include "base/names.h"
#include "harp/tools/json.h"

namespace taco::harp::perf {
namespace {

std::string printed(const char* format, ...) __attribute__((format(printf, 1, 2)));
std::string printed(const char* format, ...) {
  char text[256];
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return text;
}

double microseconds_at(const std::vector<Duration>& sorted, double share) {
  if (sorted.empty()) return 0;
  const auto index = static_cast<std::size_t>(share * static_cast<double>(sorted.size() - 1));
  return static_cast<double>(sorted[index]) / kMicrosecond;
}

std::vector<Duration> sorted_times(const Row& row) {
  std::vector<Duration> times = row.client.half_round_trips;
  std::ranges::sort(times);
  return times;
}

double gigabytes_of(const Row& row) {
  return static_cast<double>(row.client.messages * row.job.bytes) * 1e-9;
}

double per_second(double amount, const Row& row) {
  return row.client.seconds > 0 ? amount / row.client.seconds : 0;
}

// The number that says how good it is, in the unit of its column.
double headline(const Row& row) {
  switch (row.job.measure) {
    case Measure::kLatency:
      return microseconds_at(sorted_times(row), 0.5);
    case Measure::kBandwidth:
      return per_second(gigabytes_of(row), row);
    case Measure::kRate:
      return per_second(static_cast<double>(row.client.messages) * 1e-6, row);
  }
  return 0;
}

const char* unit_of(Measure measure) {
  switch (measure) {
    case Measure::kLatency:
      return "us";
    case Measure::kBandwidth:
      return "GB/s";
    case Measure::kRate:
      return "M/s";
  }
  return "";
}

// p99 of latencies; the processor's time of both sides for what took it.
std::string detail(const Row& row) {
  if (row.job.measure == Measure::kLatency) {
    return printed("p99 %.1f", microseconds_at(sorted_times(row), 0.99));
  }
  const double both = row.client.processor + row.server.processor;
  if (row.job.measure == Measure::kBandwidth) {
    return gigabytes_of(row) > 0 ? printed("%.3f CPU s/GB", both / gigabytes_of(row)) : "";
  }
  const auto messages = static_cast<double>(row.client.messages);
  return messages > 0 ? printed("%.3f CPU us each", both * 1e6 / messages) : "";
}

bool compares(const Row& harp, const Row& other) {
  return harp.job.by == By::kHarp && other.job.by != By::kHarp &&
         harp.job.measure == other.job.measure && harp.job.bytes == other.job.bytes;
}

std::string cell(const Row& row) {
  const double value = headline(row);
  return printed("%9.*f %-17s", value < 100 ? 3 : 1, value, detail(row).c_str());
}

}  // namespace

std::string table_of(const std::vector<Row>& rows) {
  const bool beside =
      std::ranges::any_of(rows, [](const Row& row) { return row.job.by != By::kHarp; });
  std::string text = printed("%-10s %11s %-5s %-27s", "MEASURE", "SIZE", "UNIT", "     HARP");
  if (beside) text += printed(" %-27s %9s", "      TCP", "HARP/TCP");
  text += "\n";
  for (const Row& row : rows) {
    if (row.job.by != By::kHarp) continue;
    const std::string head = printed("%-10s %11s %-5s", name_of(row.job.measure),
                                     size_text(row.job.bytes).c_str(), unit_of(row.job.measure));
    bool alone = true;
    for (const Row& other : rows) {
      if (!compares(row, other)) continue;
      alone = false;
      const double ratio = headline(other) > 0 ? headline(row) / headline(other) : 0;
      text += head + " " + cell(row) + " " + cell(other) + printed(" %8.3fx", ratio) +
              (other.job.by == By::kTcpPolling ? " (TCP polls)\n" : "\n");
    }
    if (alone) text += head + " " + cell(row) + "\n";
  }
  return text;
}

std::string json_of(const Findings& findings, const std::vector<Setting>& settings) {
  JsonObject object, set;
  for (const Setting& each : settings) {
    if (!each.value.empty()) set.add(each.name, each.value);
  }
  JsonList rows;
  for (const Row& row : findings.rows) {
    JsonObject one;
    one.add("by", name_of(row.job.by)).add("measure", name_of(row.job.measure));
    one.add("bytes", row.job.bytes);
    if (row.job.measure == Measure::kLatency) {
      const std::vector<Duration> times = sorted_times(row);
      one.add("rounds", times.size()).add("p50_us", microseconds_at(times, 0.5));
      one.add("p90_us", microseconds_at(times, 0.9)).add("p99_us", microseconds_at(times, 0.99));
    } else {
      one.add("messages", row.client.messages).add("seconds", row.client.seconds);
      one.add("bytes_per_s", per_second(gigabytes_of(row), row) * 1e9);
      one.add("messages_per_s", per_second(static_cast<double>(row.client.messages), row));
      one.add("batch", row.job.batch).add("depth", row.job.depth);
    }
    one.add("client_cpu_s", row.client.processor).add("server_cpu_s", row.server.processor);
    rows.add_json(one.text());
  }
  object.add("version", 1).add("transport", findings.transport).add("peer", findings.peer);
  object.add("engines", findings.engines);
  object.add_json("settings", set.text()).add_json("rows", rows.text());
  return object.text();
}

}  // namespace taco::harp::perf
