#include "pg/group/roll_call.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/far_future.h"
#include "base/names.h"
#include "harp/engine/engine_call.h"
#include "pg/group/group.h"

namespace taco::pg {
namespace {

constexpr std::size_t kMaxEarlyCalls = 4096;

std::string seconds_text(Duration duration) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", static_cast<double>(duration) / kSecond);
  return text;
}

}  // namespace

Status RollCall::enter(harp::Engine& engine, std::uint64_t digest, Duration timeout) {
  const auto on_engine = [&](auto function) {
    return call_on_engine(engine, std::move(function), monotonic_now() + kEngineLimit);
  };
  const Time deadline = later(monotonic_now(), timeout);
  if (!on_engine([&](harp::Transport&) { begin_st(digest); }))
    return Status(Code::kInternal, "the transport's engine does not run");
  // Rank 0 says who is missing; the others leave it the time to.
  const Duration patience =
      group_.options().rank == 0 ? 0 : std::max<Duration>(timeout / 10, kSecond / 2);
  const Result<bool> over = wait_and_heed(engine, over_, later(deadline, patience));
  Status status(Code::kInternal, "the transport's engine does not run");
  on_engine([&](harp::Transport&) {
    if (is_under_way()) {
      group_.fail_st(over.ok() ? late_st(timeout) : interrupted_st(over.status()), 0, true);
    }
    status = machine_.is(State::kComplete) ? Status() : group_.failure_st();
  });
  return status;
}

Status RollCall::interrupted_st(const Status& why) const {
  return why.with_prefix("group '" + group_.options().name + "' has no members yet: " +
                         group_.describe_rank(group_.options().rank) + ": ");
}

void RollCall::begin_st(std::uint64_t digest) {
  digest_ = digest;
  come_.assign(group_.options().world, false);
  if (group_.has_failed_st()) return failed_st();
  if (group_.options().rank == 0) {
    machine_.go(State::kCalling);
    group_.tell_members_st(own_st(NoticeKind::kRollCall));
    come_st(0);
  } else {
    machine_.go(State::kAnswering);
    group_.tell_st(0, own_st(NoticeKind::kRollAnswer));
  }
  for (const auto& [rank, why] : std::exchange(gone_, {})) peer_gone_st(rank, why);
  for (const auto& [rank, notice] : std::exchange(early_, {})) heard_st(rank, notice);
}

Notice RollCall::own_st(NoticeKind kind) const {
  Notice notice;
  notice.kind = kind;
  notice.group = group_.options().id;
  notice.number = digest_;
  notice.sequence = static_cast<std::uint64_t>(group_.options().world);
  return notice;
}

void RollCall::heard_st(int rank, const Notice& notice) {
  if (machine_.is(State::kApart)) {
    if (early_.size() < kMaxEarlyCalls) early_.emplace_back(rank, notice);
    return;
  }
  if (!is_under_way()) return;
  if (notice.kind == NoticeKind::kRollRefused) {
    return disagree_st(group_.describe_rank(rank) + " has " + std::to_string(notice.sequence) +
                       ", and rank " + std::to_string(group_.options().rank) +
                       " is not one of them");
  }
  if (notice.number != digest_) return disagree_st(rank, notice.sequence);
  if (notice.kind == NoticeKind::kRollAnswer && machine_.is(State::kCalling)) return come_st(rank);
  if (rank != 0) return;
  if (notice.kind == NoticeKind::kRollCall)
    return group_.tell_st(0, own_st(NoticeKind::kRollAnswer));
  if (notice.kind == NoticeKind::kRollRelease) over_st(State::kComplete);
}

void RollCall::stranger_st(harp::PeerId peer, const Notice& notice) const {
  if (notice.kind != NoticeKind::kRollCall && notice.kind != NoticeKind::kRollAnswer) return;
  group_.tell_process_st(peer, own_st(NoticeKind::kRollRefused));
}

void RollCall::disagree_st(int rank, std::uint64_t their_world) {
  const int world = group_.options().world;
  const std::string self = "rank " + std::to_string(group_.options().rank);
  if (their_world == static_cast<std::uint64_t>(world)) {
    return disagree_st(self + " and " + group_.describe_rank(rank) + " have " +
                       std::to_string(world) + " each, but not the same, or in another order");
  }
  disagree_st(self + " has " + std::to_string(world) + ", " + group_.describe_rank(rank) + " has " +
              std::to_string(their_world));
}

void RollCall::disagree_st(const std::string& how) {
  group_.fail_st(Status(Code::kMismatch, "ranks disagree about the members of group '" +
                                             group_.options().name + "': " + how),
                 0, true);
}

void RollCall::come_st(int rank) {
  come_[rank] = true;
  if (!std::ranges::all_of(come_, [](bool come) { return come; })) return;
  group_.tell_members_st(own_st(NoticeKind::kRollRelease));
  over_st(State::kComplete);
}

void RollCall::peer_gone_st(int rank, const Status& why) {
  if (machine_.is(State::kApart)) {
    gone_.emplace_back(rank, why);
  } else if (is_under_way()) {
    group_.fail_st(group_.loss_of(rank, PeerLoss{}, why.message(), ""), 0, true);
  }
}

void RollCall::failed_st() {
  if (!machine_.is(State::kComplete) && !machine_.is(State::kFailed)) over_st(State::kFailed);
}

void RollCall::over_st(State state) {
  machine_.go(state);
  over_.set();
  group_.wake_st();
}

Status RollCall::late_st(Duration timeout) const {
  std::string missing;
  for (int rank = 0; rank < group_.options().world; ++rank)
    if (!come_[rank]) append_name(missing, std::to_string(rank));
  const bool is_first = group_.options().rank == 0;
  return Status(Code::kRendezvous,
                "group '" + group_.options().name + "': Timed out after " + seconds_text(timeout) +
                    (is_first ? ": of its " + std::to_string(group_.options().world) +
                                    " members these did not come: ranks " + missing
                              : ": no word from " + group_.describe_rank(0)) +
                    ". Does every member reconfigure with the same uuid and the same handles?");
}

}  // namespace taco::pg
