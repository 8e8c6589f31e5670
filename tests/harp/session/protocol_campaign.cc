// protocol_campaign [--seeds N] [--first SEED] [--threads N] [--pcap FILE]: the protocol under
// seeded faults, over the engine's own loop, with a report of how often each fault fired. Prints
// every seed that fails; run alone, `--first SEED --seeds 1 --pcap FILE` writes all its packets for
// Wireshark (tools/harp.lua). Exit status: 0, or 1 if a seed failed, or 2 for a wrong option.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>

#include "support/campaign_run.h"

namespace taco::harp {
namespace {

struct Options {
  CampaignRun run;
  std::string pcap;
};

std::uint64_t number_of(const std::string& option, std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value == 0) {
    throw std::invalid_argument(option + " " + std::string(text) +
                                ": expected a whole number of at least 1");
  }
  return value;
}

Options parse(int argc, char** argv) {
  Options options;
  options.run.seeds = 10'000;
  options.run.threads = std::max(1u, std::thread::hardware_concurrency());
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (name != "--seeds" && name != "--first" && name != "--threads" && name != "--pcap") {
      throw std::invalid_argument("unknown option " + name +
                                  ": expected --seeds, --first, --threads or --pcap");
    }
    if (i + 1 == argc) throw std::invalid_argument(name + " needs a value");
    const char* const value = argv[i + 1];
    if (name == "--seeds") options.run.seeds = number_of(name, value);
    if (name == "--first") options.run.first = number_of(name, value);
    if (name == "--threads") options.run.threads = static_cast<unsigned>(number_of(name, value));
    if (name == "--pcap") options.pcap = value;
  }
  if (!options.pcap.empty() && options.run.seeds != 1) {
    throw std::invalid_argument("--pcap traces one seed: add --seeds 1");
  }
  return options;
}

int trace(const Options& options) {
  CampaignOutcome outcome;
  outcome.seeds = 1;
  outcome.sum = run_scenario(options.run.first, options.pcap);
  print_report(stdout, outcome);
  std::printf("packets: %s\n", options.pcap.c_str());
  if (outcome.sum.failure.empty()) return 0;
  std::printf("seed %llu FAILED: %s\n", static_cast<unsigned long long>(options.run.first),
              outcome.sum.failure.c_str());
  return 1;
}

int run(Options& options, const char* program) {
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  std::printf("seeds %llu to %llu, %u threads\n",
              static_cast<unsigned long long>(options.run.first),
              static_cast<unsigned long long>(options.run.first + options.run.seeds - 1),
              options.run.threads);
  double told = 0;
  options.run.progress = [&](std::uint64_t done) {
    if (seconds() - told < 5) return;
    told = seconds();
    std::printf("  %llu of %llu seeds, %.0f s\n", static_cast<unsigned long long>(done),
                static_cast<unsigned long long>(options.run.seeds), told);
    std::fflush(stdout);
  };
  const CampaignOutcome outcome = run_campaign(options.run);
  print_report(stdout, outcome);
  std::printf("%.0f s\n", seconds());
  for (const CampaignOutcome::Failure& failure : outcome.failures) {
    const auto seed = static_cast<unsigned long long>(failure.seed);
    std::printf("seed %llu FAILED: %s\n  %s --first %llu --seeds 1 --pcap %llu.pcapng\n", seed,
                failure.text.c_str(), program, seed, seed);
  }
  return outcome.failures.empty() ? 0 : 1;
}

}  // namespace
}  // namespace taco::harp

int main(int argc, char** argv) {
  try {
    taco::harp::Options options = taco::harp::parse(argc, argv);
    return options.pcap.empty() ? taco::harp::run(options, argv[0]) : taco::harp::trace(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "protocol_campaign: %s\n", error.what());
    return 2;
  }
}
