// The ways that harp-perf compares: messages of HARP, and those that one TCP connection carries.
// One thread at a time.
#pragma once

#include <cstdint>

#include "harp/engine/stack.h"
#include "harp/tools/perf_connection.h"
#include "harp/tools/perf_job.h"

namespace taco::harp::perf {

class HarpWay final : public Way {
 public:
  // Both outlive it.
  HarpWay(Stack& stack, PeerId peer) : engine_(stack.engine()), peer_(peer) {}
  Result<Figures> latency(const Job& job, bool is_client) override;
  Result<Figures> stream(const Job& job, bool is_client) override;

 private:
  Engine& engine_;
  const PeerId peer_;
  std::uint64_t tag_ = 0;  // keys are used once; both sides count alike
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
