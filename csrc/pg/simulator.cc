#include "pg/simulator.h"

#include <algorithm>
#include <queue>
#include <unordered_map>

namespace taco::pg {

namespace {

enum class What : std::uint8_t { kReady, kStepDone, kLeaves, kEnters, kArrives };

struct Event {
  double time;
  std::uint64_t order;  // of creation: ties are broken the same way in every run
  What what;
  int rank;
  std::uint32_t step;
  std::uint32_t transfer;
  bool operator>(const Event& other) const {
    return time != other.time ? time > other.time : order > other.order;
  }
};

class World {
 public:
  World(const std::vector<Schedule>& schedules, const Topology& topology,
        const CostParameters& parameters)
      : schedules_(schedules),
        topology_(topology),
        parameters_(parameters),
        processor_free_(schedules.size()),
        out_free_(topology.hosts()),
        in_free_(topology.hosts()),
        receives_(schedules.size()),
        ranks_(schedules.size()) {
    if (parameters.processors_per_host > 0) {
      crowding_ = std::max(1.0, topology.max_ranks_per_host() / parameters.processors_per_host);
    }
    result_.rank_seconds.resize(schedules.size());
    result_.host_sent_bytes.resize(topology.hosts());
    result_.host_received_bytes.resize(topology.hosts());
  }

  Simulation run() {
    for (int rank = 0; rank < static_cast<int>(schedules_.size()); ++rank) begin(rank);
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      perform(event);
    }
    result_.finished = true;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (ranks_[rank].steps_left > 0) result_.finished = false;
      result_.seconds = std::max(result_.seconds, result_.rank_seconds[rank]);
    }
    return std::move(result_);
  }

 private:
  struct Rank {
    std::vector<std::uint32_t> missing;
    std::size_t steps_left = 0;
  };
  // A receive by (sender, channel): when it has been posted, and when its message has arrived.
  struct Receive {
    std::uint32_t step = 0;
    bool posted = false, arrived = false;
    int sender = 0;
    std::uint32_t send_step = 0;
  };

  static std::uint64_t key(int peer, std::uint32_t channel) {
    return static_cast<std::uint64_t>(peer) << 32 | channel;
  }

  void push(double time, What what, int rank, std::uint32_t step, std::uint32_t transfer = 0) {
    events_.push({time, order_++, what, rank, step, transfer});
  }

  void begin(int rank) {
    const Schedule& schedule = schedules_[rank];
    ranks_[rank].steps_left = schedule.steps.size();
    for (std::uint32_t index = 0; index < schedule.steps.size(); ++index) {
      const Step& step = schedule.steps[index];
      ranks_[rank].missing.push_back(step.dependencies);
      if (step.is_receive()) {
        const Transfer& transfer = schedule.transfers[step.first_transfer];
        receives_[rank][key(transfer.peer, transfer.channel)].step = index;
      }
    }
    for (std::uint32_t index = 0; index < schedule.steps.size(); ++index) {
      if (ranks_[rank].missing[index] == 0) push(0, What::kReady, rank, index);
    }
  }

  // The rank's processor works for `seconds`, from `now` or when it is free. Returns the end.
  double work(int rank, double now, double seconds) {
    double& free = processor_free_[rank];
    free = std::max(free, now) + seconds * crowding_;
    return free;
  }

  void perform(const Event& event) {
    switch (event.what) {
      case What::kReady:
        start(event);
        break;
      case What::kStepDone:
        finish(event.rank, event.step, event.time);
        break;
      case What::kLeaves:
        leave(event);
        break;
      case What::kEnters:
        enter(event);
        break;
      case What::kArrives:
        arrive(event);
        break;
    }
  }

  void start(const Event& event) {
    const Schedule& schedule = schedules_[event.rank];
    const Step& step = schedule.steps[event.step];
    if (step.kind == StepKind::kSend) return start_send(event, step);
    if (step.is_receive()) {
      const Transfer& transfer = schedule.transfers[step.first_transfer];
      Receive& receive = receives_[event.rank][key(transfer.peer, transfer.channel)];
      receive.posted = true;
      if (receive.arrived) take(event.rank, receive, event.time);
      return;
    }
    const auto bytes = static_cast<double>(step.destination.bytes);
    const double rate = step.kind == StepKind::kReduce ? parameters_.reduce_bytes_per_second
                                                       : parameters_.copy_bytes_per_second;
    push(work(event.rank, event.time, bytes / rate), What::kStepDone, event.rank, event.step);
  }

  const LinkCost& link(int a, int b) const {
    return topology_.same_host(a, b) ? parameters_.shared : parameters_.network;
  }

