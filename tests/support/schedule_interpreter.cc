#include "support/schedule_interpreter.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <sstream>
#include <tuple>
#include <utility>

#include "support/schedule_memory.h"

namespace taco::pg::testing {

namespace {

// An open send reads, an open receive writes (and reads its own operand).
struct Access {
  Place place;
  std::uint32_t step = 0;
  bool writes = false;
};

// One rank's memory and what is open in it.
struct Rank {
  Rank(const Problem& p, const Schedule& s, ScheduleMemory m, Feedback f)
      : problem(&p),
        schedule(&s),
        memory(std::move(m)),
        feedback(std::move(f)),
        lengths(s.lengths.size()) {}

  const Problem* problem;
  const Schedule* schedule;
  ScheduleMemory memory;
  Feedback feedback;
  std::vector<std::optional<std::uint64_t>> lengths;  // as far as they are known
  std::vector<Access> open;
  std::vector<std::uint32_t> missing;        // by step: dependencies, then transfers, not yet done
  std::vector<bool> opened, done;            // by step
  std::vector<std::uint32_t> queue[2];       // sends, receives, ascending
  std::size_t first_unfinished[2] = {0, 0};  // into queue
  std::size_t steps_left = 0;
  bool started = false;
};

struct Message {
  int sender = -1, receiver = -1;
  std::uint32_t send_step = 0, receive_step = 0;
  bool has_sender = false, has_receiver = false;
  bool send_open = false, receive_open = false;
  std::uint64_t bytes = 0;  // once it is sent
  std::uint32_t fragments_left = 0;
};

enum class What : std::uint8_t { kStart, kRun, kDeliver, kAcknowledge };
struct Event {
  What what;
  int rank;              // who acts
  std::size_t index;     // step, or message
  std::uint64_t offset;  // fragment
  std::uint64_t bytes;
};

class World {
 public:
  World(const std::vector<Problem>& problems, const std::vector<Schedule>& schedules,
        const InterpreterOptions& options, std::vector<Feedback> feedback)
      : options_(options), random_(options.seed) {
    slow_rank_ = static_cast<int>(random_() % problems.size());
    feedback.resize(problems.size());
    for (std::size_t rank = 0; rank < problems.size(); ++rank) {
      ranks_.push_back(prepare(static_cast<int>(rank), problems, schedules[rank], feedback[rank]));
    }
    match_messages();
  }

  InterpreterResult run() {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      enable({What::kStart, static_cast<int>(rank), 0, 0, 0});
    }
    while (failure_.empty() && !(preferred_.empty() && deferred_.empty())) perform(pick());
    if (failure_.empty()) check_end();
    InterpreterResult result;
    result.failure = failure_;
    result.messages = messages_.size();
    result.retransmissions_checked = retransmissions_;
    for (Rank& rank : ranks_) {
      result.outputs.push_back(rank.memory.outputs());
      result.feedback.push_back(std::move(rank.feedback));
    }
    return result;
  }

 private:
  Rank prepare(int index, const std::vector<Problem>& problems, const Schedule& schedule,
               Feedback& feedback) {
    const int world = static_cast<int>(problems.size());
    const Problem& problem = problems[index];
    const std::uint64_t kept = feedback.residual.size() * problem.element_bytes;
    Rank rank(problem, schedule,
              ScheduleMemory(problem, index, world, schedule.scratch_bytes, kept, random_),
              std::move(feedback));
    const std::size_t steps = schedule.steps.size();
    rank.opened.resize(steps);
    rank.done.resize(steps);
    rank.steps_left = steps;
    for (std::uint32_t step = 0; step < steps; ++step) {
      rank.missing.push_back(schedule.steps[step].dependencies);
      if (schedule.steps[step].kind == StepKind::kSend) rank.queue[0].push_back(step);
      if (schedule.steps[step].is_receive()) rank.queue[1].push_back(step);
    }
    return rank;
  }

