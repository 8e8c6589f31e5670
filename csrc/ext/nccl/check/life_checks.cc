// How connections begin and end, and what is left of them.
#include <errno.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/parse_number.h"
#include "ext/nccl/check/checks.h"
#include "ext/nccl/check/traffic.h"

namespace harp::nccl::check {
namespace {

using taco::Code;

// After a process has died, its peers know by then. HARP takes a second at most; the rest is for
// hosts with more to do than cores.
constexpr taco::Duration kSoon = 4 * taco::kSecond;

constexpr int kSilence = 3;        // s
constexpr double kMaxIdle = 0.05;  // of a core

double processor_seconds() {
  timespec used;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

std::ptrdiff_t entries_in(const char* folder) {
  std::error_code error;
  const std::filesystem::directory_iterator first(folder, error);
  return std::distance(begin(first), end(first));
}
std::ptrdiff_t descriptors() { return entries_in("/proc/self/fd"); }
std::ptrdiff_t threads() { return entries_in("/proc/self/task"); }

// The pid of the next of the fellows.
Result<pid_t> pid_of_next(Fellows& fellows) {
  const auto pids = fellows.all_gather(std::to_string(getpid()));
  if (!pids.ok()) return pids.status();
  return taco::parse_number<pid_t>(pids.value()[static_cast<std::size_t>(fellows.next())])
      .value_or(-1);
}

bool lives(pid_t pid) { return kill(pid, 0) == 0 || errno != ESRCH; }

// A process that was killed stays, as a zombie, until its parent has looked.
Status await_end(pid_t other, taco::Time deadline, const Status& failed) {
  while (lives(other)) {
    if (taco::monotonic_now() > deadline) {
      return failed.with_prefix("an error although the other process lives: ");
    }
    std::this_thread::yield();
  }
  return {};
}

// The survivor goes on as a proxy does, until the first error.
Status await_failure(const std::function<Status()>& go_on, pid_t other, taco::Time deadline) {
  taco::Time died = 0;
  for (;;) {
    const taco::Time now = taco::monotonic_now();
    if (const Status went = go_on(); !went.ok()) return await_end(other, now + kSoon, went);
    if (died == 0 && !lives(other)) died = now;
    if (died != 0 && now > died + kSoon) {
      return {Code::kTimeout, "no error although the other process was killed " +
                                  std::to_string(kSoon / taco::kSecond) + " s ago"};
    }
    if (now > deadline) return {Code::kTimeout, "the other process did not die in time"};
    std::this_thread::yield();
  }
}

}  // namespace

// With requests under way in both directions.
Status check_killed(Stage& stage) {
  auto session = open_session(stage, With::kRing);
  if (!session.ok()) return session.status();
  Network& network = *session->network;
  const Ring& ring = session->ring;
  const auto other = pid_of_next(stage.fellows);
  if (!other.ok()) return other.status();
  Traffic traffic;
  traffic.sizes.assign(20, 300'000);
  traffic.room = 300'000;
  TACO_RETURN_IF_ERROR(move_around(network, ring, stage.fellows, traffic));
  // A rank that died before the others' sends were acknowledged would make that exchange fail.
  TACO_RETURN_IF_ERROR(stage.fellows.barrier());
  if (stage.fellows.rank() == 1) {
    Buffer half(1 << 20);
    auto region = Registered::with(network, ring.send, half.data(), half.size());
    if (!region.ok()) return region.status();
    const auto sent = network.send(ring.send, half.data(), half.size(), region->region());
    if (!sent.ok()) return sent.status();
    (void)network.test(sent.value()).ok();
    return {Code::kInternal, "not killed: " + std::to_string(raise(SIGKILL))};
  }
  traffic.sizes.assign(1'000'000, 300'000);
  {  // its memory is taken back before its comms are closed, as NCCL does
    Movement movement(network, ring, stage.fellows, traffic);
    TACO_RETURN_IF_ERROR(movement.open());
    const auto go_on = [&] { return movement.step().status(); };
    TACO_RETURN_IF_ERROR(await_failure(go_on, other.value(), stage.fellows.deadline()));
  }
  return close_ring(network, ring);
}

// With a receive alone, which asks the dead for nothing, on a connection that carried nothing yet.
Status check_killed_waiting(Stage& stage) {
  auto session = open_session(stage, With::kRing);
  if (!session.ok()) return session.status();
  Network& network = *session->network;
  const Ring& ring = session->ring;
  const auto other = pid_of_next(stage.fellows);
  if (!other.ok()) return other.status();
  if (stage.fellows.rank() == 1) {
    return {Code::kInternal, "not killed: " + std::to_string(raise(SIGKILL))};
  }
  Buffer buffer(4096);
  auto region = Registered::with(network, ring.receive, buffer.data(), buffer.size());
  if (!region.ok()) return region.status();
  const auto request =
      network.receive(ring.receive, buffer.data(), buffer.size(), region->region());
  if (!request.ok()) return {};  // it may be known by now
  const auto go_on = [&] { return network.test(request.value()).status(); };
  TACO_RETURN_IF_ERROR(await_failure(go_on, other.value(), stage.fellows.deadline()));
  TACO_RETURN_IF_ERROR(region->end());
  return close_ring(network, ring);
}

// Nobody calls for some seconds, as between two steps of a training; then all is as before.
Status check_silence(Stage& stage) {
  auto session = open_session(stage, With::kRing);
  if (!session.ok()) return session.status();
  Network& network = *session->network;
  const Ring& ring = session->ring;
  Traffic traffic;
  traffic.sizes.assign(10, 50'000);
  traffic.room = 50'000;
  TACO_RETURN_IF_ERROR(move_around(network, ring, stage.fellows, traffic));
  const double before = processor_seconds();
  std::this_thread::sleep_for(std::chrono::seconds(kSilence));
  const double used = processor_seconds() - before;
  if (used > kSilence * kMaxIdle) {
    return {Code::kResource, "open connections and no call took " + std::to_string(used) +
                                 " s of processor time in " + std::to_string(kSilence) + " s"};
  }
  TACO_RETURN_IF_ERROR(move_around(network, ring, stage.fellows, traffic));
  return end(session.value(), stage.fellows);
}

// Process 0 goes as soon as its sends are done: they have arrived.
Status check_farewell(Stage& stage) {
  auto session = open_session(stage, With::kRing);
  if (!session.ok()) return session.status();
  Network& network = *session->network;
  const Ring& ring = session->ring;
  const auto other = pid_of_next(stage.fellows);
  if (!other.ok()) return other.status();
  constexpr std::size_t kBytes = 100'000, kMessages = 8;
  Buffer buffer(kBytes * kMessages);
  void* const comm = stage.fellows.rank() == 0 ? ring.send : ring.receive;
  auto region = Registered::with(network, comm, buffer.data(), buffer.size());
  if (!region.ok()) return region.status();
  const taco::Time deadline = stage.fellows.deadline();
  std::vector<void*> requests;
  for (std::size_t i = 0; i < kMessages; ++i) {
    std::byte* const data = buffer.data() + i * kBytes;
    if (stage.fellows.rank() == 0) buffer.fill(i * kBytes, kBytes, static_cast<unsigned>(i));
    const auto request =
        stage.fellows.rank() == 0
            ? send_soon(network, comm, data, kBytes, region->region(), deadline)
            : receive_soon(network, comm, data, kBytes, region->region(), deadline);
    if (!request.ok()) return request.status();
    requests.push_back(request.value());
  }
  if (stage.fellows.rank() == 0) {
    for (void* const request : requests) {
      const auto sent = finish(network, request, deadline);
      if (!sent.ok()) return sent.status();
    }
    TACO_RETURN_IF_ERROR(region->end());
    TACO_RETURN_IF_ERROR(close_ring(network, ring));
    TACO_RETURN_IF_ERROR(network.finalize(session->context));
    _exit(0);
  }
  while (lives(other.value()) && taco::monotonic_now() < deadline) std::this_thread::yield();
  for (std::size_t i = 0; i < kMessages; ++i) {
    const auto got = finish(network, requests[i], deadline);
    if (!got.ok()) return got.status().with_prefix("the sender had gone: ");
    TACO_RETURN_IF_ERROR(buffer.expect(i * kBytes, kBytes, static_cast<unsigned>(i)));
  }
  TACO_RETURN_IF_ERROR(region->end());
  TACO_RETURN_IF_ERROR(close_ring(network, ring));
  return network.finalize(session->context);
}

// Process 1 accepts nobody until process 0 has asked often enough, and the other way round: a call
// that waits waits for ever.
Status check_not_blocking(Stage& stage) {
  auto session = open_session(stage, With::kNoRing);
  if (!session.ok()) return session.status();
  Network& network = *session->network;
  constexpr int kOften = 100;
  std::string handle(abi::kHandleBytes, '\0');
  const auto listening = network.listen(session->context, 0, handle.data());
  if (!listening.ok()) return listening.status();
  for (int i = 0; i < kOften; ++i) {
    const auto nobody = network.accept(listening.value());
    if (!nobody.ok()) return nobody.status();
    if (nobody.value() != nullptr) return {Code::kInternal, "accept gave a comm of nobody's"};
  }
  const auto handles = stage.fellows.all_gather(handle);
  if (!handles.ok()) return handles.status();
  std::string next = handles.value()[static_cast<std::size_t>(stage.fellows.next())];
  Ring& ring = session->ring;
  for (int i = 0; i < kOften && ring.send == nullptr; ++i) {
    const auto connected = network.connect(session->context, 0, next.data());
    if (!connected.ok()) return connected.status();
    ring.send = connected.value();
  }
  TACO_RETURN_IF_ERROR(stage.fellows.barrier());
  TACO_RETURN_IF_ERROR(connect_ring(network, session->context, listening.value(), next,
                                    stage.fellows.deadline(), ring));
  Traffic traffic;
  traffic.sizes = {8, 100'000};
  traffic.room = 100'000;
  TACO_RETURN_IF_ERROR(move_around(network, ring, stage.fellows, traffic));
  return end(session.value(), stage.fellows);
}

// Communicators that come and go leave no descriptor and no thread; after the last one the library
// can be taken out.
Status check_set_ups(Stage& stage) {
  auto loaded = Network::load(stage.plugin, stage.table);
  if (!loaded.ok()) return loaded.status();
  Network& network = **loaded;
  void* first = nullptr;
  TACO_RETURN_IF_ERROR(network.init(&first));
  constexpr int kSetUps = 200, kWarm = 20;
  std::ptrdiff_t before = 0;
  Traffic traffic;
  traffic.sizes = {1000};
  traffic.room = 1000;
  for (int i = 0; i < kSetUps; ++i) {
    void* context = nullptr;
    TACO_RETURN_IF_ERROR(network.init(&context));
    const auto ring = open_ring(network, context, stage.fellows);
    if (!ring.ok()) return ring.status();
    TACO_RETURN_IF_ERROR(move_around(network, ring.value(), stage.fellows, traffic));
    TACO_RETURN_IF_ERROR(close_ring(network, ring.value()));
    TACO_RETURN_IF_ERROR(network.finalize(context));
    if (i == kWarm) before = descriptors() + threads();
  }
  const std::ptrdiff_t left = descriptors() + threads() - before;
  if (left > 4) {
    return {Code::kResource, std::to_string(kSetUps - kWarm) + " set-ups left " +
                                 std::to_string(left) + " descriptors and threads behind"};
  }
  TACO_RETURN_IF_ERROR(stage.fellows.barrier());
  TACO_RETURN_IF_ERROR(network.finalize(first));
  const bool has_an_end = network.version() >= 11;
  const auto gone = network.unload();
  if (!gone.ok()) return gone.status();
  if (threads() == 1 || (!has_an_end && !gone.value())) return {};
  return {Code::kResource, std::to_string(threads() - 1) + " threads live on after the last " +
                               (has_an_end ? "finalize" : "dlclose")};
}

}  // namespace harp::nccl::check
