#include "pg/lightcc/settings.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace taco::pg::lightcc {
namespace {

Settings top_k() {
  Settings settings;
  settings.compression = Compression::kTopK;
  return settings;
}

void expect_refused(const Settings& settings, const std::string& name, const std::string& value) {
  const Status status = check(settings);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find(name + " is " + value), std::string::npos) << status.message();
}

TEST(Settings, what_is_out_of_range_is_named_with_its_value) {
  EXPECT_TRUE(check(top_k()).ok());
  for (const double ratio : {0.0, -0.1, 1.5, std::numeric_limits<double>::infinity()}) {
    Settings settings = top_k();
    settings.ratio = ratio;
    expect_refused(settings, "ratio", "");
  }
  Settings settings = top_k();
  settings.ratio = std::nan("");
  expect_refused(settings, "ratio", "nan");
  settings = top_k();
  settings.threshold = -1;
  expect_refused(settings, "threshold", "-1");
  settings = top_k();
  settings.warm_up_steps = -5;
  expect_refused(settings, "warm_up_steps", "-5");
  settings = top_k();
  settings.momentum = 1;
  expect_refused(settings, "momentum", "1");
  settings.momentum = 0.5;
  settings.compression = Compression::kFloat16;
  expect_refused(settings, "momentum", "0.5");
}

TEST(Settings, the_ends_of_each_range_are_accepted) {
  Settings settings = top_k();
  settings.ratio = 1;
  settings.threshold = 0;
  settings.momentum = 0.999;
  EXPECT_TRUE(check(settings).ok());
}

TEST(Settings, the_ratio_comes_down_over_the_warm_up_and_no_further_than_its_value) {
  Settings settings = top_k();
  settings.warm_up_steps = 8;
  settings.ratio = 0.01;
  EXPECT_DOUBLE_EQ(ratio_at(settings, 0), 0.25);
  EXPECT_DOUBLE_EQ(ratio_at(settings, 1), 0.25);
  EXPECT_DOUBLE_EQ(ratio_at(settings, 2), 0.0625);
  EXPECT_DOUBLE_EQ(ratio_at(settings, 5), 0.015625);
  EXPECT_DOUBLE_EQ(ratio_at(settings, 6), 0.01);
  EXPECT_DOUBLE_EQ(ratio_at(settings, 8), 0.01);
  settings.ratio = 0.5;
  EXPECT_DOUBLE_EQ(ratio_at(settings, 0), 0.5);
}

TEST(Settings, a_short_warm_up_has_fewer_stages) {
  Settings settings = top_k();
  settings.warm_up_steps = 1;
  EXPECT_DOUBLE_EQ(ratio_at(settings, 0), 0.25);
  EXPECT_DOUBLE_EQ(ratio_at(settings, 1), 0.01);
}

TEST(Settings, small_gradients_are_coded_otherwise) {
  Settings settings = top_k();
  settings.threshold = 1000;
  EXPECT_EQ(*codec_for(settings, 999, 0), nullptr);
  EXPECT_TRUE((*codec_for(settings, 1000, 0))->has_memory());
  settings.small = Compression::kBFloat16;
  ASSERT_NE(*codec_for(settings, 999, 0), nullptr);
  EXPECT_FALSE((*codec_for(settings, 999, 0))->has_memory());
}

TEST(Settings, sixteen_bits_are_for_gradients_of_every_size) {
  Settings settings;
  settings.compression = Compression::kFloat16;
  EXPECT_NE(*codec_for(settings, 4, 0), nullptr);
  settings.compression = Compression::kNone;
  EXPECT_EQ(*codec_for(settings, 1 << 30, 0), nullptr);
}

TEST(Settings, equal_settings_share_a_codec_so_that_schedules_are_shared) {
  const auto one = *codec_for(top_k(), 1 << 20, 0);
  EXPECT_EQ(one, *codec_for(top_k(), 1 << 21, 5));
}

TEST(Settings, names_lead_there_and_back) {
  for (const auto one :
       {Compression::kNone, Compression::kTopK, Compression::kFloat16, Compression::kBFloat16}) {
    EXPECT_EQ(*compression_named(name_of(one)), one);
  }
  EXPECT_NE(compression_named("top_k").status().message().find("\"top_k\""), std::string::npos);
}

TEST(Settings, are_described_for_the_log) {
  EXPECT_EQ(describe(top_k()), "TopK 1% from 1048576 bytes, float32 below");
}

}  // namespace
}  // namespace taco::pg::lightcc
