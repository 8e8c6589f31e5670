// The ways that harp-perf compares: messages of HARP, of as many engines at once as a side has, and
// those that one TCP connection carries. One thread at a time.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "harp/engine/stack.h"
#include "harp/tools/perf_connection.h"
#include "harp/tools/perf_job.h"

namespace taco::harp::perf {

// One engine of this side, and its peer on the other.
class Lane {
 public:
  // The Stack outlives it.
  Lane(Stack& stack, PeerId peer) : engine_(stack.engine()), peer_(peer) {}
  Result<Figures> latency(const Job& job, bool is_client);
  Result<Figures> stream(const Job& job, bool is_client);

 private:
  Engine& engine_;
  const PeerId peer_;
  std::uint64_t tag_ = 0;  // keys are used once; both sides count alike
};

// All lanes do the job at the same time, each with a thread of its own: messages are summed, and
// the longest time is the time of all.
class HarpWay final : public Way {
 public:
  explicit HarpWay(std::vector<Lane> lanes) : lanes_(std::move(lanes)) {}
  Result<Figures> latency(const Job& job, bool is_client) override;
  Result<Figures> stream(const Job& job, bool is_client) override;

 private:
  using Run = Result<Figures> (Lane::*)(const Job& job, bool is_client);
  Result<Figures> on_all(Run run, const Job& job, bool is_client);

  std::vector<Lane> lanes_;
};

class TcpWay final : public Way {
 public:
  TcpWay(Connection& connection, bool polls) : connection_(connection), polls_(polls) {}
  Result<Figures> latency(const Job& job, bool is_client) override;
  Result<Figures> stream(const Job& job, bool is_client) override;

 private:
  Connection& connection_;
  const bool polls_;
};

}  // namespace taco::harp::perf
