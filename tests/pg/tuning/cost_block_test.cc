// How a measurement may change the table of costs, and what travels.
#include "pg/tuning/cost_block.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace taco::pg {
namespace {

Measurement plausible() {
  Measurement measurement;
  measurement.shared = {5e-6, 0.4e-6, 12e9, 1.0};
  measurement.network = {90e-6, 2e-6, 1.1e9, 0.3};
  measurement.copy_bytes_per_second = 7e9;
  measurement.reduce_bytes_per_second = 6e9;
  return measurement;
}

bool near(double value, double expected) {
  return value > expected / 1.2 && value < expected * 1.2;
}

TEST(CostBlock, HoldsWhatWasMeasuredToAFifth) {
  const CostParameters block = measured_block(plausible(), 10);
  EXPECT_TRUE(near(block.shared.message_cpu, 0.4e-6));
  EXPECT_TRUE(near(block.shared.latency, 2.5e-6 - 2 * block.shared.message_cpu));
  EXPECT_TRUE(near(block.shared.bytes_per_second, 12e9));
  EXPECT_TRUE(near(block.network.latency, 41e-6));
  EXPECT_TRUE(near(block.copy_bytes_per_second, 7e9));
  EXPECT_TRUE(near(block.reduce_bytes_per_second, 6e9));
  EXPECT_NE(block.hash(), CostParameters().hash());
}

TEST(CostBlock, IsTheSameForMeasurementsThatHardlyDiffer) {
  Measurement other = plausible();
  other.shared.bytes_per_second *= 1.01;
  other.copy_bytes_per_second *= 0.99;
  EXPECT_EQ(measured_block(plausible(), 10).hash(), measured_block(other, 10).hash());
}

TEST(CostBlock, KeepsTheTableWhereAMeasurementIsMad) {
  const CostParameters table;
  const double mad[] = {0,     -1,           1e-300,
                        1e300, std::nan(""), std::numeric_limits<double>::infinity()};
  for (const double value : mad) {
    SCOPED_TRACE(value);
    Measurement measurement;
    measurement.shared = {1, value, value, value};
    measurement.network = {1, value, value, value};
    measurement.copy_bytes_per_second = measurement.reduce_bytes_per_second = value;
    const CostParameters block = measured_block(measurement, 10);
    EXPECT_EQ(block.shared.message_cpu, table.shared.message_cpu);
    EXPECT_EQ(block.shared.bytes_per_second, table.shared.bytes_per_second);
    EXPECT_EQ(block.network.message_cpu, table.network.message_cpu);
    EXPECT_EQ(block.network.bytes_per_second, table.network.bytes_per_second);
    EXPECT_EQ(block.copy_bytes_per_second, table.copy_bytes_per_second);
    EXPECT_EQ(block.reduce_bytes_per_second, table.reduce_bytes_per_second);
    EXPECT_EQ(block.wire_gbits, 0);
    EXPECT_TRUE(decode_costs(encode(block)).ok());
  }
}

TEST(CostBlock, WithNothingMeasuredIsTheTable) {
  EXPECT_EQ(measured_block({}, 0).hash(), CostParameters().hash());
}

TEST(CostBlock, TellsASlowWireFromASlowProcessor) {
  Measurement measurement = plausible();
  measurement.network.bytes_per_second = 0.12e9;
  measurement.network.busy = 0.1;
  EXPECT_TRUE(near(measured_block(measurement, 10).wire_gbits, 1.0)) << "10 claimed, 1 carried";
  EXPECT_EQ(measured_block(measurement, 1).wire_gbits, 0) << "as the interface says";
  EXPECT_TRUE(near(measured_block(measurement, 0).wire_gbits, 1.0)) << "nothing claimed";
  measurement.network.busy = 1.0;
  const CostParameters busy = measured_block(measurement, 10);
  EXPECT_EQ(busy.wire_gbits, 0);
  EXPECT_TRUE(near(busy.network.bytes_per_second, 0.12e9));
}

TEST(CostBlock, TravelsUnchanged) {
  const CostParameters block = measured_block(plausible(), 0);
  const std::vector<std::byte> bytes = encode(block);
  EXPECT_EQ(bytes.size(), encoded_bytes());
  Result<CostParameters> back = decode_costs(bytes);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(CostParameters(*back).hash(), block.hash());
}

TEST(CostBlock, ThatIsDamagedIsRefused) {
  std::vector<std::byte> bytes = encode(CostParameters());
  for (const double mad : {0.0, -1.0, std::nan(""), 1e300}) {
    std::vector<std::byte> damaged = bytes;
    std::memcpy(damaged.data() + 2 * sizeof(double), &mad, sizeof mad);
    EXPECT_EQ(decode_costs(damaged).status().code(), Code::kMismatch) << mad;
  }
  bytes.pop_back();
  EXPECT_EQ(decode_costs(bytes).status().code(), Code::kMismatch);
}

TEST(CostBlock, BelongsToTheTreeWhoseDefaultGroupMeasuredIt) {
  CostBlock first{.parameters = measured_block(plausible(), 10), .measured = true, .owner = {7, 0}};
  CostBlock second{.parameters = measured_block(plausible(), 1), .measured = true, .owner = {8, 0}};
  first.parameters.copy_bytes_per_second *= 2;
  const int trees[3] = {};
  first.tree = &trees[0];
  second.tree = &trees[1];
  EXPECT_TRUE(first_costs().name().starts_with("table 0x"));
  for (const bool swapped : {false, true}) {
    add_costs(swapped ? second : first);
    add_costs(swapped ? first : second);
    EXPECT_EQ(costs_of_tree(&trees[0]).name(), first.name());
    EXPECT_EQ(costs_of_tree(&trees[1]).name(), second.name());
    EXPECT_EQ(first_costs().name(), (swapped ? second : first).name());
    EXPECT_EQ(costs_of_tree(&trees[2]).name(), first_costs().name()) << "nobody's";
    withdraw_costs({8, 0});
    EXPECT_EQ(costs_of_tree(&trees[1]).name(), first.name());
    withdraw_costs({7, 0});
    EXPECT_TRUE(costs_of_tree(&trees[0]).name().starts_with("table 0x"));
  }
}

TEST(CostBlock, StaysWhenAnotherRankOfTheGroupLeaves) {
  const int tree = 0;
  CostBlock block{.parameters = measured_block(plausible(), 10), .measured = true, .tree = &tree};
  for (const int rank : {0, 1}) {  // threads of one process
    block.owner = {7, rank};
    add_costs(block);
  }
  withdraw_costs({7, 1});
  EXPECT_EQ(costs_of_tree(&tree).name(), block.name());
  EXPECT_EQ(first_costs().name(), block.name());
  withdraw_costs({7, 0});
  EXPECT_TRUE(first_costs().name().starts_with("table 0x"));
}

}  // namespace
}  // namespace taco::pg
