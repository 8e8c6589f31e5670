#include "pg/planning/cost_model.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/digest.h"

namespace taco::pg {

namespace {

constexpr double kSmallestChunk = 16 << 10;
constexpr double kMaxChunks = 512;  // of one message
// The bytes that a super-packet carries, for which the kernel's path between hosts is walked once:
// 44 segments of 1,440 bytes (IPv4) or 1,420 (IPv6) at 1,500 bytes MTU, 7 of 8,940 or 8,920 at
// 9,000, and little more. Chunks of 128 KiB ended in a third one with next to nothing in it:
// all_to_all of 40 MiB between 4 hosts on one machine took 1.15 times as long.
constexpr double kSuperPacket = 62'400;
// The chunk of a message whose length some ranks do not know.
constexpr double kBlindNetworkChunk = 2 * kSuperPacket;

double wire_bytes_per_second(const Workload& work, const Topology& topology,
                             const CostParameters& parameters) {
  double gbits = topology.min_gbits() > 0 ? topology.min_gbits() : parameters.default_gbits;
  if (parameters.wire_gbits > 0) gbits = parameters.wire_gbits;
  return gbits * 1e9 / 8 * parameters.wire_efficiency *
         (work.incast    ? parameters.incast_efficiency
          : work.in_turn ? parameters.in_turn_efficiency
                         : 1);
}

// Rounds `chunk` down to whole super-packets, or else pages, but to no fewer than make `least`.
std::uint64_t whole(double chunk, double least, bool network) {
  const double unit = network && std::max(chunk, least) >= kSuperPacket ? kSuperPacket : 4096;
  const double units = std::max(std::floor(chunk / unit), std::ceil(least / unit));
  return static_cast<std::uint64_t>(units * unit);
}

// How many ranks of a full host share one processor.
double crowding(const Topology& topology, const CostParameters& parameters) {
  if (parameters.processors_per_host <= 0) return 1;
  return std::max(1.0, topology.max_ranks_per_host() / parameters.processors_per_host);
}

}  // namespace

std::uint64_t CostParameters::hash() const {
  std::uint64_t hash = kEmptyDigest;
  const auto mix = [&hash](double value) {
    hash = folded(hash, std::bit_cast<std::uint64_t>(value));
  };
  for (const LinkCost& link : {shared, network}) {
    for (const double value : {link.latency, link.message_cpu, link.bytes_per_second}) mix(value);
  }
  for (const double value :
       {copy_bytes_per_second, reduce_bytes_per_second, wire_efficiency, incast_efficiency,
        in_turn_efficiency, default_gbits, wire_gbits, processors_per_host}) {
    mix(value);
  }
  return folded(hash, max_chunk_bytes);
}

std::uint64_t chunk_for(const Workload& work, const Topology& topology,
                        const CostParameters& parameters) {
  const bool network = work.network_messages > 0;
  const auto most = static_cast<double>(parameters.max_chunk_bytes);
  if (work.length_unknown)
    return whole(network ? std::min(kBlindNetworkChunk, most) : most, 0, network);
  const LinkCost& link = network ? parameters.network : parameters.shared;
  const double slowest =
      network ? std::min(link.bytes_per_second, wire_bytes_per_second(work, topology, parameters))
              : link.bytes_per_second;
  // Cutting a stream of bytes B into chunks c costs B / c messages, and waiting c / slowest on the
  // first hop and wherever else a chunk is passed on.
  const double hops = 1 + work.shared_relays + work.network_relays;
  const double stream = std::max(work.message_bytes, network ? work.wire_bytes : work.shared_bytes);
  double chunk = std::sqrt(stream * 2 * link.message_cpu * slowest / hops);
  chunk = std::clamp(chunk, std::min(kSmallestChunk, most), most);
  return whole(chunk, work.message_bytes / kMaxChunks, network);
}

Cost cost_of(const Workload& work, const Topology& topology, const CostParameters& parameters) {
  const auto chunk = static_cast<double>(chunk_for(work, topology, parameters));
  const LinkCost &shared = parameters.shared, &network = parameters.network;
  const double cuts = std::max(1.0, work.message_bytes / chunk);
  const double processor =
      work.shared_messages * cuts * shared.message_cpu +
      work.network_messages * cuts * network.message_cpu +
      work.coded_messages * network.message_cpu + work.shared_bytes / shared.bytes_per_second +
      work.network_bytes / network.bytes_per_second +
      work.copied_bytes / parameters.copy_bytes_per_second +
      work.reduced_bytes / parameters.reduce_bytes_per_second + work.coding_seconds;
  const double busy = processor * crowding(topology, parameters);
  const double rate = wire_bytes_per_second(work, topology, parameters);
  const double wire = work.wire_bytes / rate;
  const double latency = work.shared_hops * shared.latency + work.network_hops * network.latency;
  // The cost of one chunk on its way through ranks that pass it on.
  const double piece = std::min(work.message_bytes, chunk);
  const double relays =
      work.shared_relays * 2 * (shared.message_cpu + piece / shared.bytes_per_second) +
      work.network_relays *
          (2 * (network.message_cpu + piece / network.bytes_per_second) + piece / rate);
  // Processors and wire work at the same time, but for the message that fills the pipeline.
  const double overlap = work.turns > 0 ? work.turns : cuts * work.parallel;
  const double longer = std::max(busy, wire), shorter = std::min(busy, wire);
  // Several chains wait for each other's bytes only where those are what takes longest.
  if (work.chains == 0) return {latency + relays + longer + shorter / overlap, busy, wire};
  const double chains = work.chains * overlap;
  const double one_chain = latency + wire / chains + busy / overlap;
  return {relays + std::max(one_chain, longer + (shorter + latency) / chains), busy, wire};
}

double predict(const Workload& work, const Topology& topology, const CostParameters& parameters) {
  return cost_of(work, topology, parameters).seconds;
}

}  // namespace taco::pg
