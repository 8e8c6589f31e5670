// The token and its hand-overs, run against a model of an engine whose answers come from another
// thread, by two ways that sleep differently: a descriptor that stays readable (a socket) and a
// ring whose sender rings a bell only when it sees that the receiver sleeps (shared memory). A
// wake-up that is lost shows as a wait that runs into its deadline. Run it under TSan too.
#include "harp/engine/duty.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <random>
#include <thread>
#include <vector>

#include "harp/engine/engine_wait_set.h"
#include "harp/engine/submit_queue.h"
#include "support/processes.h"

namespace taco::harp {
namespace {

constexpr Duration kDeadline = 20 * kSecond;

class Model;

// One request to the far side; its event is set when the answer has come.
struct Request : Task {
  Model* model = nullptr;
  bool by_ring = false;
  unsigned delay_us = 0;  // of the answer; else a short random one
  Event answered;
  void run_st(Transport&) override;
};

// Tasks are handed a Transport; those of this model use none.
class NoTransport final : public Transport {
 public:
  void send_st(PeerId, SendRequest&) override { std::abort(); }
  void recv_st(PeerId, RecvRequest&) override { std::abort(); }
  void cancel_st(SendRequest&, const Status&) override { std::abort(); }
  void cancel_st(RecvRequest&, const Status&) override { std::abort(); }
  void release_st(Staging&) override { std::abort(); }
  bool has_unmatched_st(PeerId, const MessageKey&) const override { std::abort(); }
  void solicit_st(PeerId, const MessageKey&) override { std::abort(); }
  void forget_group_st(std::uint64_t) override { std::abort(); }
  void notify_st(PeerId, std::span<const std::byte>) override { std::abort(); }
  bool is_idle_st(PeerId) const override { std::abort(); }
  Time now_st() const override { std::abort(); }
  void arm_st(Timer&, Time) override { std::abort(); }
  void disarm_st(Timer&) override { std::abort(); }
  bool is_local_st(PeerId) const override { std::abort(); }
  Status loss_st(PeerId) const override { std::abort(); }
};

class Model final : public Driven {
 public:
  explicit Model(Duty::Drivers drivers) : duty_(*this, token_, drivers) {
    thread_set_ = std::move(WaitSet::create(bell_.get())).value();
    caller_set_ = std::move(WaitSet::create(bell_.get())).value();
    EXPECT_TRUE(alarm_.start().ok());
    EXPECT_TRUE(thread_set_->add(alarm_.fd()).ok());
    socket_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    EXPECT_TRUE(thread_set_->add(socket_).ok());
    EXPECT_TRUE(caller_set_->add(socket_).ok());
    thread_ = std::thread([this] { duty_.run(); });
    far_side_ = std::thread([this] { answer(); });
  }
  ~Model() override {
    duty_.stop();
    thread_.join();
    {
      std::lock_guard lock(asked_mutex_);
      over_ = true;
    }
    asked_changed_.notify_all();
    far_side_.join();
    close(socket_);
  }

  Duty& duty() { return duty_; }
  bool asleep() const { return asleep_; }  // so that the far side would ring
  int dozes() const { return dozes_; }
  int turns_of_callers() const { return turns_of_callers_; }
  int turns_of_thread() const { return turns_of_thread_; }
  void submit(Request& request, bool caller_will_wait) {
    request.model = this;
    queue_.push(request);
    if (!caller_will_wait) duty_.submitted();
  }
  void submit_task(Task& task) {
    queue_.push(task);
    duty_.submitted();
  }
  void ask(Request& request) {
    EXPECT_TRUE(token_.held_by_me());
    ++open_;
    std::lock_guard lock(asked_mutex_);
    asked_.push_back(&request);
    asked_changed_.notify_one();
  }

 private:
  // Driven.
  bool turn_st(Who who) override {
    EXPECT_TRUE(token_.held_by_me());
    ++(who == Who::kCaller ? turns_of_callers_ : turns_of_thread_);
    now_ = monotonic_now();
    set_of(who).consume_kicks();
    bool worked = false;
    for (Task* task = queue_.take_all(); task != nullptr; worked = true) {
      Task* next = SubmitQueue::next(*task);
      task->run_st(transport_);
      task = next;
    }
    std::uint64_t count;
    if (read(socket_, &count, sizeof count) > 0) worked |= take(from_socket_);
    return take(from_ring_) || worked;
  }
  Time now_st() const override { return now_; }
  Time next_deadline_st() const override { return kNever; }
  bool has_open_requests_st() const override { return open_ > 0; }
  bool prepare_sleep_st() override {
    asleep_.exchange(true);
    if (queue_.empty() && from_ring_.empty()) return true;
    asleep_.exchange(false);
    return false;
  }
  void cancel_sleep_st() override { asleep_.exchange(false); }
  bool prepare_doze_st(Time until) override {
    EXPECT_EQ(open_, 0);
    ++dozes_;
    EXPECT_LE(until, monotonic_now() + kSecond);
    return queue_.empty() && from_ring_.empty();
  }
  void leave_until_st(Time until) override { EXPECT_LE(until, monotonic_now() + kDeadline); }
  bool queue_empty() const override { return queue_.empty(); }
  WaitSet& set_of(Who who) { return who == Who::kCaller ? *caller_set_ : *thread_set_; }
  void arm_st(Time deadline) override { alarm_.set(deadline); }
  void arm_no_later_st(Time deadline) override { alarm_.set_no_later(deadline); }
  void block(Who who, Time deadline) override { set_of(who).block(deadline); }
  void kick(Who who) override { set_of(who).kick(); }

