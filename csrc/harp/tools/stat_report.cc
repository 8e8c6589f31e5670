#include "harp/tools/stat_report.h"

#include <algorithm>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <string_view>

#include "harp/address.h"
#include "harp/engine/stat_publisher.h"
#include "harp/tools/json.h"

namespace taco::harp::statistics {
namespace {

std::string print(const char* format, ...) __attribute__((format(printf, 1, 2)));
std::string print(const char* format, ...) {
  char text[512];
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return text;
}

std::string address_text(const std::array<std::byte, 16>& address, std::uint16_t port) {
  Endpoint endpoint = endpoint_from(address, 0);
  set_port(endpoint, port);
  return to_string(endpoint);
}

// "1.50 GB", "12.0 kB".
std::string amount(double value, const char* unit) {
  const char* const prefixes[] = {"", "k", "M", "G", "T"};
  std::size_t step = 0;
  for (; value >= 999.5 && step + 1 < std::size(prefixes); ++step) value /= 1000;
  const int digits = step == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return print("%.*f %s%s", digits, value, prefixes[step], unit);
}

const Look* earlier(const std::vector<Look>& before, const Look& now) {
  const auto found = std::ranges::find_if(before, [&](const Look& each) {
    return each.pid == now.pid && each.identity == now.identity;
  });
  return found == before.end() ? nullptr : &*found;
}

const Row* earlier(const Look& before, const Row& now) {
  const auto found = std::ranges::find_if(before.state.rows, [&](const Row& each) {
    return each.peer == now.peer && each.path == now.path && each.reach == now.reach;
  });
  return found == before.state.rows.end() ? nullptr : &*found;
}

// Seconds between what two looks show. A page that was written a long time before the first look
// tells of no traffic until then.
double seconds_between(const Look& before, const Look& now) {
  const auto written = static_cast<double>(now.state.totals.time - before.state.totals.time);
  const auto looked = static_cast<double>(now.seen - before.seen + StatPublisher::kPeriod);
  return std::min(written, looked) / kSecond;
}

double rate(std::uint64_t before, std::uint64_t now, double seconds) {
  return now > before && seconds > 0 ? static_cast<double>(now - before) / seconds : 0;
}

// Rates of one engine; without an earlier look there are none.
class Rates {
 public:
  Rates(const Look* before, const Look& now)
      : before_(before), now_(now), seconds_(before ? seconds_between(*before, now) : 0) {}

  std::string of(Counter counter, const char* unit) const {
    if (before_ == nullptr) return "-";
    const Totals& totals = now_.state.totals;
    return amount(rate(before_->state.totals[counter], totals[counter], seconds_), unit);
  }
  std::string of(const Row& row) const {
    const Row* const earlier_row = before_ == nullptr ? nullptr : earlier(*before_, row);
    if (earlier_row == nullptr) return "-";
    return amount(rate(earlier_row->bytes_sent, row.bytes_sent, seconds_), "B/s");
  }

