#include "pg/planning/simulator.h"

#include <algorithm>
#include <deque>
#include <map>
#include <queue>
#include <unordered_map>

namespace taco::pg {

namespace {

enum class What : std::uint8_t { kReady, kStepDone, kLeaves, kEnters, kFree, kArrives };

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

// Several schedules of one rank as one, whose messages have channels of their own.
struct Joined {
  struct Part {
    std::size_t first_step = 0;
    double seconds = 0;  // when it starts
    // The rates of its local steps, in bytes of what they work on.
    double encodes = 0, decodes = 0, adds = 0;
  };
  Schedule schedule;
  std::vector<Part> parts;
  std::unordered_map<int, std::uint32_t> sent, received;  // by peer: channels in use

  void add(const Schedule& other, double seconds) {
    const auto steps = static_cast<std::uint32_t>(schedule.steps.size());
    const auto transfers = static_cast<std::uint32_t>(schedule.transfers.size());
    const auto dependents = static_cast<std::uint32_t>(schedule.dependents.size());
    const auto lengths = static_cast<std::uint32_t>(schedule.lengths.size());
    parts.push_back({steps, seconds, other.coded_bytes_per_second, other.decoded_bytes_per_second,
                     other.added_bytes_per_second});
    schedule.lengths.insert(schedule.lengths.end(), other.lengths.begin(), other.lengths.end());
    for (const std::uint32_t dependent : other.dependents) {
      schedule.dependents.push_back(dependent + steps);
    }
    schedule.transfers.insert(schedule.transfers.end(), other.transfers.begin(),
                              other.transfers.end());
    std::unordered_map<int, std::uint32_t> sends, receives;
    for (Step step : other.steps) {
      auto& used = step.is_receive() ? received : sent;
      auto& here = step.is_receive() ? receives : sends;
      for (std::uint32_t i = 0; i < step.transfers; ++i) {
        Transfer& transfer = schedule.transfers[transfers + step.first_transfer + i];
        transfer.channel += used[transfer.peer];
        ++here[transfer.peer];
      }
      step.first_transfer += transfers;
      step.first_dependent += dependents;
      if (step.length != Step::kWhole) step.length += lengths;
      schedule.steps.push_back(step);
    }
    for (const auto& [peer, count] : sends) sent[peer] += count;
    for (const auto& [peer, count] : receives) received[peer] += count;
  }

  const Part& part_of(std::size_t step) const {
    const auto after = std::upper_bound(
        parts.begin(), parts.end(), step,
        [](std::size_t index, const Part& part) { return index < part.first_step; });
    return *std::prev(after);
  }
};

class World {
 public:
  World(const std::vector<Joined>& schedules, const Topology& topology,
        const CostParameters& parameters)
      : schedules_(schedules),
        topology_(topology),
        parameters_(parameters),
        processor_free_(schedules.size()),
        in_free_(topology.hosts()),
        ports_(topology.hosts()),
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

  // A host's interface: messages waiting to be sent, by receiver.
  struct Port {
    std::map<int, std::deque<Event>> waiting;
    int served = -1;
    bool busy = false;
  };

  static std::uint64_t key(int peer, std::uint32_t channel) {
    return static_cast<std::uint64_t>(peer) << 32 | channel;
  }

  void push(double time, What what, int rank, std::uint32_t step, std::uint32_t transfer = 0) {
    events_.push({time, order_++, what, rank, step, transfer});
  }

  void begin(int rank) {
    const Schedule& schedule = schedules_[rank].schedule;
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
      if (ranks_[rank].missing[index] > 0) continue;
      push(schedules_[rank].part_of(index).seconds, What::kReady, rank, index);
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
      case What::kFree:
        transmit(event.rank, event.time);
        break;
      case What::kArrives:
        arrive(event);
        break;
    }
  }

  void start(const Event& event) {
    const Schedule& schedule = schedules_[event.rank].schedule;
    const Step& step = schedule.steps[event.step];
    if (step.kind == StepKind::kSend) return start_send(event, step);
    if (step.is_receive()) {
      const Transfer& transfer = schedule.transfers[step.first_transfer];
      Receive& receive = receives_[event.rank][key(transfer.peer, transfer.channel)];
      receive.posted = true;
      if (receive.arrived) take(event.rank, receive, event.time);
      return;
    }
    const auto bytes = static_cast<double>(step.worked_on().bytes);
    const double rate = rate_of(schedules_[event.rank].part_of(event.step), step);
    push(work(event.rank, event.time, bytes / rate), What::kStepDone, event.rank, event.step);
  }

  // The rate of a local step, in bytes of what it works on.
  double rate_of(const Joined::Part& part, const Step& step) const {
    switch (step.kind) {
      case StepKind::kEncode:
        return part.encodes;
      case StepKind::kDecode:
        return part.decodes;
      case StepKind::kDecodeReduce:
        return part.adds;
      case StepKind::kReduce:
        return parameters_.reduce_bytes_per_second;
      default:
        return parameters_.copy_bytes_per_second;
    }
  }