  bool take(SubmitQueue& from) {
    bool any = false;
    for (Task* task = from.take_all(); task != nullptr; any = true) {
      Task* next = SubmitQueue::next(*task);
      --open_;
      static_cast<Request*>(task)->answered.set();
      duty_.wake_waiters();
      task = next;
    }
    return any;
  }

  // The far side: answers each request after a random pause.
  void answer() {
    std::mt19937 random(7);
    for (;;) {
      std::unique_lock lock(asked_mutex_);
      asked_changed_.wait(lock, [&] { return over_ || !asked_.empty(); });
      if (over_) return;
      Request* request = asked_.front();
      asked_.pop_front();
      lock.unlock();
      if (request->delay_us > 0) {
        usleep(request->delay_us);
      } else if (random() % 4 == 0) {
        usleep(random() % 100);
      }
      if (request->by_ring) {
        from_ring_.push(*request);
        if (asleep_.exchange(false)) ring_bell();
      } else {
        from_socket_.push(*request);
        ring_bell();
      }
    }
  }
  void ring_bell() {
    const std::uint64_t one = 1;
    EXPECT_EQ(write(socket_, &one, sizeof one), static_cast<ssize_t>(sizeof one));
  }

  NoTransport transport_;
  Token token_;
  Duty duty_;
  const OwnFd bell_{eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
  Alarm alarm_;
  std::unique_ptr<WaitSet> thread_set_, caller_set_;
  SubmitQueue queue_, from_socket_, from_ring_;
  int socket_ = -1;
  std::atomic<bool> asleep_{false};
  std::atomic<int> dozes_{0}, turns_of_callers_{0}, turns_of_thread_{0};
  Time now_ = 0;
  int open_ = 0;

  std::mutex asked_mutex_;
  std::condition_variable asked_changed_;
  std::deque<Request*> asked_;  // guarded by asked_mutex_
  bool over_ = false;           // guarded by asked_mutex_
  std::thread thread_, far_side_;
};

void Request::run_st(Transport&) { model->ask(*this); }

struct Kind {
  const char* name;
  Duration spin;
  Duty::Drivers drivers;
};

class DutyTest : public ::testing::TestWithParam<Kind> {
 protected:
  DutyTest() : model_(GetParam().drivers) {
    model_.duty().set_spin(GetParam().spin, GetParam().spin);
  }
  bool is_lent() const { return GetParam().drivers == Duty::Drivers::kThreadAndCallers; }
  // Callers that may not drive the engine never did.
  void TearDown() override {
    if (!is_lent()) {
      EXPECT_EQ(model_.turns_of_callers(), 0);
    }
  }
  Model model_;
};

TEST_P(DutyTest, a_waiting_caller_has_its_request_done) {
  for (int i = 0; i < 2'000; ++i) {
    Request request;
    request.by_ring = i % 2 == 0;
    model_.submit(request, true);
    ASSERT_TRUE(model_.duty().wait(request.answered, monotonic_now() + kDeadline)) << i;
  }
  if (is_lent()) {
    EXPECT_GT(model_.turns_of_callers(), 0);
  }
}

TEST_P(DutyTest, the_engine_thread_serves_what_nobody_waits_for) {
  for (int i = 0; i < 500; ++i) {
    Request request;
    request.by_ring = i % 2 == 0;
    model_.submit(request, false);
    const Time limit = monotonic_now() + kDeadline;
    while (!request.answered.is_set() && monotonic_now() < limit) std::this_thread::yield();
    ASSERT_TRUE(request.answered.is_set()) << i;
    // The answering thread may still be inside wake_waiters(); the request is not.
    if (i % 3 == 0) usleep(1'500);
  }
}

TEST_P(DutyTest, many_callers_and_submitters_lose_no_wake_up) {
  constexpr int kThreads = 4, kRounds = 700;
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(seed + t);
      for (int i = 0; i < kRounds && failures == 0; ++i) {
        std::array<Request, 3> requests;
        for (Request& request : requests) {
          request.by_ring = random() % 2 == 0;
          model_.submit(request, &request == &requests[2] && random() % 2 == 0);
          if (random() % 8 == 0) usleep(random() % 200);
        }
        for (Request& request : requests) {
          if (!model_.duty().wait(request.answered, monotonic_now() + kDeadline)) ++failures;
        }
        if (random() % 16 == 0) usleep(random() % 3'000);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
}

TEST_P(DutyTest, a_wait_ends_at_its_deadline_and_the_request_goes_on) {
  Event never;
  const Time start = monotonic_now();
  EXPECT_FALSE(model_.duty().wait(never, start + 30 * kMillisecond));
  EXPECT_GE(monotonic_now(), start + 30 * kMillisecond);
  Request request;
  model_.submit(request, true);
  EXPECT_TRUE(model_.duty().wait(request.answered, monotonic_now() + kDeadline));
}

// It has promised to drive what it submits; its time being up is no reason for that not to happen.
TEST_P(DutyTest, a_task_is_run_although_its_submitter_has_no_time_left_to_wait) {
  for (int i = 0; i < 50; ++i) {
    Request request;
    usleep(static_cast<unsigned>(i) * 100);
    model_.submit(request, true);
    static_cast<void>(model_.duty().wait(request.answered, monotonic_now()));
    const Time limit = monotonic_now() + kDeadline;
    while (!request.answered.is_set() && monotonic_now() < limit) std::this_thread::yield();
    ASSERT_TRUE(request.answered.is_set()) << i;
  }
}

TEST_P(DutyTest, an_event_set_by_another_thread_wakes_the_driver_and_the_sleepers) {
  for (int i = 0; i < 50; ++i) {
    Event event;
    std::atomic<int> returned{0};
    std::vector<std::thread> waiters;
    for (int w = 0; w < 3; ++w) {
      waiters.emplace_back([&] {
        if (model_.duty().wait(event, monotonic_now() + kDeadline)) ++returned;
      });
    }
    usleep(static_cast<unsigned>(i) * 40);
    event.set();
    model_.duty().wake_waiters();
    for (std::thread& waiter : waiters) waiter.join();
    ASSERT_EQ(returned, 3) << i;
  }
}

// The waiter's event is set by a task of another thread, which promises nothing: whenever it comes,
// before the driver sleeps, as it falls asleep or long after, it must be run.
TEST_P(DutyTest, a_submission_reaches_a_driver_that_waits_for_it) {
  struct Setter : Task {
    Model* model = nullptr;
    Event done;
    void run_st(Transport&) override {
      Duty& duty = model->duty();  // once the event is set, this object may end
      done.set();
      duty.wake_waiters();
    }
  };
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int i = 0; i < 3'000; ++i) {
    Setter setter;
    setter.model = &model_;
    const unsigned pause = i % 100 == 0 ? 5'000 : random() % 120;
    std::atomic<bool> go{false};
    std::thread submitter([&] {
      while (!go) std::this_thread::yield();
      if (pause >= 5'000) usleep(pause);
      const Time until = monotonic_now() + (pause % 5'000) * kMicrosecond;
      while (monotonic_now() < until) {
      }
      model_.submit_task(setter);
    });
    go = true;
    const bool set = model_.duty().wait(setter.done, monotonic_now() + 5 * kSecond);
    submitter.join();
    ASSERT_TRUE(set) << i;
  }
}

// The engine's thread stands by while a caller drives for long; when that caller leaves, the answer
// to a request that nobody waits for rings a bell only the engine's thread can hear.
TEST_P(DutyTest, a_leaving_caller_hands_open_requests_to_the_engine_thread) {
  for (int i = 0; i < 20; ++i) {
    Request early, awaited, late;
    early.delay_us = 2'000;
    awaited.delay_us = 8'000;
    late.delay_us = 10'000;
    late.by_ring = true;
    model_.submit(early, true);
    model_.submit(awaited, true);
    model_.submit(late, true);
    ASSERT_TRUE(model_.duty().wait(awaited.answered, monotonic_now() + kDeadline));
    const Time limit = monotonic_now() + 5 * kSecond;
    while (!late.answered.is_set() && monotonic_now() < limit) usleep(500);
    ASSERT_TRUE(late.answered.is_set()) << i;
    usleep(2'000);
  }
}

// By polling alone, within kDeadline.
bool polled_until_answered(Model& model, const Request& request) {
  const Time limit = monotonic_now() + kDeadline;
  while (!request.answered.is_set() && monotonic_now() < limit) {
    model.duty().poll();
    std::this_thread::yield();
  }
  return request.answered.is_set();
}

TEST_P(DutyTest, a_caller_that_polls_has_its_requests_done) {
  for (int i = 0; i < 2'000; ++i) {
    Request request;
    request.by_ring = i % 2 == 0;
    model_.submit(request, false);
    ASSERT_TRUE(polled_until_answered(model_, request)) << i;
    if (i % 100 == 0) usleep(3'000);  // the lease ends
  }
}

// As long as the lease lasts: here for longer than the test.
TEST_P(DutyTest, whoever_polls_has_the_engine_for_itself) {
  model_.duty().set_lease(kDeadline);
  Request first;
  model_.submit(first, false);
  ASSERT_TRUE(polled_until_answered(model_, first));
  // The engine's thread may still be busy with its last turn.
  const auto it_stays_away = [&] {
    const int before = model_.turns_of_thread();
    for (int i = 0; i < 50; ++i) {
      Request request;
      request.by_ring = i % 2 == 0;
      model_.submit(request, false);
      EXPECT_TRUE(polled_until_answered(model_, request)) << i;
    }
    return model_.turns_of_thread() == before;
  };
  const Time limit = monotonic_now() + kDeadline / 2;
  bool away = it_stays_away();
  while (is_lent() && !away && monotonic_now() < limit) away = it_stays_away();
  EXPECT_EQ(away, is_lent());
}

TEST_P(DutyTest, the_engine_thread_goes_on_where_a_caller_stops_to_poll) {
  for (int i = 0; i < 50; ++i) {
    Request early, late, unseen;
    late.delay_us = 4'000;
    late.by_ring = i % 2 == 0;
    model_.submit(early, false);
    model_.submit(late, false);
    ASSERT_TRUE(polled_until_answered(model_, early)) << i;
    model_.submit(unseen, false);
    const Time limit = monotonic_now() + kDeadline;
    while (!(late.answered.is_set() && unseen.answered.is_set()) && monotonic_now() < limit) {
      usleep(200);
    }
    ASSERT_TRUE(late.answered.is_set()) << i;
    ASSERT_TRUE(unseen.answered.is_set()) << i;
  }
}

TEST_P(DutyTest, callers_that_poll_and_callers_that_wait_lose_no_wake_up) {
  constexpr int kThreads = 4, kRounds = 500;
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(seed + t);
      for (int i = 0; i < kRounds && failures == 0; ++i) {
        Request request;
        request.by_ring = random() % 2 == 0;
        const bool polls = (t + i / 50) % 2 == 0;
        model_.submit(request, !polls && random() % 2 == 0);
        const bool answered =
            polls ? polled_until_answered(model_, request)
                  : model_.duty().wait(request.answered, monotonic_now() + kDeadline);
        if (!answered) ++failures;
        if (random() % 16 == 0) usleep(random() % 3'000);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
}

// Callers that come and go keep the engine dozing, unannounced. Once they stay away it must sleep
// properly: what arrives then rings for itself.
TEST_P(DutyTest, an_engine_that_dozed_falls_asleep) {
  for (int i = 0; i < 20; ++i) {
    for (int call = 0; call < 10; ++call) {
      Request request;
      request.by_ring = true;
      model_.submit(request, true);
      ASSERT_TRUE(model_.duty().wait(request.answered, monotonic_now() + kDeadline));
    }
    const Time limit = monotonic_now() + 5 * kSecond;
    while (!model_.asleep() && monotonic_now() < limit) usleep(200);
    ASSERT_TRUE(model_.asleep()) << i;
  }
  if (is_lent()) {
    EXPECT_GT(model_.dozes(), 0);
  }
}

TEST_P(DutyTest, stop_returns_every_waiter) {
  Event never;
  std::vector<std::thread> waiters;
  for (int w = 0; w < 3; ++w) {
    waiters.emplace_back([&] { EXPECT_FALSE(model_.duty().wait(never, kNever)); });
  }
  usleep(5'000);
  model_.duty().stop();
  for (std::thread& waiter : waiters) waiter.join();
}

TEST(DutyIdleTest, a_long_wait_costs_no_processor_time) {
  for (const auto drivers : {Duty::Drivers::kThreadAndCallers, Duty::Drivers::kThreadAlone}) {
    Model model(drivers);
    Event never;
    const double before = ::taco::testing::processor_seconds();
    EXPECT_FALSE(model.duty().wait(never, monotonic_now() + kSecond));
    const double used = ::taco::testing::processor_seconds() - before;
    EXPECT_LT(used, 0.25);  // generous: about 0.001 in quiet, and who polls takes 1
  }
}

constexpr auto kLent = Duty::Drivers::kThreadAndCallers, kAlone = Duty::Drivers::kThreadAlone;
INSTANTIATE_TEST_SUITE_P(Kinds, DutyTest,
                         ::testing::Values(Kind{"0us", 0, kLent},
                                           Kind{"20us", 20 * kMicrosecond, kLent},
                                           Kind{"2000us", 2 * kMillisecond, kLent},
                                           Kind{"alone_0us", 0, kAlone},
                                           Kind{"alone_400us", 400 * kMicrosecond, kAlone}),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace taco::harp
