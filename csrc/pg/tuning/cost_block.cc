#include "pg/tuning/cost_block.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <mutex>

#include "base/per_process.h"

namespace taco::pg {
namespace {

constexpr double kStep = 0.25;  // of a power of two
// The range that a link or a processor may turn out to be in.
constexpr double kShortest = 50e-9, kLongest = 1.0;  // seconds
constexpr double kSlowest = 1e5, kFastest = 1e12;    // bytes a second
constexpr double kComputing = 0.7;                   // busier than that: the processor is the limit
constexpr double kAsClaimed = 0.8;                   // of an interface's speed, or more

bool within(double value, double low, double high) {
  return std::isfinite(value) && value >= low && value <= high;
}

double rounded(double value) { return std::exp2(std::round(std::log2(value) / kStep) * kStep); }

void take_seconds(double measured, double* parameter) {
  if (within(measured, kShortest, kLongest)) *parameter = rounded(measured);
}

void take_rate(double measured, double* parameter) {
  if (within(measured, kSlowest, kFastest)) *parameter = rounded(measured);
}

// A round trip is two hops; on each, both ends pay for a message beside the way itself.
void take_link(const LinkMeasurement& measured, LinkCost* link) {
  take_seconds(measured.message_seconds, &link->message_cpu);
  const double hop = measured.round_trip / 2;
  take_seconds(std::max(hop - 2 * link->message_cpu, hop / 4), &link->latency);
}

// A stream between hosts is held up by a processor, or by the wire; only the busier end knows.
void take_network(const LinkMeasurement& measured, double gbits, CostParameters* block) {
  take_link(measured, &block->network);
  const double stream = measured.bytes_per_second;
  if (!within(stream, kSlowest, kFastest) || !within(measured.busy, 0, kFastest)) return;
  const double stream_gbits = stream * 8 / 1e9 / block->wire_efficiency;
  if (measured.busy >= kComputing) {
    take_rate(stream, &block->network.bytes_per_second);
    if (gbits <= 0) block->wire_gbits = rounded(std::max(stream_gbits, block->default_gbits));
    return;
  }
  take_rate(stream / std::max(measured.busy, 0.05), &block->network.bytes_per_second);
  if (gbits <= 0 || stream_gbits < kAsClaimed * gbits) block->wire_gbits = rounded(stream_gbits);
}

std::vector<double*> values_of(CostParameters& block) {
  return {&block.shared.latency,
          &block.shared.message_cpu,
          &block.shared.bytes_per_second,
          &block.network.latency,
          &block.network.message_cpu,
          &block.network.bytes_per_second,
          &block.copy_bytes_per_second,
          &block.reduce_bytes_per_second,
          &block.wire_efficiency,
          &block.incast_efficiency,
          &block.in_turn_efficiency,
          &block.default_gbits,
          &block.wire_gbits,
          &block.processors_per_host};
}

struct Blocks {
  std::mutex mutex;
  std::vector<CostBlock> all;  // in the order in which their groups were made
};

constinit PerProcess<Blocks> blocks;

}  // namespace

CostParameters measured_block(const Measurement& measurement, double gbits) {
  CostParameters block;
  if (measurement.shared.round_trip > 0) {
    take_link(measurement.shared, &block.shared);
    take_rate(measurement.shared.bytes_per_second, &block.shared.bytes_per_second);
  }
  if (measurement.network.round_trip > 0) take_network(measurement.network, gbits, &block);
  take_rate(measurement.copy_bytes_per_second, &block.copy_bytes_per_second);
  take_rate(measurement.reduce_bytes_per_second, &block.reduce_bytes_per_second);
  return block;
}

std::vector<std::byte> encode(const CostParameters& parameters) {
  CostParameters block = parameters;
  std::vector<double> values;
  for (const double* value : values_of(block)) values.push_back(*value);
  std::vector<std::byte> bytes(values.size() * sizeof(double));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

std::size_t encoded_bytes() { return encode(CostParameters()).size(); }

Result<CostParameters> decode_costs(std::span<const std::byte> bytes) {
  if (bytes.size() != encoded_bytes()) {
    return Status(Code::kMismatch, "a block of costs has " + std::to_string(encoded_bytes()) +
                                       " bytes, not " + std::to_string(bytes.size()));
  }
  CostParameters block;
  int number = 0;
  for (double* value : values_of(block)) {
    std::memcpy(value, bytes.data(), sizeof *value);
    bytes = bytes.subspan(sizeof *value);
    ++number;
    const bool may_be_zero = value == &block.wire_gbits || value == &block.processors_per_host;
    if (within(*value, kShortest, kFastest) || (may_be_zero && *value == 0)) continue;
    return Status(Code::kMismatch, "value " + std::to_string(number) + " of a block of costs is " +
                                       std::to_string(*value));
  }
  return block;
}

std::string CostBlock::name() const {
  char text[40];
  const std::uint64_t hash = parameters.hash();
  std::snprintf(text, sizeof text, "%s 0x%08x", measured ? "measured" : "table",
                static_cast<unsigned>(hash ^ (hash >> 32)));
  return text;
}

void add_costs(const CostBlock& block) {
  std::lock_guard lock(blocks().mutex);
  blocks().all.push_back(block);
}

void withdraw_costs(const CostOwner& owner) {
  std::lock_guard lock(blocks().mutex);
  std::erase_if(blocks().all, [&](const CostBlock& block) { return block.owner == owner; });
}

CostBlock costs_of_tree(const void* tree) {
  std::lock_guard lock(blocks().mutex);
  const std::vector<CostBlock>& all = blocks().all;
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const CostBlock& block) { return block.tree == tree; });
  if (found != all.end()) return *found;
  return all.empty() ? CostBlock() : all.front();
}

CostBlock first_costs() {
  std::lock_guard lock(blocks().mutex);
  return blocks().all.empty() ? CostBlock() : blocks().all.front();
}

}  // namespace taco::pg
