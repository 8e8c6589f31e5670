#include "harp/tools/perf_plan.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/names.h"
#include "harp/tools/arguments.h"
#include "harp/transport.h"

namespace taco::harp::perf {
namespace {

constexpr char kUsage[] =
    "usage: harp-perf [options]                two processes on this host\n"
    "       harp-perf --server [options]       one of two hosts\n"
    "       harp-perf --client HOST [options]  the other one, which measures\n"
    "\n"
    "Measures messages between two processes: half round trips (latency), one way as\n"
    "fast as they go (bandwidth), and small ones in batches (rate), with the processor\n"
    "time of both sides. A server does what clients ask for and shows them the secret\n"
    "of its process: run it where you trust the network.\n"
    "\n";

using Take = std::function<Status(const std::string&)>;

// Calls `take` for each of the names between commas.
Status take_list(const std::string& list, const Take& take) {
  for (std::size_t at = 0; at <= list.size();) {
    const std::size_t comma = std::min(list.find(',', at), list.size());
    TACO_RETURN_IF_ERROR(take(list.substr(at, comma - at)));
    at = comma + 1;
  }
  return {};
}

Take set_measures(std::vector<Measure>& measures) {
  return [&measures](const std::string& list) {
    measures.clear();
    return take_list(list, [&measures](const std::string& name) {
      for (const Measure each : {Measure::kLatency, Measure::kBandwidth, Measure::kRate}) {
        if (name != name_of(each)) continue;
        measures.push_back(each);
        return Status();
      }
      return invalid("must be some of latency, bandwidth and rate, with commas between them");
    });
  };
}

Take set_sizes(std::vector<std::size_t>& sizes) {
  return [&sizes](const std::string& list) {
    sizes.clear();
    return take_list(list, [&sizes](const std::string& text) {
      const auto bytes = bytes_from(text, 1, kMaxMessageBytes);
      if (bytes.ok()) sizes.push_back(bytes.value());
      return bytes.status();
    });
  };
}

std::vector<Option> side_options(Choices& choices) {
  return {
      {"--server", "", "Serves clients, one after the other, until it is stopped.",
       set_flag(choices.server)},
      {"--once", "", "A server ends with its first client.", set_flag(choices.once)},
      {"--listen", "ADDRESS", "Where a server can be reached (all addresses).",
       set_text(choices.listen)},
      {"--client", "HOST", "Measures with the server there.", set_text(choices.client)},
      {"--port", "N", "The server's TCP port (18519).", set_integer(choices.port, 0, 65'535)},
  };
}

std::vector<Option> job_options(Choices& choices) {
  return {
      {"--measure", "LIST", "Some of latency,bandwidth,rate (all).",
       set_measures(choices.measures)},
      {"--sizes", "LIST", "Sizes of messages, as 8,64K,4M, for every measure.",
       set_sizes(choices.sizes)},
      {"--rounds", "N", "Round trips of each latency, at most (5000).",
       [&choices](const std::string& value) {
         Status status = set_integer(choices.rounds, 1, 100'000'000)(value);
         choices.ranks.rounds = choices.rounds;
         return status;
       }},
      {"--seconds", "S", "How long each measure goes on, a latency at most (1).",
       [&choices](const std::string& value) {
         Status status = set_number(choices.seconds, 0.01, 3600)(value);
         choices.ranks.seconds = choices.seconds;
         return status;
       }},
      {"--window", "N", "Messages under way in a bandwidth (4).",
       [&choices](const std::string& value) {
         Status status = set_integer(choices.window, 1, 65'536)(value);
         choices.ranks.window = choices.window;
         return status;
       }},
      {"--batch", "N", "Messages posted together in a rate (64).",
       set_integer(choices.batch, 1, 4096)},
      {"--tcp", "", "Measures one TCP connection between the same two, too.",
       set_flag(choices.tcp)},
      {"--json", "", "Prints one JSON object.", set_flag(choices.json)},
      {"--help", "", "Shows this.", set_flag(choices.help)},
  };
}

std::vector<Option> transport_options(Choices& choices) {
  return {
      {"--transport", "NAME", "auto, shm (shared memory) or udp (packets): TACO_TRANSPORT.",
       [&choices](const std::string& value) {
         Status status = set_choice(choices.transport, {"auto", "shm", "udp"})(value);
         choices.ranks.transport = choices.transport;
         return status;
       }},
      {"--driver", "NAME", "What packets leave and arrive by: TACO_HARP_DRIVER.",
       set_text(choices.driver)},
      {"--paths", "N", "Paths between each pair of interfaces: TACO_PATHS.",
       set_integer(choices.paths, 1, 8)},
      {"--security", "LEVEL", "none, auth or encrypt: TACO_HARP_SECURITY.",
       set_choice(choices.security, {"none", "auth", "encrypt"})},
      {"--checksum", "NAME", "crc32c or kernel: TACO_HARP_CHECKSUM.",
       set_choice(choices.checksum, {"crc32c", "kernel"})},
      {"--engines", "N", "Engines of each side, which all do a measure at once: TACO_HARP_ENGINES.",
       set_integer(choices.engines, 1, 64)},
      {"--cores", "LIST", "A core for each engine, the same on both sides: TACO_HARP_CORES.",
       set_text(choices.cores)},
  };
}

// Notes that an option is for ranks alone.
Take of_ranks(Choices& choices, const char* name, Take take) {
  return [&choices, name, take = std::move(take)](const std::string& value) {
    choices.only_of_ranks = name;
    return take(value);
  };
}

std::vector<Option> rank_options(Choices& choices) {
  RankSettings& ranks = choices.ranks;
  return {
      {"--files", "PATH", "Two ranks or more that find each other by files PATH.0, PATH.1 ...",
       set_text(ranks.files)},
      {"--rank", "R", "Which of them this one is.",
       of_ranks(choices, "--rank", set_integer(ranks.rank, 0, 65'535))},
      {"--ranks", "N", "How many there are (2); above 2 without --rank: all of them, here.",
       set_integer(ranks.ranks, 2, 4096)},
      {"--master", "HOST", "A host that the interface to use leads to.",
       of_ranks(choices, "--master", set_text(ranks.master))},
      {"--bytes", "SIZE", "Of large messages (8M).",
       of_ranks(choices, "--bytes", set_bytes(ranks.bytes, 1, kMaxMessageBytes))},
      {"--small", "SIZE", "Of small messages (8).",
       of_ranks(choices, "--small", set_bytes(ranks.small, 0, kMaxMessageBytes))},
      {"--first", "US", "Measures the first message, asked for so many microseconds after it left.",
       of_ranks(choices, "--first", set_integer(ranks.first_us, 0, 60'000'000))},
      {"--start", "S", "When throughput begins, on the monotonic clock.",
       of_ranks(choices, "--start", set_number(ranks.start, 0, 1e12))},
  };
}

std::vector<Option> all_options(Choices& choices) {
  std::vector<Option> all;
  for (auto* part : {side_options, job_options, transport_options, rank_options}) {
    for (Option& option : part(choices)) all.push_back(std::move(option));
  }
  return all;
}

Status check(const Choices& choices) {
  const bool by_files = choices.meets_by_files();
  if (!choices.only_of_ranks.empty() && !by_files) {
    return invalid(choices.only_of_ranks + " is for ranks that meet by files: it needs --files");
  }
  if (choices.ranks.rank >= 0 && choices.ranks.files.empty())
    return invalid("--rank needs --files");
  if (choices.ranks.rank >= choices.ranks.ranks) {
    return invalid("--rank " + std::to_string(choices.ranks.rank) + " is none of " +
                   std::to_string(choices.ranks.ranks) + " (--ranks): give 0 to " +
                   std::to_string(choices.ranks.ranks - 1));
  }
  if (choices.ranks.first_us >= 0 && choices.ranks.ranks != 2) {
    return invalid("--first is for two ranks");
  }
  if (by_files && (choices.server || !choices.client.empty() || choices.json || choices.tcp)) {
    return invalid("ranks that meet by files take no --server, --client, --json or --tcp");
  }
  if (by_files && (choices.engines != 0 || !choices.cores.empty())) {
    return invalid("ranks that meet by files have one engine, without --engines or --cores");
  }
  if (choices.server && !choices.client.empty()) return invalid("--server or --client, not both");
  if (!choices.server && (choices.once || !choices.listen.empty())) {
    return invalid("--once and --listen are for --server");
  }
  if (choices.server && (choices.json || choices.tcp)) {
    return invalid("--json and --tcp are the client's to say");
  }
  for (const Job& job : jobs_of(choices)) {
    if (job.memory_bytes() <= kMaxMemory) continue;
    return invalid(std::to_string(job.batch * job.depth) + " messages of " + size_text(job.bytes) +
                   " at once take more than " + size_text(kMaxMemory) +
                   ": lessen --sizes, --window or --batch");
  }
  return {};
}

std::vector<std::size_t> sizes_of(const Choices& choices, Measure measure) {
  if (!choices.sizes.empty()) return choices.sizes;
  switch (measure) {
    case Measure::kLatency:
      return {8, 1024, std::size_t{64} << 10};
    case Measure::kBandwidth:
      return {std::size_t{64} << 10, std::size_t{1} << 20, std::size_t{8} << 20};
    case Measure::kRate:
      return {8, 64, 1024};
  }
  return {};
}

}  // namespace

Status take_choices(const std::vector<std::string>& arguments, Choices& choices) {
  TACO_RETURN_IF_ERROR(
      take_arguments(arguments, all_options(choices), [](const std::string& other) {
        return invalid("\"" + other + "\" is no option; a server is named by --client " + other);
      }));
  return choices.help ? Status() : check(choices);
}

std::string help_text() {
  Choices choices;
  return kUsage + help_of(side_options(choices)) + "\nWhat is measured:\n" +
         help_of(job_options(choices)) + "\nBy what, on both sides:\n" +
         help_of(transport_options(choices)) + "\nFor benchmarks:\n" +
         help_of(rank_options(choices));
}

std::vector<Setting> settings_of(const Choices& choices) {
  return {{"TACO_TRANSPORT", choices.transport},
          {"TACO_HARP_DRIVER", choices.driver},
          {"TACO_PATHS", choices.paths == 0 ? "" : std::to_string(choices.paths)},
          {"TACO_HARP_SECURITY", choices.security},
          {"TACO_HARP_CHECKSUM", choices.checksum},
          {"TACO_HARP_ENGINES", choices.engines == 0 ? "" : std::to_string(choices.engines)},
          {"TACO_HARP_CORES", choices.cores}};
}

// Small messages are posted in batches, of which two are under way.
std::vector<Job> jobs_of(const Choices& choices) {
  std::vector<Job> jobs;
  for (const Measure measure : choices.measures) {
    for (const std::size_t bytes : sizes_of(choices, measure)) {
      Job job{.measure = measure, .bytes = bytes, .rounds = choices.rounds};
      job.seconds = choices.seconds;
      if (measure == Measure::kBandwidth) job.depth = static_cast<std::size_t>(choices.window);
      if (measure == Measure::kRate) {
        job.batch = static_cast<std::size_t>(choices.batch);
        job.depth = 2;
      }
      jobs.push_back(job);
      if (!choices.tcp) continue;
      job.by = By::kTcp;
      jobs.push_back(job);
      if (measure != Measure::kLatency) continue;
      job.by = By::kTcpPolling;
      jobs.push_back(job);
    }
  }
  return jobs;
}

}  // namespace taco::harp::perf