  void match_messages() {
    std::map<std::tuple<int, int, std::uint32_t>, std::size_t> found;
    for (std::size_t index = 0; index < ranks_.size(); ++index) {
      const int me = static_cast<int>(index);
      const Schedule& schedule = *ranks_[index].schedule;
      message_of_.emplace_back(schedule.transfers.size());
      for (std::uint32_t step = 0; step < schedule.steps.size(); ++step) {
        const Step& s = schedule.steps[step];
        const bool sends = s.kind == StepKind::kSend;
        if (s.transfers != 0 && !sends && !s.is_receive()) fail(me, step, "transfers nothing");
        if (s.is_receive() && s.transfers != 1) fail(me, step, "must have one sender");
        for (std::uint32_t t = 0; t < s.transfers; ++t) {
          const Transfer& transfer = schedule.transfers[s.first_transfer + t];
          const auto key = sends ? std::tuple(me, transfer.peer, transfer.channel)
                                 : std::tuple(transfer.peer, me, transfer.channel);
          const auto [at, fresh] = found.try_emplace(key, messages_.size());
          if (fresh) messages_.emplace_back();
          message_of_[index][s.first_transfer + t] = at->second;
          Message& message = messages_[at->second];
          if (sends ? message.has_sender : message.has_receiver) fail(me, step, "channel in use");
          (sends ? message.has_sender : message.has_receiver) = true;
          (sends ? message.sender : message.receiver) = me;
          (sends ? message.send_step : message.receive_step) = step;
        }
      }
    }
    for (const Message& message : messages_) {
      if (!message.has_sender) fail(message.receiver, message.receive_step, "nobody sends this");
      if (!message.has_receiver) fail(message.sender, message.send_step, "nobody receives this");
      if (!failure_.empty()) return;
      check_lengths(message);
    }
  }

  // A receive that is told the length takes whatever fits; any other expects just that.
  void check_lengths(const Message& message) {
    const Step& send = step_of(message.sender, message.send_step);
    const Step& receive = step_of(message.receiver, message.receive_step);
    const std::uint64_t room = receive.is_coded_arrival()
                                   ? ranks_[message.receiver].schedule->message_bytes(receive)
                                   : receive.destination.bytes;
    if (receive.length != Step::kWhole) {
      if (send.source.bytes > room) fail(message.sender, message.send_step, "may be too long");
    } else if (send.length != Step::kWhole || send.source.bytes != room) {
      fail(message.sender, message.send_step, "sent and received lengths differ");
    }
  }

  const Step& step_of(int rank, std::uint32_t step) const {
    return ranks_[rank].schedule->steps[step];
  }

  void fail(int rank, std::uint32_t step, const std::string& what) {
    if (!failure_.empty()) return;
    std::ostringstream text;
    text << "rank " << rank << " step " << step;
    if (rank >= 0 && step < ranks_[rank].schedule->steps.size()) {
      text << " (" << name_of(step_of(rank, step).kind) << ")";
    }
    text << ": " << what << " [seed " << options_.seed << ", mood "
         << static_cast<int>(options_.mood) << ", window " << options_.window << "]";
    failure_ = text.str();
  }

  // --- choosing ---

  void enable(const Event& event) {
    const bool late = options_.mood == Mood::kLateAcks && event.what == What::kAcknowledge;
    const bool slow = options_.mood == Mood::kOneSlow && event.rank == slow_rank_;
    (late || slow ? deferred_ : preferred_).push_back(event);
  }

  Event pick() {
    std::deque<Event>& pool = preferred_.empty() ? deferred_ : preferred_;
    std::size_t index = random_() % pool.size();
    if (options_.mood == Mood::kNewestFirst) index = pool.size() - 1;
    if (options_.mood == Mood::kOldestFirst) index = 0;
    const Event event = pool[index];
    if (options_.mood == Mood::kOldestFirst) {
      pool.pop_front();
    } else {
      pool[index] = pool.back();
      pool.pop_back();
    }
    return event;
  }

