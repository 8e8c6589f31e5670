#include "pg/group/monitored_barrier.h"

#include <algorithm>
#include <utility>

#include "base/far_future.h"
#include "base/names.h"
#include "harp/engine/engine_call.h"
#include "pg/group/group.h"

namespace taco::pg {
namespace {

constexpr std::uint64_t kKeptRounds = 64;

}  // namespace

std::shared_ptr<MonitoredBarrier::Round> MonitoredBarrier::round_st(std::uint64_t number) {
  std::shared_ptr<Round>& round = rounds_[number];
  if (round == nullptr) {
    round = std::make_shared<Round>();
    round->arrived.assign(group_.options().world, false);
    round->missing = group_.options().world;
    while (rounds_.size() > kKeptRounds && rounds_.begin()->second->over)
      rounds_.erase(rounds_.begin());
  }
  return rounds_[number];
}

Status MonitoredBarrier::wait(harp::Engine& engine, Duration timeout, bool report_all) {
  const int rank = group_.options().rank;
  const Time deadline = later(monotonic_now(), timeout);
  std::shared_ptr<Round> round;
  const bool entered = call_on_engine(
      engine, [&](harp::Transport&) { round = enter_st(); }, monotonic_now() + kEngineLimit);
  if (!entered) return Status(Code::kInternal, "the transport's engine does not run");
  // Rank 0 gives the verdict; the others leave it the time to.
  const Duration patience = rank == 0 ? 0 : std::max<Duration>(timeout / 10, kSecond / 2);
  const Result<bool> over = wait_and_heed(engine, round->done, later(deadline, patience));
  if (!over.ok()) return over.status();  // this rank has come all the same
  if (over.value()) return round->status;
  Status status;
  call_on_engine(
      engine,
      [&](harp::Transport&) {
        if (!round->over) end_st(*round, verdict(*round, timeout, report_all));
        status = round->status;
      },
      monotonic_now() + kEngineLimit);
  return status;
}

std::shared_ptr<MonitoredBarrier::Round> MonitoredBarrier::enter_st() {
  const std::uint64_t number = ++next_;
  std::shared_ptr<Round> round = round_st(number);
  if (group_.has_failed_st()) {
    if (!round->over) end_st(*round, group_.failure_st());
    group_.fail_st(group_.failure_st(), group_.next_sequence_st(), true);  // see Group
  } else if (group_.options().rank == 0) {
    arrived_st(0, number);
  } else {
    Notice notice;
    notice.kind = NoticeKind::kBarrierArrived;
    notice.group = group_.options().id;
    notice.number = number;
    group_.tell_st(0, notice);
  }
  return round;
}

// The status that this rank reports when its time is up.
Status MonitoredBarrier::verdict(const Round& round, Duration timeout, bool report_all) const {
  const int rank = group_.options().rank;
  const std::string self = "Rank " + std::to_string(rank);
  if (rank != 0) {
    return Status(Code::kTimeout,
                  self +
                      " successfully reached monitoredBarrier, but received errors "
                      "while waiting for send/recv from rank 0. Please check rank 0 "
                      "logs for faulty rank.");
  }
  if (timeout <= 0)
    return Status(Code::kTimeout, self + " timed out in monitoredBarrier after 0 ms.");
  std::string missing;
  for (int other = 0; other < group_.options().world; ++other) {
    if (round.arrived[other] || (!report_all && !missing.empty())) continue;
    append_name(missing, std::to_string(other));
  }
  return Status(Code::kTimeout, std::string(report_all ? "Ranks " : "Rank ") + missing +
                                    " failed to pass monitoredBarrier in " +
                                    std::to_string(timeout / kMillisecond) + " ms (group '" +
                                    group_.options().name + "')");
}

void MonitoredBarrier::arrived_st(int rank, std::uint64_t number) {
  if (group_.options().rank != 0) return;
  Round& round = *round_st(number);
  if (round.arrived[rank]) return;
  round.arrived[rank] = true;
  --round.missing;
  if (round.over) {
    release(rank, number, round.status);  // came too late
  } else if (round.missing == 0) {
    end_st(round, Status());
  }
}

void MonitoredBarrier::release(int rank, std::uint64_t number, const Status& status) {
  Notice notice;
  notice.kind = NoticeKind::kBarrierReleased;
  notice.group = group_.options().id;
  notice.number = number;
  notice.code = status.code();
  notice.text = status.message();
  group_.tell_st(rank, notice);
}

void MonitoredBarrier::end_st(Round& round, const Status& status) {
  round.over = true;
  round.status = status;
  if (group_.options().rank == 0) {
    for (const auto& [number, known] : rounds_) {
      if (known.get() == &round) {
        for (int rank = 1; rank < group_.options().world; ++rank)
          if (round.arrived[rank]) release(rank, number, status);
      }
    }
  }
  round.done.set();
  group_.wake_st();
}

void MonitoredBarrier::released_st(const Notice& notice) {
  auto found = rounds_.find(notice.number);
  if (found == rounds_.end() || found->second->over) return;
  if (notice.code == Code::kOk) return end_st(*found->second, Status());
  const Status own = verdict(*found->second, 0, false);
  end_st(*found->second, Status(notice.code, own.message() + " Rank 0 says: " + notice.text));
}

void MonitoredBarrier::peer_gone_st(int rank) {
  for (const auto& [number, round] : rounds_) {
    if (round->over || round->arrived[rank] || number > next_) continue;
    const bool matters = group_.options().rank == 0 || rank == 0;
    if (matters) {
      end_st(*round,
             Status(Code::kPeerLost, group_.describe_rank(rank) +
                                         " left or ended before it reached monitoredBarrier"));
    }
  }
}

bool MonitoredBarrier::is_entered_st() const {
  for (const auto& [number, round] : rounds_)
    if (!round->over && number <= next_) return true;
  return false;
}

void MonitoredBarrier::fail_st(const Status& why) {
  for (const auto& [number, round] : rounds_)
    if (!round->over && number <= next_) end_st(*round, why);
}

}  // namespace taco::pg
