#include "ext/nccl/check/checks.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace harp::nccl::check {
namespace {

constexpr std::array kChecks = {
    Check{"table", "devices and their properties are said in full", 1, check_table},
    Check{"exchange", "messages of all sizes arrive as they are, with their true sizes", 2,
          check_exchange},
    Check{"all-reduce", "a ring of processes adds up what they have", 4, check_all_reduce},
    Check{"itself", "a process has a connection with itself", 1, check_exchange},
    Check{"not-blocking", "connect and accept wait for nobody", 2, check_not_blocking},
    Check{"no-room", "a request that finds no room is null, and asked for again", 2, check_no_room},
    Check{"too-long", "a message longer than its receive is an error, and overruns nothing", 2,
          check_too_long},
    Check{"tear-down", "memory is not written once it is deregistered", 2, check_tear_down},
    Check{"threads", "two threads use comms while a third registers memory", 2, check_threads},
    Check{"lines", "data are seen before the flags of LL and LL128", 2, check_lines},
    Check{"silence", "a connection outlives seconds without a call, which cost nothing", 2,
          check_silence},
    Check{"killed", "a killed process is an error of its peers' requests", 2, check_killed, 1},
    Check{"killed-waiting", "and of a receive that waits for its first message", 2,
          check_killed_waiting, 1},
    Check{"farewell", "a send that is done arrives, whatever its process does then", 2,
          check_farewell},
    Check{"set-ups", "200 set-ups leave nothing behind, and the library can go", 2, check_set_ups},
};

}  // namespace

std::span<const Check> all_checks() { return kChecks; }

const Check* check_named(const std::string& name) {
  const auto found = std::ranges::find(kChecks, std::string_view(name), &Check::name);
  return found == kChecks.end() ? nullptr : &*found;
}

Result<Session> open_session(const Stage& stage, With with) {
  auto loaded = Network::load(stage.plugin, stage.table);
  if (!loaded.ok()) return loaded.status();
  Session session{std::move(loaded).value()};
  TACO_RETURN_IF_ERROR(session.network->init(&session.context));
  if (with == With::kNoRing) return session;
  auto ring = open_ring(*session.network, session.context, stage.fellows);
  if (!ring.ok()) return ring.status();
  session.ring = ring.value();
  return session;
}

Status end(Session& session, Fellows& fellows) {
  TACO_RETURN_IF_ERROR(fellows.barrier());
  TACO_RETURN_IF_ERROR(close_ring(*session.network, session.ring));
  return session.network->finalize(session.context);
}

}  // namespace harp::nccl::check