  // --- running ---

  void perform(const Event& event) {
    Rank& rank = ranks_[event.rank];
    const auto step = static_cast<std::uint32_t>(event.index);
    switch (event.what) {
      case What::kStart:
        rank.started = true;
        ++started_;
        for (std::uint32_t s = 0; s < rank.missing.size(); ++s) consider(event.rank, s);
        finish_rank_if_done(event.rank);
        break;
      case What::kRun:
        if (rank.schedule->steps[step].kind == StepKind::kSend) {
          open_send(event.rank, step);
        } else if (rank.schedule->steps[step].is_receive()) {
          open_receive(event.rank, step);
        } else {
          run_locally(event.rank, step);
        }
        break;
      case What::kDeliver:
        deliver(event);
        break;
      case What::kAcknowledge:
        acknowledge(messages_[event.index]);
        break;
    }
  }

  // Makes a step that has all it waits for an event, if the window covers it.
  void consider(int index, std::uint32_t step) {
    Rank& rank = ranks_[index];
    if (!rank.started || rank.opened[step] || rank.missing[step] != 0) return;
    const Step& s = rank.schedule->steps[step];
    if (s.transfers != 0 && !window_covers(rank, step, s.is_receive())) return;
    rank.opened[step] = true;
    enable({What::kRun, index, step, 0, 0});
  }

  bool window_covers(Rank& rank, std::uint32_t step, bool receives) {
    if (options_.window == 0) return true;
    const std::vector<std::uint32_t>& queue = rank.queue[receives];
    std::uint32_t covered = 0;
    for (std::size_t i = rank.first_unfinished[receives]; i < queue.size(); ++i) {
      if (queue[i] == step) return true;
      if (!rank.done[queue[i]] && ++covered == options_.window) return false;
    }
    return false;
  }

  void slide_window(int index, bool receives) {
    if (options_.window == 0) return;
    Rank& rank = ranks_[index];
    const std::vector<std::uint32_t>& queue = rank.queue[receives];
    std::size_t& first = rank.first_unfinished[receives];
    while (first < queue.size() && rank.done[queue[first]]) ++first;
    std::uint32_t covered = 0;
    for (std::size_t i = first; i < queue.size() && covered < options_.window; ++i) {
      if (rank.done[queue[i]]) continue;
      ++covered;
      consider(index, queue[i]);
    }
  }

  // The slice of a step that may hold less than it has room for.
  static const Slice* variable_of(const Step& s) {
    if (s.length == Step::kWhole || s.is_coded_arrival()) return nullptr;
    return s.is_receive() || s.kind == StepKind::kEncode ? &s.destination : &s.source;
  }

  Place place_of(int index, std::uint32_t step, const Slice& slice) {
    const Rank& rank = ranks_[index];
    const char* complaint = nullptr;
    const Place place = rank.memory.place_of(slice, &complaint);
    if (complaint != nullptr) fail(index, step, complaint);
    const std::uint32_t element = rank.problem->element_bytes;
    const bool cut = slice.bytes % element != 0 ||
                     (slice.space != Space::kScratch && slice.offset % element != 0);
    if (cut && &slice != variable_of(step_of(index, step))) fail(index, step, "cuts an element");
    return place;
  }

  std::uint64_t true_length(int index, std::uint32_t step, const Slice& slice) {
    const Step& s = step_of(index, step);
    if (&slice != variable_of(s)) return slice.bytes;
    const std::optional<std::uint64_t>& length = ranks_[index].lengths[s.length];
    if (!length) fail(index, step, "goes by a length that is not known yet");
    return length.value_or(0);
  }

  std::uint8_t* data(int index, const Place& place) { return ranks_[index].memory.data(place); }