  // Readers on this host share one staged copy.
  void start_send(const Event& event, const Step& step) {
    const auto bytes = static_cast<double>(step.source.bytes);
    bool staged = false;
    sends_left_[key(event.rank, event.step)] = step.transfers;
    for (std::uint32_t i = 0; i < step.transfers; ++i) {
      const std::uint32_t index = step.first_transfer + i;
      const int peer = schedules_[event.rank].transfers[index].peer;
      const bool near = topology_.same_host(event.rank, peer);
      double seconds = link(event.rank, peer).message_cpu;
      if (!near || !staged) seconds += bytes / link(event.rank, peer).bytes_per_second;
      staged = staged || near;
      push(work(event.rank, event.time, seconds), What::kLeaves, event.rank, event.step, index);
    }
  }

  void leave(const Event& event) {
    const int to = schedules_[event.rank].transfers[event.transfer].peer;
    const double latency = link(event.rank, to).latency;
    if (topology_.same_host(event.rank, to)) {
      return push(event.time + latency, What::kArrives, event.rank, event.step, event.transfer);
    }
    const int from_host = topology_.host_of(event.rank), to_host = topology_.host_of(to);
    const auto bytes = static_cast<double>(schedules_[event.rank].steps[event.step].source.bytes);
    result_.host_sent_bytes[from_host] += bytes;
    result_.host_received_bytes[to_host] += bytes;
    const double out = std::max(event.time, out_free_[from_host]);
    out_free_[from_host] = out + bytes / rate_of(from_host);
    push(out + latency, What::kEnters, event.rank, event.step, event.transfer);
  }

  // The first byte reaches the other host's interface.
  void enter(const Event& event) {
    const int from_host = topology_.host_of(event.rank);
    const int to_host = topology_.host_of(schedules_[event.rank].transfers[event.transfer].peer);
    const auto bytes = static_cast<double>(schedules_[event.rank].steps[event.step].source.bytes);
    const double in = std::max(event.time, in_free_[to_host]);
    in_free_[to_host] = in + bytes / std::min(rate_of(from_host), rate_of(to_host));
    push(in_free_[to_host], What::kArrives, event.rank, event.step, event.transfer);
  }

  double rate_of(int host) const {
    const double gbits =
        topology_.gbits_of(host) > 0 ? topology_.gbits_of(host) : parameters_.default_gbits;
    return gbits * 1e9 / 8 * parameters_.wire_efficiency;
  }

  void arrive(const Event& event) {
    const Transfer& transfer = schedules_[event.rank].transfers[event.transfer];
    const auto found = receives_[transfer.peer].find(key(event.rank, transfer.channel));
    if (found == receives_[transfer.peer].end()) return;  // the world will not finish
    Receive& receive = found->second;
    receive.arrived = true;
    receive.sender = event.rank;
    receive.send_step = event.step;
    if (receive.posted) take(transfer.peer, receive, event.time);
  }

  void take(int rank, const Receive& receive, double now) {
    const LinkCost& cost = link(receive.sender, rank);
    const auto bytes = static_cast<double>(schedules_[rank].steps[receive.step].destination.bytes);
    const double end = work(rank, now, cost.message_cpu + bytes / cost.bytes_per_second);
    push(end, What::kStepDone, rank, receive.step);
    const auto left = sends_left_.find(key(receive.sender, receive.send_step));
    if (--left->second == 0) {
      sends_left_.erase(left);
      push(end + cost.latency, What::kStepDone, receive.sender, receive.send_step);
    }
  }

  void finish(int rank, std::uint32_t index, double now) {
    const Schedule& schedule = schedules_[rank];
    const Step& step = schedule.steps[index];
    --ranks_[rank].steps_left;
    if (!step.outlives_operation()) result_.rank_seconds[rank] = now;
    for (const std::uint32_t dependent : schedule.dependents_of(step)) {
      if (--ranks_[rank].missing[dependent] == 0) push(now, What::kReady, rank, dependent);
    }
  }

  const std::vector<Schedule>& schedules_;
  const Topology& topology_;
  const CostParameters& parameters_;
  double crowding_ = 1;
  std::vector<double> processor_free_, out_free_, in_free_;
  std::vector<std::unordered_map<std::uint64_t, Receive>> receives_;
  std::unordered_map<std::uint64_t, std::uint32_t> sends_left_;
  std::vector<Rank> ranks_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::uint64_t order_ = 0;
  Simulation result_;
};

}  // namespace

Simulation simulate(const std::vector<Schedule>& schedules, const Topology& topology,
                    const CostParameters& parameters) {
  return World(schedules, topology, parameters).run();
}

}  // namespace taco::pg
