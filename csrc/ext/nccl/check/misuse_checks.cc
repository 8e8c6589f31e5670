// Checks of what happens around the messages: no room, too long a message, memory that is taken
// back, two threads at a time.
#include <algorithm>
#include <array>
#include <string>
#include <thread>
#include <vector>

#include "ext/nccl/check/checks.h"
#include "ext/nccl/check/traffic.h"

namespace harp::nccl::check {
using taco::Code;

// Requests until there are no more: at least as many as NCCL has under way. Then all are done, and
// there are some again.
Status check_no_room(Stage& stage) {
  auto session = open_session(stage, With::kRing);
  if (!session.ok()) return session.status();
  Network& network = *session->network;
  const Ring& ring = session->ring;
  constexpr std::size_t kAtMost = 4096;
  Buffer buffer(64 * kAtMost);
  auto region = Registered::with(network, ring.receive, buffer.data(), buffer.size());
  if (!region.ok()) return region.status();
  std::vector<void*> receives;
  while (receives.size() < kAtMost) {
    const auto request =
        network.receive(ring.receive, buffer.data() + 64 * receives.size(), 64, region->region());
    if (!request.ok()) return request.status();
    if (request.value() == nullptr) break;
    receives.push_back(request.value());
  }
  if (receives.size() < 8) return {Code::kResource, "fewer than 8 requests under way"};
  // The neighbours may have room for another number.
  const auto room = stage.fellows.all_gather(std::to_string(receives.size()));
  if (!room.ok()) return room.status();
  const std::size_t sends =
      std::stoul(room.value()[static_cast<std::size_t>(stage.fellows.next())]);
  Buffer out(64 * sends);
  auto out_region = Registered::with(network, ring.send, out.data(), out.size());
  if (!out_region.ok()) return out_region.status();
  for (std::size_t i = 0; i < sends; ++i) {
    out.fill(64 * i, 64, static_cast<unsigned>(i));
    const auto request = send_soon(network, ring.send, out.data() + 64 * i, 64,
                                   out_region->region(), stage.fellows.deadline());
    if (!request.ok()) return request.status();
    const auto sent = finish(network, request.value(), stage.fellows.deadline());
    if (!sent.ok()) return sent.status();
  }
  for (std::size_t i = 0; i < receives.size(); ++i) {
    const auto got = finish(network, receives[i], stage.fellows.deadline());
    if (!got.ok()) return got.status();
    TACO_RETURN_IF_ERROR(buffer.expect(64 * i, 64, static_cast<unsigned>(i)));
  }
  TACO_RETURN_IF_ERROR(region->end());
  TACO_RETURN_IF_ERROR(out_region->end());
  Traffic more;
  more.sizes.assign(50, 1000);
  more.room = 1000;
  TACO_RETURN_IF_ERROR(move_around(network, ring, stage.fellows, more));
  return end(session.value(), stage.fellows);
}

// An error at the receiver, and no byte behind its memory.
Status check_too_long(Stage& stage) {
  auto session = open_session(stage, With::kRing);
  if (!session.ok()) return session.status();
  Network& network = *session->network;
  const Ring& ring = session->ring;
  constexpr std::size_t kRoom = 1000, kSent = 60'000;
  constexpr unsigned kUntouched = 5;
  Buffer in(kSent), out(kSent);
  in.fill(0, kSent, kUntouched);
  auto in_region = Registered::with(network, ring.receive, in.data(), kRoom);
  auto out_region = Registered::with(network, ring.send, out.data(), kSent);
  if (!in_region.ok()) return in_region.status();
  if (!out_region.ok()) return out_region.status();
  const auto receive = receive_soon(network, ring.receive, in.data(), kRoom, in_region->region(),
                                    stage.fellows.deadline());
  if (!receive.ok()) return receive.status();
  const auto send = send_soon(network, ring.send, out.data(), kSent, out_region->region(),
                              stage.fellows.deadline());
  if (!send.ok()) return send.status();
  Status received;
  for (bool done = false; !done;) {
    const auto got = network.test(receive.value());
    received = got.status();
    done = !got.ok() || got.value();
    (void)network.test(send.value()).ok();  // which may fail, too
    if (taco::monotonic_now() > stage.fellows.deadline()) {
      return {Code::kTimeout, "a receive that is too short for its message never ends"};
    }
  }
  if (received.ok()) return {Code::kMismatch, "a message was cut short without an error"};
  Buffer expected(kSent);
  expected.fill(0, kSent, kUntouched);
  if (!std::equal(in.data() + kRoom, in.data() + kSent, expected.data() + kRoom)) {
    return {Code::kMismatch, "bytes were written behind the receive's memory"};
  }
  TACO_RETURN_IF_ERROR(in_region->end());
  TACO_RETURN_IF_ERROR(out_region->end());
  return end(session.value(), stage.fellows);
}

// As NCCL takes down what it gives up: memory first, then the comm, with requests still open.
Status check_tear_down(Stage& stage) {
  auto session = open_session(stage, With::kRing);
  if (!session.ok()) return session.status();
  Network& network = *session->network;
  const Ring& ring = session->ring;
  constexpr std::size_t kBytes = 1 << 20;
  constexpr unsigned kAnothers = 3;
  Buffer in(kBytes), out(kBytes);
  auto region = Registered::with(network, ring.receive, in.data(), kBytes);
  if (!region.ok()) return region.status();
  const auto receive = receive_soon(network, ring.receive, in.data(), kBytes, region->region(),
                                    stage.fellows.deadline());
  if (!receive.ok()) return receive.status();
  if (!network.test(receive.value()).ok()) return {Code::kInternal, "a receive failed"};
  TACO_RETURN_IF_ERROR(region->end());
  in.fill(0, kBytes, kAnothers);  // it is somebody else's now
  TACO_RETURN_IF_ERROR(stage.fellows.barrier());
  auto out_region = Registered::with(network, ring.send, out.data(), kBytes);
  if (!out_region.ok()) return out_region.status();
  const auto send = send_soon(network, ring.send, out.data(), kBytes, out_region->region(),
                              stage.fellows.deadline());
  if (!send.ok()) return send.status();
  // Time enough for all of it to arrive, if it did: whether or not the send ever ends.
  const taco::Time until = taco::monotonic_now() + 2 * taco::kSecond;
  while (taco::monotonic_now() < until) {
    if (!network.test(send.value()).ok()) break;
  }
  TACO_RETURN_IF_ERROR(stage.fellows.barrier());
  const Status alone = in.expect(0, kBytes, kAnothers);
  if (!alone.ok()) return {Code::kMismatch, "memory was written after deregMr"};
  TACO_RETURN_IF_ERROR(out_region->end());
  TACO_RETURN_IF_ERROR(close_ring(network, ring));
  return network.finalize(session->context);
}

// The progress thread moves messages on some comms while the service thread registers memory on
// them, and a third one has comms of its own.
Status check_threads(Stage& stage) {
  auto session = open_session(stage, With::kNoRing);
  if (!session.ok()) return session.status();
  Network& network = *session->network;
  constexpr std::size_t kThreads = 2, kChannels = 3;
  std::array<std::vector<Ring>, kThreads> rings;
  for (auto& of_thread : rings) {
    for (std::size_t i = 0; i < kChannels; ++i) {
      const auto ring = open_ring(network, session->context, stage.fellows);
      if (!ring.ok()) return ring.status();
      of_thread.push_back(ring.value());
    }
  }
  std::array<Status, kThreads> outcomes;
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (unsigned round = 0; round < 40 && outcomes[t].ok(); ++round) {
        Traffic traffic;
        for (std::size_t i = 0; i < 12; ++i) traffic.sizes.push_back((i * 7777 + round) % 40'000);
        traffic.room = 40'000;
        traffic.seed = static_cast<unsigned>(t) * 1000 + round;
        outcomes[t] = move_around(network, rings[t][round % kChannels], stage.fellows, traffic);
      }
    });
  }
  Status registered;
  for (std::size_t i = 0; i < 2000 && registered.ok(); ++i) {
    Buffer buffer(4096);
    void* const comm = rings[i % kThreads][i % kChannels].send;
    const auto region = network.register_memory(comm, buffer.data(), buffer.size());
    registered = region.ok() ? network.deregister(comm, region.value()) : region.status();
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& outcome : outcomes) TACO_RETURN_IF_ERROR(outcome);
  TACO_RETURN_IF_ERROR(registered);
  TACO_RETURN_IF_ERROR(stage.fellows.barrier());
  for (const auto& of_thread : rings) {
    for (const Ring& ring : of_thread) TACO_RETURN_IF_ERROR(close_ring(network, ring));
  }
  return network.finalize(session->context);
}

}  // namespace harp::nccl::check