  void check_access(int index, std::uint32_t step, const Place& place, bool writes) {
    for (const Access& access : ranks_[index].open) {
      if (access.step == step || !(writes || access.writes)) continue;
      if (!access.place.overlaps(place)) continue;
      const bool sending = step_of(index, access.step).kind == StepKind::kSend;
      fail(index, step,
           std::string(writes ? "writes" : "reads") + " what open step " +
               std::to_string(access.step) + (sending ? " is sending" : " is receiving"));
    }
  }

  void run_locally(int index, std::uint32_t step) {
    const Step& s = step_of(index, step);
    const std::uint32_t element = ranks_[index].problem->element_bytes;
    const Place to = place_of(index, step, s.destination);
    const Place from = place_of(index, step, s.source);
    const Place operand = place_of(index, step, s.operand);
    check_access(index, step, from, false);
    check_access(index, step, operand, false);
    check_access(index, step, to, true);
    if (s.is_coding()) return code(index, step, to, from, operand);
    if (s.source.bytes != s.destination.bytes ||
        (s.kind == StepKind::kReduce && s.operand.bytes != s.source.bytes)) {
      fail(index, step, "slices differ in length");
    }
    if (!failure_.empty()) return;
    std::uint8_t* out = data(index, to);
    const std::uint8_t* in = data(index, from);
    switch (s.kind) {
      case StepKind::kCopy:
        std::memmove(out, in, to.bytes);
        break;
      case StepKind::kReduce:
        reduce_elements(options_.arithmetic, element, out, in, data(index, operand), to.bytes);
        break;
      case StepKind::kScale:
        scale_elements(element, index, out, in, to.bytes);
        break;
      default:
        divide_elements(element, out, in, to.bytes);
        break;
    }
    finish_step(index, step);
  }

  void code(int index, std::uint32_t step, const Place& to, const Place& from,
            const Place& operand) {
    const Step& s = step_of(index, step);
    Rank& rank = ranks_[index];
    const bool encodes = s.kind == StepKind::kEncode;
    if (encodes && rank.problem->codec->most(from.bytes) > to.bytes) {
      fail(index, step, "has too little room");
    }
    const bool feeds_back = encodes && rank.problem->codec->has_memory();
    if ((s.kind == StepKind::kDecodeReduce && operand.bytes != to.bytes) ||
        (feeds_back && operand.bytes != from.bytes)) {
      fail(index, step, "slices differ in length");
    }
    if (encodes && (s.operand.space == Space::kResidual) != feeds_back) {
      fail(index, step, "has a residual, or none, where the codec thinks otherwise");
    }
    Bytes made = garbage(to.bytes, random_);
    Coding coding;
    coding.source = reinterpret_cast<const std::byte*>(data(index, from));
    coding.source_bytes = true_length(index, step, s.source);
    coding.destination = reinterpret_cast<std::byte*>(made.data());
    coding.destination_bytes = made.size();
    if (feeds_back) {
      coding.feedback = &rank.feedback;
      coding.feedback_from = s.operand.offset / rank.problem->element_bytes;
    }
    while (failure_.empty() && !coding.done) {
      const std::size_t budget = 1 + random_() % 4096;
      const auto worked = encodes ? rank.problem->codec->encode(coding, budget)
                                  : rank.problem->codec->decode(coding, budget);
      if (!worked.ok()) fail(index, step, worked.status().message());
    }
    if (!failure_.empty()) return;
    if (encodes) rank.lengths[s.length] = coding.written;
    if (s.divides) {
      divide_elements(rank.problem->element_bytes, made.data(), made.data(), made.size());
    }
    if (s.kind == StepKind::kDecodeReduce) {
      reduce_elements(options_.arithmetic, rank.problem->element_bytes, made.data(),
                      data(index, operand), made.data(), made.size());
    }
    std::copy(made.begin(), made.end(), data(index, to));
    finish_step(index, step);
  }

