#include "base/env.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "base/log.h"

namespace taco {
namespace {

Result<Env> parse(const std::vector<std::string>& environment) {
  return Env::parse(environment, nullptr);
}

TEST(Env, AnEmptyEnvironmentGivesTheDefaults) {
  const Result<Env> env = parse({});
  ASSERT_TRUE(env.ok());
  EXPECT_EQ(env.value().transport, "auto");
  EXPECT_EQ(env.value().peer_timeout, 10 * kSecond);
  EXPECT_EQ(env.value().spin_us, -1);
  EXPECT_TRUE(env.value().cma);
}

TEST(Env, EveryVariableReachesItsField) {
  const Result<Env> result = parse(
      {"TACO_LOG=debug", "TACO_TRANSPORT=udp", "TACO_ALGORITHM=all_reduce=ring,barrier=direct",
       "TACO_ISA=portable", "TACO_IFNAME=eth0,eth1", "TACO_HOST_ID=rack 3",
       "TACO_PEER_TIMEOUT_MS=2500", "TACO_CHUNK_BYTES=65536", "TACO_SPIN_US=7",
       "TACO_SOCKET_BUFFER=1000000", "TACO_PORT=4000", "TACO_MTU=9000", "TACO_PATHS=4",
       "TACO_CONGESTION=reno", "TACO_TUNE=yes", "TACO_CMA=off", "TACO_HARP_XDP_QUEUES=3/4"});
  ASSERT_TRUE(result.ok()) << result.status().message();
  const Env& env = result.value();
  EXPECT_EQ(env.log, "debug");
  EXPECT_EQ(env.transport, "udp");
  EXPECT_EQ(env.algorithm, "all_reduce=ring,barrier=direct");
  EXPECT_EQ(env.isa, "portable");
  EXPECT_EQ(env.ifname, "eth0,eth1");
  EXPECT_EQ(env.host_id, "rack 3");
  EXPECT_EQ(env.peer_timeout, 2500 * kMillisecond);
  EXPECT_EQ(env.chunk_bytes, 65536);
  EXPECT_EQ(env.spin_us, 7);
  EXPECT_EQ(env.socket_buffer, 1'000'000);
  EXPECT_EQ(env.port, 4000);
  EXPECT_EQ(env.mtu, 9000);
  EXPECT_EQ(env.paths, 4);
  EXPECT_EQ(env.congestion, "reno");
  EXPECT_EQ(env.harp_xdp_queues, "3/4");
  EXPECT_TRUE(env.tune);
  EXPECT_FALSE(env.cma);
}

TEST(Env, EveryVariableOfLightCcReachesItsField) {
  const Result<Env> result =
      parse({"LIGHT_2D_ALLREDUCE=1", "LIGHT_INTRA_SIZE=4",
             "LIGHT_HIERARCHICAL_THRESHOLD=1073741824", "LIGHT_TOPK_ALLREDUCE=1",
             "LIGHT_TOPK_RATIO=0.001", "LIGHT_TOPK_THRESHOLD=0", "LIGHT_TOPK_FP16=on",
             "LIGHT_WIRE_DTYPE=bfloat16", "LIGHT_AUTO=yes", "LIGHT_FUSION_BYTES=65536"});
  ASSERT_TRUE(result.ok()) << result.status().message();
  const Env& env = result.value();
  EXPECT_EQ(env.light_2d_all_reduce, "1");
  EXPECT_EQ(env.light_intra_size, 4);
  EXPECT_EQ(env.light_hierarchical_threshold, 1 << 30);
  EXPECT_TRUE(env.light_topk);
  EXPECT_EQ(env.light_topk_ratio, 0.001);
  EXPECT_EQ(env.light_topk_threshold, 0);
  EXPECT_TRUE(env.light_topk_fp16);
  EXPECT_EQ(env.light_wire_dtype, "bfloat16");
  EXPECT_TRUE(env.light_auto);
  EXPECT_EQ(env.light_fusion_bytes, 65536);
  EXPECT_EQ(parse({"LIGHT_FUSION_BYTES=auto"})->light_fusion_bytes, -1);
  EXPECT_EQ(parse({"LIGHT_TOPK_RATIO=1"})->light_topk_ratio, 1);
}

TEST(Env, WhatRanksMustAgreeOnIsEveryVariableOfLightCc) {
  std::size_t listed = 0;
  for (const Env::Row& row : Env::table()) listed += row.name.starts_with("LIGHT_") ? 1 : 0;
  const auto settings =
      parse({"LIGHT_TOPK_RATIO=0.0125", "LIGHT_FUSION_BYTES=7"})->light_settings();
  EXPECT_EQ(settings.size(), listed);
  std::size_t seen = 0;
  for (const Env::Setting& setting : settings) {
    if (setting.name == "LIGHT_TOPK_RATIO") seen += setting.value == "0.0125" ? 1 : 0;
    if (setting.name == "LIGHT_FUSION_BYTES") seen += setting.value == "7" ? 1 : 0;
  }
  EXPECT_EQ(seen, 2u);
}

TEST(Env, AMalformedValueIsAnErrorThatNamesItAndWhatIsAccepted) {
  const Status status = parse({"TACO_TRANSPORT=tcp"}).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "environment variable TACO_TRANSPORT is \"tcp\", but must be auto, shm or udp");
  EXPECT_EQ(parse({"LIGHT_TOPK_RATIO=1.5"}).status().message(),
            "environment variable LIGHT_TOPK_RATIO is \"1.5\", but must be a number above 0 and at "
            "most 1");
}

TEST(Env, MalformedValuesOfEveryKindAreRefused) {
  for (const char* entry : {"TACO_LOG=loud",
                            "TACO_LOG=INFO",
                            "TACO_ALGORITHM=Ring!",
                            "TACO_ISA=sse",
                            "TACO_IFNAME=eth0,",
                            "TACO_IFNAME=eth0,^eth1",
                            "TACO_IFNAME=^",
                            "TACO_IFNAME=eth 0",
                            "TACO_IFNAME=averyveryverylongname",
                            "TACO_PEER_TIMEOUT_MS=10s",
                            "TACO_PEER_TIMEOUT_MS=0",
                            "TACO_PEER_TIMEOUT_MS=99999999999999999999",
                            "TACO_CHUNK_BYTES=-1",
                            "TACO_CHUNK_BYTES=1e6",
                            "TACO_SPIN_US=-2",
                            "TACO_PORT=65536",
                            "TACO_PORT= 1",
                            "TACO_MTU=1279",
                            "TACO_PATHS=0",
                            "TACO_PATHS=9",
                            "TACO_SOCKET_BUFFER=big",
                            "TACO_HARP_XDP_QUEUES=0",
                            "TACO_HARP_XDP_QUEUES=2/2",
                            "TACO_HARP_XDP_QUEUES=0/",
                            "TACO_HARP_XDP_QUEUES=-1/2",
                            "TACO_CONGESTION=a b",
                            "TACO_HARP_SECURITY=on",
                            "TACO_HARP_SECURITY=Auth",
                            "TACO_HARP_CHECKSUM=off",
                            "TACO_HARP_CHECKSUM=CRC32C",
                            "TACO_TUNE=maybe",
                            "TACO_CMA=2",
                            "LIGHT_2D_ALLREDUCE=2",
                            "LIGHT_INTRA_SIZE=-1",
                            "LIGHT_INTRA_SIZE=two",
                            "LIGHT_HIERARCHICAL_THRESHOLD=-1",
                            "LIGHT_TOPK_ALLREDUCE=maybe",
                            "LIGHT_TOPK_RATIO=0",
                            "LIGHT_TOPK_RATIO=-0.1",
                            "LIGHT_TOPK_RATIO=1.01",
                            "LIGHT_TOPK_RATIO=1%",
                            "LIGHT_TOPK_RATIO=nan",
                            "LIGHT_TOPK_THRESHOLD=-1",
                            "LIGHT_TOPK_THRESHOLD=1MB",
                            "LIGHT_TOPK_FP16=half",
                            "LIGHT_WIRE_DTYPE=fp16",
                            "LIGHT_AUTO=auto",
                            "LIGHT_FUSION_BYTES=-1"}) {
    EXPECT_EQ(parse({entry}).status().code(), Code::kInvalidArgument) << entry;
  }
}

TEST(Env, AnEmptyValueCountsAsNotSet) {
  const Result<Env> env = parse({"TACO_PORT=", "TACO_IFNAME="});
  ASSERT_TRUE(env.ok());
  EXPECT_EQ(env.value().port, 0);
}

TEST(Env, AnUnknownNameWarnsWithTheNearestKnownOne) {
  std::vector<std::string> warnings;
  ASSERT_TRUE(Env::parse({"TACO_TRANPORT=shm", "PATH=/bin", "TACOS=3"}, &warnings).ok());
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_EQ(warnings[0],
            "environment variable TACO_TRANPORT is not known; did you mean TACO_TRANSPORT?");
  warnings.clear();
  ASSERT_TRUE(Env::parse({"LIGHT_TOPK_RATO=0.1", "LIGHTNING=1"}, &warnings).ok());
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("did you mean LIGHT_TOPK_RATIO?"), std::string::npos);
}

