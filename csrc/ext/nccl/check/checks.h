// Checks of network plugins, one for each demand of NCCL's. A check runs in processes of its own,
// each of which calls run(); those of one check know each other as fellows.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "ext/nccl/check/connection.h"
#include "ext/nccl/check/fellows.h"
#include "ext/nccl/check/network.h"

namespace harp::nccl::check {

struct Stage {
  std::string plugin;
  int table = 0;  // 0: the newest
  Fellows& fellows;
};

struct Check {
  const char* name;
  const char* demand;  // "a send's buffer is not read once it is done"
  int processes;
  Status (*run)(Stage& stage);
  int killed = -1;  // the process that ends itself by a signal, as a part of the check
};

std::span<const Check> all_checks();
// Null: there is none of that name.
const Check* check_named(const std::string& name);

// A plugin that is loaded and initialised for one communicator, and a ring of the fellows by it.
struct Session {
  std::unique_ptr<Network> network;
  void* context = nullptr;
  Ring ring = {};
};
enum class With { kNoRing, kRing };
Result<Session> open_session(const Stage& stage, With with);
// Takes a ring down, once all fellows are done with it.
Status end(Session& session, Fellows& fellows);

Status check_table(Stage& stage);
Status check_exchange(Stage& stage);
Status check_all_reduce(Stage& stage);
Status check_no_room(Stage& stage);
Status check_too_long(Stage& stage);
Status check_tear_down(Stage& stage);
Status check_threads(Stage& stage);
Status check_not_blocking(Stage& stage);
Status check_silence(Stage& stage);
Status check_killed(Stage& stage);
Status check_killed_waiting(Stage& stage);
Status check_farewell(Stage& stage);
Status check_set_ups(Stage& stage);
Status check_lines(Stage& stage);

}  // namespace harp::nccl::check
