#include "support/shm_node.h"

#include <sched.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <unistd.h>

namespace taco::harp {

ShmNode::ShmNode(bool pull, std::size_t arena_bytes, bool watch_processes, const JobKey& job_key) {
  ShmOptions options;
  options.job_key = job_key;
  options.pull = pull ? ShmPull::kAlways : ShmPull::kNever;
  options.arena_bytes = arena_bytes;
  options.watch_processes = watch_processes;
  EXPECT_EQ(getrandom(options.secret.data(), 16, 0), 16);
  EXPECT_EQ(getrandom(&options.incarnation, 8, 0), 8);
  auto made = ShmEndpoint::create(options);
  EXPECT_TRUE(made.ok()) << made.status().message();
  endpoint = std::move(made).value();
  host.observer = &heard;
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;
  epoll_ctl(epoll_, EPOLL_CTL_ADD, endpoint->doorbell_fd(), &event);
  event.events = EPOLLIN;
  event.data.u32 = 1;
  epoll_ctl(epoll_, EPOLL_CTL_ADD, endpoint->events_fd(), &event);
}

ShmNode::~ShmNode() {
  endpoint.reset();
  close(epoll_);
}

PeerId ShmNode::join(const ShmAddress& peer) {
  const auto id = static_cast<PeerId>(links.size());
  links.push_back(endpoint->open(peer));
  matchers.push_back(std::make_unique<Matcher>(id, host));
  matchers.back()->attach(*links.back());
  links.back()->attach(*matchers.back());
  return id;
}

bool ShmNode::turn() {
  bool something = endpoint->poll(monotonic_now());
  something |= host.completions.run(&heard) != 0;
  return something;
}

bool ShmNode::run_until(const std::function<bool()>& done, Duration within) {
  const Time deadline = monotonic_now() + within;
  int idle = 0;
  while (!done()) {
    if (turn()) {
      idle = 0;
      continue;
    }
    if (monotonic_now() > deadline) return false;
    if (++idle < spins) {
      sched_yield();
      continue;
    }
    if (!endpoint->prepare_sleep()) continue;
    epoll_event event{};
    const int count = epoll_wait(epoll_, &event, 1, 1000);
    endpoint->cancel_sleep();
    if (count == 1 && event.data.u32 == 1) endpoint->on_events(monotonic_now());
    idle = 0;
  }
  return true;
}

bool ShmNode::run_until_idle() {
  for (int idle = 0; idle < 20;) idle = turn() ? 0 : idle + 1;
  return true;
}

ShmSend::ShmSend(MessageKey message_key, const void* bytes_from, std::size_t length) {
  key = message_key;
  data = bytes_from;
  bytes = length;
  context = this;
  on_done = [](SendRequest& request, const Status& outcome) {
    auto& self = *static_cast<ShmSend*>(request.context);
    EXPECT_FALSE(self.done) << "completed twice";
    self.done = true;
    self.status = outcome;
  };
}

ShmReceive::ShmReceive(MessageKey message_key, Sink into, std::size_t most) {
  key = message_key;
  sink = into;
  max_bytes = most;
  context = this;
  on_done = [](RecvRequest& request, const Status& outcome) {
    auto& self = *static_cast<ShmReceive*>(request.context);
    EXPECT_FALSE(self.done) << "completed twice";
    self.done = true;
    self.status = outcome;
  };
}

bool run_all(const std::vector<ShmNode*>& nodes, const std::function<bool()>& done,
             Duration within) {
  const Time deadline = monotonic_now() + within;
  while (!done()) {
    for (ShmNode* node : nodes) node->turn();
    if (monotonic_now() > deadline) return false;
  }
  return true;
}

std::vector<std::byte> shm_pattern(std::size_t bytes, std::uint64_t seed) {
  std::vector<std::byte> result(bytes);
  std::uint64_t state = seed * 0x9e3779b97f4a7c15 + 1;
  for (std::byte& byte : result) {
    state = state * 6364136223846793005 + 1442695040888963407;
    byte = static_cast<std::byte>(state >> 56);
  }
  return result;
}

}  // namespace taco::harp
