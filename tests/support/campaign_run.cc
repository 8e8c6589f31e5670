#include "support/campaign_run.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>

#include "base/names.h"

namespace taco::harp {
namespace {

constexpr std::uint64_t kProgress = 500;  // seeds

std::string names_of(const FaultCounts& faults) {
  std::string names;
  for (std::size_t i = 0; i < kFaults; ++i) {
    const auto fault = static_cast<Fault>(i);
    if (faults[fault] > 0) append_name(names, name_of(fault));
  }
  return names;
}

unsigned long long number(std::uint64_t value) { return value; }

}  // namespace

CampaignOutcome run_campaign(const CampaignRun& run) {
  CampaignOutcome outcome;
  std::mutex mutex;
  std::atomic<std::uint64_t> next{0};
  std::atomic<bool> stop{false};
  const auto work = [&] {
    ScenarioResult sum;
    std::uint64_t done = 0;
    for (std::uint64_t i; !stop.load() && (i = next.fetch_add(1)) < run.seeds; ++done) {
      const ScenarioResult result = run_scenario(run.first + i);
      sum.add(result);
      if (result.failure.empty() && (i + 1) % kProgress != 0) continue;
      std::lock_guard lock(mutex);
      if (!result.failure.empty()) {
        outcome.failures.push_back(
            {run.first + i, result.failure + " (" + names_of(result.drawn) + ")"});
        if (outcome.failures.size() >= run.max_failures) stop.store(true);
      }
      if ((i + 1) % kProgress == 0 && run.progress) run.progress(i + 1);
    }
    std::lock_guard lock(mutex);
    outcome.seeds += done;
    outcome.sum.add(sum);
  };
  std::vector<std::thread> threads;
  for (unsigned i = 1; i < run.threads; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  std::sort(outcome.failures.begin(), outcome.failures.end(),
            [](const auto& a, const auto& b) { return a.seed < b.seed; });
  return outcome;
}

void print_report(std::FILE* file, const CampaignOutcome& outcome) {
  const ScenarioResult& sum = outcome.sum;
  std::fprintf(file, "%llu seeds, %llu messages, %llu packets sent, %llu delivered\n",
               number(outcome.seeds), number(sum.messages), number(sum.network.sent),
               number(sum.network.delivered));
  std::fprintf(file, "  %-30s %10s %12s\n", "fault", "seeds", "fired");
  for (std::size_t i = 0; i < kFaults; ++i) {
    const auto fault = static_cast<Fault>(i);
    std::fprintf(file, "  %-30s %10llu %12llu\n", name_of(fault), number(sum.drawn[fault]),
                 number(sum.fired[fault]));
  }
  const struct {
    const char* name;
    std::uint64_t count;
  } rows[] = {
      {"packets lost in bursts", sum.network.burst_lost},
      {"swallowed by dead links", sum.network.link_dead},
      {"too large for their link", sum.network.too_large},
      {"refused: nobody has the port", sum.network.unreachable},
      {"probes", sum.probes},
      {"retransmitted", sum.retransmits},
      {"duplicates noticed", sum.duplicates},
      {"checksums wrong", sum.checksum_failures},
      {"further paths proved", sum.paths_proved},
      {"silent paths left", sum.paths_left},
      {"paths moved to other ports", sum.paths_moved},
      {"damaged sealed packets", sum.forged},
      {"sealed, refused after a part left", sum.sealed_in_part},
      {"too early for their keys", sum.early},
      {"keys changed", sum.key_rotations},
      {"scenarios with none sealed", sum.sealed_none},
      {"scenarios with some sealed", sum.sealed_auth},
      {"scenarios with all sealed", sum.sealed_all},
      {"losses of dead peers reported", sum.peers_lost},
      {"scenarios with a calm end", sum.calm_ends},
      {"most bytes of a session", sum.session_bytes},
      {"most bytes of an idle session", sum.idle_session_bytes},
      {"most steps without a packet", sum.silent_steps},
  };
  for (const auto& row : rows) {
    std::fprintf(file, "  %-41s %12llu\n", row.name, number(row.count));
  }
}

std::string rare_faults(const CampaignOutcome& outcome, std::uint64_t drawn, std::uint64_t fired) {
  std::string rare;
  for (std::size_t i = 0; i < kFaults; ++i) {
    const auto fault = static_cast<Fault>(i);
    if (outcome.sum.drawn[fault] >= drawn && outcome.sum.fired[fault] >= fired) continue;
    append_name(rare, name_of(fault));
  }
  return rare;
}

}  // namespace taco::harp