  void open_send(int index, std::uint32_t step) {
    Rank& rank = ranks_[index];
    const Step& s = step_of(index, step);
    const Place from = place_of(index, step, s.source);
    check_access(index, step, from, false);
    if (!failure_.empty()) return;
    rank.open.push_back({from, step, false});
    const std::uint64_t bytes = true_length(index, step, s.source);
    snapshots_[{index, step}] = Bytes(data(index, from), data(index, from) + bytes);
    rank.missing[step] = s.transfers;
    for (std::uint32_t t = 0; t < s.transfers; ++t) {
      const std::size_t message = message_of_[index][s.first_transfer + t];
      messages_[message].send_open = true;
      messages_[message].bytes = bytes;
      if (messages_[message].receive_open) start_delivery(message);
    }
  }

  void open_receive(int index, std::uint32_t step) {
    Rank& rank = ranks_[index];
    const Step& s = step_of(index, step);
    const Place to = place_of(index, step, s.destination);
    check_access(index, step, to, true);
    const bool reduces = s.kind == StepKind::kRecvReduce;
    bool keeps_operand = false;
    if (reduces) {
      const Place own = place_of(index, step, s.source);
      check_access(index, step, own, false);
      keeps_operand = own.buffer == to.buffer && own.offset == to.offset;
      if (own.overlaps(to) && !keeps_operand) fail(index, step, "operand overlaps, shifted");
      if (own.bytes != to.bytes) fail(index, step, "slices differ in length");
      rank.open.push_back({own, step, false});
    }
    if (!failure_.empty()) return;
    rank.open.push_back({to, step, true});
    if (!keeps_operand) {
      const Bytes noise = garbage(to.bytes, random_);
      std::copy(noise.begin(), noise.end(), data(index, to));
    }
    const std::size_t message = message_of_[index][s.first_transfer];
    messages_[message].receive_open = true;
    if (messages_[message].send_open) start_delivery(message);
  }

  void start_delivery(std::size_t index) {
    Message& message = messages_[index];
    const std::uint64_t bytes = message.bytes;
    const std::uint64_t element = ranks_[message.sender].problem->element_bytes;
    std::uint64_t cut = bytes == 0 ? 0 : random_() % (bytes / element + 1) * element;
    for (const auto& [from, length] :
         {std::pair(std::uint64_t{0}, cut), std::pair(cut, bytes - cut)}) {
      if (length == 0 && !(bytes == 0 && message.fragments_left == 0)) continue;
      ++message.fragments_left;
      enable({What::kDeliver, message.receiver, index, from, length});
    }
  }

  // The bytes that a retransmission at this moment would carry.
  const std::uint8_t* reread(const Message& message) {
    const Step& send = step_of(message.sender, message.send_step);
    const Place from = place_of(message.sender, message.send_step, send.source);
    const Bytes& snapshot = snapshots_[{message.sender, message.send_step}];
    ++retransmissions_;
    if (!std::equal(snapshot.begin(), snapshot.end(), data(message.sender, from))) {
      fail(message.sender, message.send_step, "its bytes changed while they were being sent");
    }
    return data(message.sender, from);
  }

  void deliver(const Event& event) {
    Message& message = messages_[event.index];
    const std::uint8_t* incoming = reread(message) + event.offset;
    const int index = message.receiver;
    const Step& s = step_of(index, message.receive_step);
    const Place to = place_of(index, message.receive_step, s.destination);
    std::uint8_t* out = data(index, to) + event.offset;
    if (s.is_coded_arrival()) {
      add_coded(message, event, incoming, to);
    } else if (s.kind == StepKind::kRecv) {
      if (event.bytes > 0) std::memcpy(out, incoming, event.bytes);
    } else {
      const Place own = place_of(index, message.receive_step, s.source);
      reduce_elements(options_.arithmetic, ranks_[index].problem->element_bytes, out,
                      data(index, own) + event.offset, incoming, event.bytes);
    }
    if (--message.fragments_left > 0) return;
    if (s.length != Step::kWhole) ranks_[index].lengths[s.length] = message.bytes;
    finish_step(index, message.receive_step);
    enable({What::kAcknowledge, message.sender, event.index, 0, 0});
  }