std::string captured;  // lines that the log sink received
void capture(LogLevel, std::string_view line) { captured += std::string(line) + "\n"; }

TEST(Env, TheProcessEnvironmentIsRefusedUntilMendedAndThenKept) {
  setenv("TACO_PORT", "x", 1);
  EXPECT_EQ(Env::get().status().code(), Code::kInvalidArgument);
  EXPECT_EQ(Env::get().status().code(), Code::kInvalidArgument);
  setenv("TACO_PORT", "4321", 1);
  setenv("TACO_LGO", "debug", 1);
  captured.clear();
  set_log_sink(capture);
  const Result<Env> mended = Env::get();
  set_log_sink(nullptr);
  ASSERT_TRUE(mended.ok());
  EXPECT_EQ(mended.value().port, 4321);
  EXPECT_NE(captured.find("TACO_LGO is not known; did you mean TACO_LOG?"), std::string::npos);
  setenv("TACO_PORT", "x", 1);
  EXPECT_TRUE(Env::get().ok()) << "parsed once";
  unsetenv("TACO_PORT");
  unsetenv("TACO_LGO");
}

TEST(Env, TheTableShowsDefaultsAndValuesInForce) {
  setenv("TACO_MTU", "9000", 1);
  setenv("TACO_TUNE", "perhaps", 1);
  std::size_t seen = 0;
  for (const Env::Row& row : Env::table()) {
    EXPECT_FALSE(row.type.empty() || row.meaning.empty()) << row.name;
    if (row.name == "TACO_MTU") {
      ++seen;
      EXPECT_EQ(row.fallback, "0");
      EXPECT_EQ(row.value, "9000");
      EXPECT_EQ(row.unit, "bytes");
      EXPECT_TRUE(row.is_set);
    } else if (row.name == "TACO_TUNE") {
      ++seen;
      EXPECT_EQ(row.value, "perhaps (malformed)");
    } else if (row.name == "TACO_PEER_TIMEOUT_MS") {
      ++seen;
      EXPECT_EQ(row.value, "10000");
      EXPECT_FALSE(row.is_set);
    }
  }
  EXPECT_EQ(seen, 3u);
  unsetenv("TACO_MTU");
  unsetenv("TACO_TUNE");
}