 private:
  const Look* const before_;
  const Look& now_;
  const double seconds_;
};

std::string drops_text(const Totals& totals) {
  std::string text;
  for (const CounterText& each : counter_texts()) {
    if (each.cause == nullptr || totals[each.counter] == 0) continue;
    text += print("%s%" PRIu64 " %s", text.empty() ? "" : ", ", totals[each.counter], each.cause);
  }
  return text.empty() ? "none" : text;
}

std::string head_of(const Look& look, const Rates& rates) {
  const Totals& totals = look.state.totals;
  const auto is_there = [](const auto& text) { return text[0] != '\0'; };
  std::string text = print("%s, process %d, engine %d: driver %s", look.program.c_str(), look.pid,
                           look.engine, text_of(look.about.driver).c_str());
  for (const std::string& more :
       {text_of(look.about.transport), text_of(look.about.security),
        is_there(look.about.congestion) ? text_of(look.about.congestion) : std::string()}) {
    if (!more.empty()) text += ", " + more;
  }
  text += print("\n  %" PRIu64 " peers, %" PRIu64 " sessions, %" PRIu64 " live paths, %" PRIu64
                " links of shared memory\n",
                totals[Counter::kPeers], totals[Counter::kSessions], totals[Counter::kPaths],
                totals[Counter::kShmLinks]);
  text += "  network: out " + rates.of(Counter::kBytesSent, "B/s") + ", in " +
          rates.of(Counter::kBytesReceived, "B/s") + ", packets out " +
          rates.of(Counter::kPacketsSent, "/s") + ", in " +
          rates.of(Counter::kPacketsReceived, "/s") + "; shared memory: out " +
          rates.of(Counter::kShmBytesSent, "B/s") + ", in " +
          rates.of(Counter::kShmBytesReceived, "B/s") + "\n";
  text += print("  retransmits %" PRIu64 " (%s), of them spurious %" PRIu64 "; dropped: ",
                totals[Counter::kRetransmits], rates.of(Counter::kRetransmits, "/s").c_str(),
                totals[Counter::kSpuriousRetransmits]);
  return text + drops_text(totals) + "\n";
}

std::string line_of(const Row& row, const Rates& rates) {
  const std::string name = text_of(row.name);
  if (row.reach != Reach::kNetwork) {
    return print("  %-44s %-9s %s\n", name.c_str(), name_of(row.standing), name_of(row.reach));
  }
  const std::string way =
      address_text(row.local, row.local_port) + " > " + address_text(row.remote, row.remote_port);
  const std::string round_trip =
      row.round_trip == 0 ? "-" : print("%.3f", static_cast<double>(row.round_trip) / kMillisecond);
  return print("  %-44s %-9s %-46s %10s %11s %7" PRIu64 " %9" PRIu64 " %8" PRIu64 "\n",
               name.c_str(), name_of(row.standing), way.c_str(), round_trip.c_str(),
               rates.of(row).c_str(), row.window, row.in_flight, row.packets_lost);
}

std::string json_of(const Row& row) {
  JsonObject object;
  object.add("peer", text_of(row.name)).add("peer_pid", row.pid);
  object.add("reach", name_of(row.reach)).add("state", name_of(row.standing));
  if (row.reach != Reach::kNetwork) return object.text();
  object.add("path", row.path);
  object.add("local", address_text(row.local, row.local_port));
  object.add("remote", address_text(row.remote, row.remote_port));
  object.add("round_trip_s", static_cast<double>(row.round_trip) / kSecond);
  object.add("window_packets", row.window).add("in_flight_packets", row.in_flight);
  object.add("sent_bytes", row.bytes_sent).add("sent_packets", row.packets_sent);
  object.add("lost_packets", row.packets_lost).add("datagram_bytes", row.datagram);
  return object.text();
}

std::string json_of(const Look& look) {
  JsonObject object, counters, dropped;
  JsonList rows;
  for (const CounterText& each : counter_texts()) {
    const std::uint64_t value = look.state.totals[each.counter];
    if (each.cause != nullptr) {
      dropped.add(each.cause, value);
    } else {
      counters.add(each.name, value);
    }
  }
  for (const Row& row : look.state.rows) rows.add_json(json_of(row));
  object.add("pid", look.pid).add("program", look.program).add("engine", look.engine);
  object.add("driver", text_of(look.about.driver));
  object.add("transport", text_of(look.about.transport));
  object.add("security", text_of(look.about.security));
  object.add("congestion", text_of(look.about.congestion));
  object.add("time_s", static_cast<double>(look.state.totals.time) / kSecond);
  object.add_json("counters", counters.text()).add_json("dropped_packets", dropped.text());
  object.add_json("paths", rows.text());
  object.add("paths_left_out", look.state.totals.rows_left_out);
  return object.text();
}

std::string labels_of(const Look& look) {
  return "pid=" + json_text(std::to_string(look.pid)) +
         ",engine=" + json_text(std::to_string(look.engine)) +
         ",program=" + json_text(look.program) + ",driver=" + json_text(text_of(look.about.driver));
}

struct PathMetric {
  const char* name;
  bool is_gauge;
  const char* meaning;
  double (*value)(const Row& row);
};
constexpr PathMetric kPathMetrics[] = {
    {"harp_path_live", true, "Whether packets leave by the path.",
     [](const Row& row) { return row.standing == Standing::kLive ? 1.0 : 0.0; }},
    {"harp_path_round_trip_seconds", true, "Smoothed round trip; 0 where it is not known.",
     [](const Row& row) { return static_cast<double>(row.round_trip) / kSecond; }},
    {"harp_path_window_packets", true, "Packets that may be under way.",
     [](const Row& row) { return static_cast<double>(row.window); }},
    {"harp_path_sent_bytes_total", false, "Payload sent by the path.",
     [](const Row& row) { return static_cast<double>(row.bytes_sent); }},
    {"harp_path_lost_packets_total", false, "Packets lost on the path.",
     [](const Row& row) { return static_cast<double>(row.packets_lost); }},
};

std::string heading(const std::string& name, bool is_gauge, const char* meaning) {
  return "# HELP " + name + " " + meaning + "\n# TYPE " + name +
         (is_gauge ? " gauge\n" : " counter\n");
}

std::string path_samples(const PathMetric& metric, const std::vector<Look>& looks) {
  std::string text = heading(metric.name, metric.is_gauge, metric.meaning);
  for (const Look& look : looks) {
    for (const Row& row : look.state.rows) {
      if (row.reach != Reach::kNetwork) continue;
      text += std::string(metric.name) + "{" + labels_of(look) +
              ",peer=" + json_text(text_of(row.name)) +
              ",path=" + json_text(std::to_string(row.path)) +
              ",local=" + json_text(address_text(row.local, row.local_port)) +
              ",remote=" + json_text(address_text(row.remote, row.remote_port)) + "} " +
              print("%.17g", metric.value(row)) + "\n";
    }
  }
  return text;
}

}  // namespace

std::string table_of(const std::vector<Look>& now, const std::vector<Look>& before) {
  std::string text;
  for (const Look& look : now) {
    const Rates rates(earlier(before, look), look);
    if (!text.empty()) text += "\n";
    text += head_of(look, rates);
    if (look.state.rows.empty()) continue;
    text += print("  %-44s %-9s %-46s %10s %11s %7s %9s %8s\n", "PEER", "STATE", "PATH", "RTT ms",
                  "RATE", "WINDOW", "IN FLIGHT", "LOST");
    for (const Row& row : look.state.rows) text += line_of(row, rates);
    if (look.state.totals.rows_left_out == 0) continue;
    text += print("  and %" PRIu64 " more\n", look.state.totals.rows_left_out);
  }
  return text;
}

std::string json_of(const Everything& all) {
  JsonObject object;
  JsonList engines, problems;
  for (const Look& look : all.looks) engines.add_json(json_of(look));
  for (const std::string& each : all.problems) problems.add_json(json_text(each));
  object.add("layout", kVersion).add_json("engines", engines.text());
  object.add_json("problems", problems.text());
  return object.text();
}

std::string prometheus_of(const std::vector<Look>& looks) {
  std::string text;
  const char* told = "";
  for (const CounterText& each : counter_texts()) {
    const std::string name = std::string("harp_") + each.name + (each.is_gauge ? "" : "_total");
    // The causes of one count stand together, under one heading.
    if (std::string_view(told) != each.name) text += heading(name, each.is_gauge, each.meaning);
    told = each.name;
    for (const Look& look : looks) {
      text += name + "{" + labels_of(look);
      if (each.cause != nullptr) text += std::string(",cause=\"") + each.cause + "\"";
      text += print("} %" PRIu64 "\n", look.state.totals[each.counter]);
    }
  }
  for (const PathMetric& metric : kPathMetrics) text += path_samples(metric, looks);
  return text;
}

}  // namespace taco::harp::statistics
