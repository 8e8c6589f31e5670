// HARP's messages, posted in batches that are used again: nothing is allocated while it is
// measured.
#include <algorithm>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "harp/tools/perf_ways.h"

namespace taco::harp::perf {
namespace {

constexpr std::byte kMoreToCome{1}, kLastBatch{0};
constexpr Duration kBatchTime = 60 * kSecond;
constexpr std::uint64_t kThere = 1, kBack = 2;

// Messages of one direction, posted together and waited for together.
class Batch final : public Task {
 public:
  Batch(Engine& engine, PeerId peer, bool sends, std::size_t count, std::size_t bytes)
      : engine_(engine), peer_(peer), memory_(count * bytes, std::byte{'z'}) {
    sends_.resize(sends ? count : 0);
    recvs_.resize(sends ? 0 : count);
    for (std::size_t i = 0; i < sends_.size(); ++i) {
      sends_[i].data = &memory_[i * bytes];
      sends_[i].bytes = bytes;
    }
    for (std::size_t i = 0; i < recvs_.size(); ++i) {
      recvs_[i].sink = Sink::place(&memory_[i * bytes]);
      recvs_[i].max_bytes = bytes;
    }
  }

  void start(std::uint64_t group, std::uint64_t first_tag) {
    group_ = group;
    first_tag_ = first_tag;
    done_.emplace();
    failure_ = Status();
    engine_.submit(*this, true);
  }
  // When it returns, nothing of it is under way any more.
  Status finish() {
    if (!engine_.wait(*done_, monotonic_now() + kBatchTime)) {
      engine_.submit(canceller_, true);
      engine_.wait(*done_, kNever);
    }
    return failure_;
  }
  std::byte& first_byte() { return memory_[0]; }

 private:
  struct Canceller final : Task {
    explicit Canceller(Batch& owner) : owner(owner) {}
    void run_st(Transport& transport) override { owner.cancel_st(transport); }
    Batch& owner;
  };

  void run_st(Transport& transport) override {
    open_ = sends_.size() + recvs_.size();
    for (SendRequest& request : sends_) prepare(request);
    for (RecvRequest& request : recvs_) prepare(request);
    for (SendRequest& request : sends_) transport.send_st(peer_, request);
    for (RecvRequest& request : recvs_) transport.recv_st(peer_, request);
  }
  // `context` is null once the request has ended.
  template <class Request>
  void prepare(Request& request) {
    request.key = {group_, first_tag_++};
    request.context = this;
    request.on_done = [](Request& ended, const Status& status) {
      auto& batch = *static_cast<Batch*>(ended.context);
      ended.context = nullptr;
      batch.on_done(status);
    };
  }
  void on_done(const Status& status) {
    if (!status.ok() && failure_.ok()) failure_ = status;
    if (--open_ > 0) return;
    Engine& engine = engine_;  // once the event is set, this object may end
    done_->set();
    engine.wake_waiters();
  }
  void cancel_st(Transport& transport) {
    const Status why(Code::kTimeout, "the other side has not done its part within 60 s");
    for (SendRequest& request : sends_) {
      if (request.context != nullptr) transport.cancel_st(request, why);
    }
    for (RecvRequest& request : recvs_) {
      if (request.context != nullptr) transport.cancel_st(request, why);
    }
  }

  Engine& engine_;
  const PeerId peer_;
  Canceller canceller_{*this};
  std::vector<std::byte> memory_;
  std::vector<SendRequest> sends_;
  std::vector<RecvRequest> recvs_;
  std::uint64_t group_ = 0, first_tag_ = 0;
  std::size_t open_ = 0;
  Status failure_;
  std::optional<Event> done_;
};

}  // namespace

// The first byte of each message says whether another follows: the server knows no clock of the
// client's.
Result<Figures> Lane::latency(const Job& job, bool is_client) {
  Batch out(engine_, peer_, true, 1, job.bytes), in(engine_, peer_, false, 1, job.bytes);
  const std::uint64_t own = is_client ? kThere : kBack, other = is_client ? kBack : kThere;
  Figures figures;
  const Time first = monotonic_now();
  bool more = true;
  for (std::int64_t i = 0; more; ++i, ++tag_) {
    const Time start = monotonic_now();
    if (is_client) more = job.has_time_for_another(i, start - first);
    out.first_byte() = more ? kMoreToCome : kLastBatch;
    in.start(other, tag_);
    if (is_client) out.start(own, tag_);
    const Status arrived = in.finish();
    if (!is_client && arrived.ok()) {
      more = in.first_byte() == kMoreToCome;
      out.start(own, tag_);
    }
    if (is_client || arrived.ok()) TACO_RETURN_IF_ERROR(out.finish());
    TACO_RETURN_IF_ERROR(arrived);
    if (is_client) figures.half_round_trips.push_back((monotonic_now() - start) / 2);
  }
  return figures;
}

// The first byte of each batch says whether more will follow than those that are under way by then.
Result<Figures> Lane::stream(const Job& job, bool is_client) {
  std::vector<std::unique_ptr<Batch>> batches;
  for (std::size_t i = 0; i < job.depth; ++i) {
    batches.push_back(std::make_unique<Batch>(engine_, peer_, is_client, job.batch, job.bytes));
  }
  constexpr std::uint64_t kNotKnown = UINT64_MAX;
  std::uint64_t begun = 0, done = 0, total = kNotKnown;
  Status failure;
  const Time start = monotonic_now();
  while (done < begun || (failure.ok() && begun < total)) {
    Batch& next = *batches[begun % job.depth];
    if (failure.ok() && begun < total && begun < done + job.depth) {
      const auto taken = static_cast<double>(monotonic_now() - start) / kSecond;
      if (is_client && total == kNotKnown && taken >= job.seconds) total = begun + job.depth;
      if (is_client) next.first_byte() = total == kNotKnown ? kMoreToCome : kLastBatch;
      next.start(kThere, tag_);
      tag_ += job.batch;
      ++begun;
      continue;
    }
    Batch& oldest = *batches[done % job.depth];
    const Status ended = oldest.finish();
    if (!ended.ok() && failure.ok()) failure = ended;
    const bool was_last = oldest.first_byte() == kLastBatch;
    if (!is_client && was_last && total == kNotKnown) total = done + job.depth;
    ++done;
  }
  TACO_RETURN_IF_ERROR(failure);
  Figures figures;
  figures.messages = done * job.batch;
  figures.seconds = static_cast<double>(monotonic_now() - start) / kSecond;
  return figures;
}

Result<Figures> HarpWay::latency(const Job& job, bool is_client) {
  return on_all(&Lane::latency, job, is_client);
}

Result<Figures> HarpWay::stream(const Job& job, bool is_client) {
  return on_all(&Lane::stream, job, is_client);
}

Result<Figures> HarpWay::on_all(Run run, const Job& job, bool is_client) {
  std::vector<Result<Figures>> found(lanes_.size(), Figures());
  std::vector<std::thread> threads;
  for (std::size_t i = 1; i < lanes_.size(); ++i) {
    threads.emplace_back([&, i] { found[i] = (lanes_[i].*run)(job, is_client); });
  }
  found[0] = (lanes_[0].*run)(job, is_client);
  for (std::thread& thread : threads) thread.join();
  Figures sum;
  for (Result<Figures>& each : found) {
    if (!each.ok()) return each.status();
    sum.half_round_trips.insert(sum.half_round_trips.end(), each->half_round_trips.begin(),
                                each->half_round_trips.end());
    sum.messages += each->messages;
    sum.seconds = std::max(sum.seconds, each->seconds);
  }
  return sum;
}

}  // namespace taco::harp::perf
