#include "pg/group/timeout_report.h"

#include <vector>

#include "base/names.h"
#include "pg/execution/signature.h"
#include "pg/group/arrivals.h"

namespace taco::pg {
namespace {

std::string list_of(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) append_name(text, std::to_string(rank));
  return ranks.empty() ? "none" : text;
}

}  // namespace

std::string describe_arrivals(const TimeoutReport& report, const GroupView& group,
                              std::uint64_t newest_here) {
  const OperationState& operation = *report.operation;
  const auto sequence = static_cast<std::uint32_t>(operation.sequence());
  const bool collective = !operation.is_point_to_point();
  std::vector<int> arrived, absent, silent;
  std::string details;
  for (int rank = 0; rank < group.world; ++rank) {
    const Notice& answer = report.answers[rank];
    const auto newest = static_cast<std::uint32_t>(answer.sequence);
    if (rank == group.rank) {
      arrived.push_back(rank);
      continue;
    }
    if (!report.answered[rank]) {
      silent.push_back(rank);
      if (collective && group.arrived[rank] >= sequence) arrived.push_back(rank);
      continue;
    }
    if (!answer.knows_group) {
      absent.push_back(rank);
      details += " Rank " + std::to_string(rank) + " has no such group (any more).";
      continue;
    }
    const bool here = !collective || static_cast<std::int32_t>(newest - sequence) >= 0;
    (here ? arrived : absent).push_back(rank);
    if (here && (!collective || answer.asked_signature == operation.signature)) continue;
    details += " Rank " + std::to_string(rank);
    if (here && answer.asked_signature != 0) {
      details += " runs " + describe_signature(answer.asked_signature) + " under this sequence.";
    } else if (newest == 0) {
      details += " has started no collective.";
    } else {
      details += " has last started " + describe_signature(answer.signature) + " (sequence " +
                 std::to_string(full_sequence(newest, newest_here)) + ").";
    }
  }
  std::string text;
  if (collective) {
    text = "Arrived: ranks " + list_of(arrived) +
           "; not arrived: " + (absent.empty() ? "" : "ranks ") + list_of(absent) + ".";
  } else {
    text = operation.spec.kind == Kind::kWaitSignal ? "No signal of that rank was left to take."
                                                    : "The peer has not come to it.";
  }
  if (!silent.empty()) text += " No answer from ranks " + list_of(silent) + ".";
  return text + details;
}

}  // namespace taco::pg
