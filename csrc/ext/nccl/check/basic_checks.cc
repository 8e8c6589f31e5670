// Checks of a good day: properties, messages, sums.
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "ext/nccl/check/checks.h"
#include "ext/nccl/check/traffic.h"

namespace harp::nccl::check {
namespace {

using taco::Code;

constexpr std::size_t kMaxThatNcclTakes = std::size_t{1} << 40;

std::string between(const char* what, long long value, long long least, long long most) {
  if (value >= least && value <= most) return "";
  return std::string(what) + " is " + std::to_string(value) + ", not " + std::to_string(least) +
         " to " + std::to_string(most) + "; ";
}

Status check_properties(const Properties& seen) {
  const auto most = static_cast<long long>(kMaxThatNcclTakes);
  std::string wrong;
  if (seen.name.empty()) wrong += "name is empty; ";
  wrong += between("ptrSupport", seen.pointers, 1, 7);
  wrong += between("speed", seen.mbits, 1, 10'000'000);
  wrong += between("maxComms", seen.max_comms, 1, 1 << 30);
  wrong += between("maxRecvs", seen.max_receives, 1, 8);
  wrong += between("netDeviceType", seen.device_type, 0, 1);
  wrong += between("vProps.ndevs", seen.virtual_devices, 1, seen.max_virtual_devices);
  wrong += between("maxP2pBytes", static_cast<long long>(seen.max_bytes), 1, most);
  wrong += between("maxCollBytes", static_cast<long long>(seen.max_collective_bytes), 1, most);
  if (!(seen.latency >= 0 && seen.latency < 1e6F)) wrong += "latency is no time; ";
  if (seen.max_multi_requests) {
    wrong += between("maxMultiRequestSize", *seen.max_multi_requests, 1, 1 << 20);
  }
  return wrong.empty() ? Status() : Status(Code::kMismatch, "getProperties: " + wrong);
}

}  // namespace

Status check_table(Stage& stage) {
  auto session = open_session(stage, With::kNoRing);
  if (!session.ok()) return session.status();
  Network& network = *session->network;
  const auto devices = network.devices();
  if (!devices.ok()) return devices.status();
  if (devices.value() < 1) return {Code::kMismatch, "there is no device"};
  for (int device = 0; device < devices.value(); ++device) {
    const auto seen = network.properties(device);
    if (!seen.ok()) return seen.status();
    TACO_RETURN_IF_ERROR(check_properties(seen.value()));
  }
  return network.finalize(session->context);
}

// Room is for more than is sent, as NCCL's receives have it.
Status check_exchange(Stage& stage) {
  auto session = open_session(stage, With::kRing);
  if (!session.ok()) return session.status();
  Network& network = *session->network;
  const Ring& ring = session->ring;
  Traffic traffic;
  traffic.room = (4u << 20) + 4096;
  traffic.sizes = {8, 0, 1, 7, 128, 4096, 4097, 65'536, 1u << 20, 0, (4u << 20) + 1, 16, 4u << 20};
  for (std::size_t i = 0; i < 200; ++i) traffic.sizes.push_back(i * i * 3 % 70'000);
  TACO_RETURN_IF_ERROR(move_around(network, ring, stage.fellows, traffic));
  return end(session.value(), stage.fellows);
}

namespace {

// One step of the ring: `sent` goes on to the next, and what the one before sends comes in.
Status step(Network& network, const Ring& ring, taco::Time deadline, const void* sent,
            void* received, std::size_t bytes, void* out, void* in) {
  const auto receive = receive_soon(network, ring.receive, received, bytes, in, deadline);
  if (!receive.ok()) return receive.status();
  const auto send = send_soon(network, ring.send, sent, bytes, out, deadline);
  if (!send.ok()) return send.status();
  const auto got = finish(network, receive.value(), deadline);
  if (!got.ok()) return got.status();
  return finish(network, send.value(), deadline).status();
}

// A ring all-reduce: each process has one part of the sums in the end, and then all have all.
Status add_up(Network& network, const Ring& ring, const Fellows& fellows,
              std::vector<std::uint32_t>& numbers) {
  const auto count = static_cast<std::size_t>(fellows.count());
  const auto rank = static_cast<std::size_t>(fellows.rank());
  const std::size_t part = numbers.size() / count, bytes = part * sizeof(std::uint32_t);
  std::vector<std::uint32_t> heard(part);
  auto out = Registered::with(network, ring.send, numbers.data(), count * bytes);
  auto in = Registered::with(network, ring.receive, heard.data(), bytes);
  if (!out.ok()) return out.status();
  if (!in.ok()) return in.status();
  for (std::size_t i = 0; i < 2 * (count - 1); ++i) {
    const std::size_t sent = (rank + 2 * count - i) % count;
    const std::size_t got = (sent + count - 1) % count;
    TACO_RETURN_IF_ERROR(step(network, ring, fellows.deadline(), &numbers[sent * part],
                              heard.data(), bytes, out->region(), in->region()));
    for (std::size_t k = 0; k < part; ++k) {
      std::uint32_t& number = numbers[got * part + k];
      number = i < count - 1 ? number + heard[k] : heard[k];
    }
  }
  TACO_RETURN_IF_ERROR(out->end());
  return in->end();
}

}  // namespace

Status check_all_reduce(Stage& stage) {
  auto session = open_session(stage, With::kRing);
  if (!session.ok()) return session.status();
  Network& network = *session->network;
  const Ring& ring = session->ring;
  const auto count = static_cast<std::uint32_t>(stage.fellows.count());
  const auto rank = static_cast<std::uint32_t>(stage.fellows.rank());
  for (const std::size_t each : {1u, 1000u, 1u << 18}) {
    std::vector<std::uint32_t> numbers(each * count);
    for (std::uint32_t i = 0; i < numbers.size(); ++i) numbers[i] = i * 7 + rank * 1'000'003;
    TACO_RETURN_IF_ERROR(add_up(network, ring, stage.fellows, numbers));
    const std::uint32_t of_ranks = count * (count - 1) / 2 * 1'000'003;
    for (std::uint32_t i = 0; i < numbers.size(); ++i) {
      if (numbers[i] == i * 7 * count + of_ranks) continue;
      return {Code::kMismatch, "sum " + std::to_string(i) + " is wrong"};
    }
  }
  return end(session.value(), stage.fellows);
}

}  // namespace harp::nccl::check