TEST(Env, TheTableHasTheVariablesThatPythonReads) {
  const auto row_of = [](const std::string& name) {
    for (const Env::Row& row : Env::table()) {
      if (row.name == name) return row;
    }
    return Env::Row{};
  };
  unsetenv("HOROVOD_CYCLE_TIME");
  EXPECT_EQ(row_of("HOROVOD_CYCLE_TIME").value, "1");
  EXPECT_FALSE(row_of("HOROVOD_CYCLE_TIME").is_set);
  setenv("HOROVOD_CYCLE_TIME", "2.5", 1);
  EXPECT_EQ(row_of("HOROVOD_CYCLE_TIME").value, "2.5");
  EXPECT_TRUE(row_of("HOROVOD_CYCLE_TIME").is_set);
  unsetenv("HOROVOD_CYCLE_TIME");
}

TEST(Env, EveryDefaultInTheTableIsItselfAccepted) {
  for (const Env::Row& row : Env::table()) {
    EXPECT_TRUE(parse({row.name + "=" + row.fallback}).ok()) << row.name << "=" << row.fallback;
  }
}

TEST(Env, TheDocumentationHasOneRowForEachVariable) {
  const std::string text = environment_markdown();
  for (const Env::Row& row : Env::table()) {
    EXPECT_NE(text.find("\n| `" + row.name + "` | "), std::string::npos) << row.name;
  }
}

}  // namespace
}  // namespace taco