  const LinkCost& link(int a, int b) const {
    return topology_.same_host(a, b) ? parameters_.shared : parameters_.network;
  }

  // Readers on this host share one staged copy.
  void start_send(const Event& event, const Step& step) {
    const double bytes = bytes_of(event);
    bool staged = false;
    sends_left_[key(event.rank, event.step)] = step.transfers;
    for (std::uint32_t i = 0; i < step.transfers; ++i) {
      const std::uint32_t index = step.first_transfer + i;
      const int peer = schedules_[event.rank].schedule.transfers[index].peer;
      const bool near = topology_.same_host(event.rank, peer);
      double seconds = link(event.rank, peer).message_cpu;
      if (!near || !staged) seconds += bytes / link(event.rank, peer).bytes_per_second;
      staged = staged || near;
      push(work(event.rank, event.time, seconds), What::kLeaves, event.rank, event.step, index);
    }
  }

  void leave(const Event& event) {
    const int to = schedules_[event.rank].schedule.transfers[event.transfer].peer;
    if (topology_.same_host(event.rank, to)) {
      if (is_eager(event.rank, to, bytes_of(event)))
        acknowledge(event.rank, event.step, event.time);
      return push(event.time + parameters_.shared.latency, What::kArrives, event.rank, event.step,
                  event.transfer);
    }
    const int from_host = topology_.host_of(event.rank), to_host = topology_.host_of(to);
    const double bytes = bytes_of(event);
    result_.host_sent_bytes[from_host] += bytes;
    result_.host_received_bytes[to_host] += bytes;
    Port& port = ports_[from_host];
    port.waiting[to].push_back(event);
    if (!port.busy) transmit(from_host, event.time);
  }

  // One message of each receiver in turn, as the flows of a real interface share it.
  void transmit(int host, double now) {
    Port& port = ports_[host];
    port.busy = !port.waiting.empty();
    if (!port.busy) return;
    auto next = port.waiting.upper_bound(port.served);
    if (next == port.waiting.end()) next = port.waiting.begin();
    const Event event = next->second.front();
    port.served = next->first;
    next->second.pop_front();
    if (next->second.empty()) port.waiting.erase(next);
    const double seconds = bytes_of(event) / rate_of(host);
    push(now + parameters_.network.latency, What::kEnters, event.rank, event.step, event.transfer);
    push(now + seconds, What::kFree, host, 0);
  }

  double bytes_of(int rank, std::uint32_t step) const {
    const Schedule& schedule = schedules_[rank].schedule;
    return static_cast<double>(schedule.message_bytes(schedule.steps[step]));
  }
  double bytes_of(const Event& event) const { return bytes_of(event.rank, event.step); }

  // The first byte reaches the other host's interface.
  void enter(const Event& event) {
    const int from_host = topology_.host_of(event.rank);
    const int to_host =
        topology_.host_of(schedules_[event.rank].schedule.transfers[event.transfer].peer);
    const double bytes = bytes_of(event);
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
    const Transfer& transfer = schedules_[event.rank].schedule.transfers[event.transfer];
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
    const double bytes = bytes_of(receive.sender, receive.send_step);
    const double end = work(rank, now, cost.message_cpu + bytes / cost.bytes_per_second);
    push(end, What::kStepDone, rank, receive.step);
    if (is_eager(receive.sender, rank, bytes)) return;
    acknowledge(receive.sender, receive.send_step, end + cost.latency);
  }

  // A short message inside a host is the receiver's own copy as soon as it has left.
  bool is_eager(int from, int to, double bytes) const {
    return bytes <= 4096 && topology_.same_host(from, to);
  }

  void acknowledge(int sender, std::uint32_t step, double when) {
    const auto left = sends_left_.find(key(sender, step));
    if (--left->second > 0) return;
    sends_left_.erase(left);
    push(when, What::kStepDone, sender, step);
  }

  void finish(int rank, std::uint32_t index, double now) {
    const Schedule& schedule = schedules_[rank].schedule;
    const Step& step = schedule.steps[index];
    --ranks_[rank].steps_left;
    if (!step.outlives_operation()) result_.rank_seconds[rank] = now;
    for (const std::uint32_t dependent : schedule.dependents_of(step)) {
      if (--ranks_[rank].missing[dependent] == 0) push(now, What::kReady, rank, dependent);
    }
  }

  const std::vector<Joined>& schedules_;
  const Topology& topology_;
  const CostParameters& parameters_;
  double crowding_ = 1;
  std::vector<double> processor_free_, in_free_;
  std::vector<Port> ports_;
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
  std::vector<Joined> ranks(topology.world());
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) ranks[rank].add(schedules[rank], 0);
  return World(ranks, topology, parameters).run();
}

Simulation simulate(const std::vector<Started>& collectives, const Topology& topology,
                    const CostParameters& parameters) {
  std::vector<Joined> ranks(topology.world());
  for (const Started& one : collectives) {
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      ranks[rank].add(one.schedules[rank], one.seconds);
    }
  }
  return World(ranks, topology, parameters).run();
}

}  // namespace taco::pg