  // A fragment of a block whose elements are each coded by themselves is such a block too.
  void add_coded(const Message& message, const Event& event, const std::uint8_t* incoming,
                 const Place& to) {
    const Rank& rank = ranks_[message.receiver];
    const Codec& codec = *rank.problem->codec;
    const std::uint32_t element = rank.problem->element_bytes;
    const std::size_t coded_bytes = codec.arrival().coded_bytes;
    Bytes decoded(event.bytes / coded_bytes * element);
    Coding coding;
    coding.source = reinterpret_cast<const std::byte*>(incoming);
    coding.source_bytes = event.bytes;
    coding.destination = reinterpret_cast<std::byte*>(decoded.data());
    coding.destination_bytes = decoded.size();
    const auto worked = codec.decode(coding, decoded.size());
    if (!worked.ok() || message.bytes / coded_bytes * element != to.bytes) {
      fail(message.receiver, message.receive_step, "what has come is no coded block of its length");
      return;
    }
    std::uint8_t* out = data(message.receiver, to) + event.offset / coded_bytes * element;
    reduce_elements(options_.arithmetic, element, out, out, decoded.data(), decoded.size());
  }

  void acknowledge(Message& message) {
    reread(message);
    if (--ranks_[message.sender].missing[message.send_step] == 0) {
      finish_step(message.sender, message.send_step);
    }
  }

  void finish_step(int index, std::uint32_t step) {
    Rank& rank = ranks_[index];
    const Step& s = rank.schedule->steps[step];
    std::erase_if(rank.open, [&](const Access& access) { return access.step == step; });
    if (s.kind == StepKind::kSend) snapshots_.erase({index, step});
    rank.done[step] = true;
    --rank.steps_left;
    for (const std::uint32_t dependent : rank.schedule->dependents_of(s)) {
      if (dependent <= step) fail(index, step, "an earlier step depends on it");
      --rank.missing[dependent];
      consider(index, dependent);
    }
    if (s.transfers != 0) slide_window(index, s.is_receive());
    finish_rank_if_done(index);
  }

  void finish_rank_if_done(int index) {
    Rank& rank = ranks_[index];
    if (rank.steps_left != 0) return;
    if (rank.problem->kind == Kind::kBarrier && started_ < ranks_.size()) {
      fail(index, 0, "left the barrier before all had entered it");
    }
  }

  void check_end() {
    for (std::size_t index = 0; index < ranks_.size(); ++index) {
      const Rank& rank = ranks_[index];
      for (std::uint32_t step = 0; step < rank.done.size(); ++step) {
        if (rank.done[step]) continue;
        return fail(static_cast<int>(index), step,
                    rank.opened[step] ? "deadlock: open for ever" : "deadlock: never ready");
      }
      if (rank.memory.has_written_input(static_cast<int>(index))) {
        return fail(static_cast<int>(index), 0, "an input was written");
      }
    }
  }

  const InterpreterOptions options_;
  std::mt19937_64 random_;
  std::vector<Rank> ranks_;
  std::vector<Message> messages_;
  std::vector<std::vector<std::size_t>> message_of_;          // by rank and transfer
  std::map<std::pair<int, std::uint32_t>, Bytes> snapshots_;  // by sender and step
  std::deque<Event> preferred_, deferred_;
  std::size_t started_ = 0;
  std::uint64_t retransmissions_ = 0;
  int slow_rank_ = 0;
  std::string failure_;
};

}  // namespace

InterpreterResult interpret(const std::vector<Problem>& problems,
                            const std::vector<Schedule>& schedules,
                            const InterpreterOptions& options, std::vector<Feedback> feedback) {
  return World(problems, schedules, options, std::move(feedback)).run();
}

}  // namespace taco::pg::testing
