// Plugins that are broken in one way each: a check that does not find it proves nothing of a plugin
// that passes.
#include <gtest/gtest.h>

#include <string>

#include "ext/nccl/check/checks.h"
#include "ext/nccl/check/processes.h"

namespace harp::nccl::check {
namespace {

struct Fault {
  const char* plugin;
  const char* check;
  const char* found;  // a part of what is said about it
  taco::Duration limit = 60 * taco::kSecond;
};

class BrokenPlugins : public ::testing::TestWithParam<Fault> {};

TEST_P(BrokenPlugins, are_found_out) {
  const Check* const check = check_named(GetParam().check);
  ASSERT_NE(check, nullptr);
  const std::string plugin = std::string(BROKEN_PLUGINS) + "/" + GetParam().plugin + ".so";
  const std::string why =
      run(*check, {.program = HARP_NCCL_CHECK, .plugin = plugin, .limit = GetParam().limit});
  EXPECT_NE(why.find(GetParam().found), std::string::npos) << why;
}

INSTANTIATE_TEST_SUITE_P(
    All, BrokenPlugins,
    ::testing::Values(
        Fault{"blocks_in_connect", "not-blocking", "process 0", 3 * taco::kSecond},
        Fault{"cuts_off", "too-long", "cut short without an error"},
        Fault{"dies_of_silence", "silence", "ncclRemoteError"},
        Fault{"done_not_written", "exchange", "test did not write whether it is done"},
        Fault{"done_too_early", "exchange", "is not what was sent"},
        Fault{"hides_death", "killed", "no error although the other process was killed"},
        Fault{"keeps_the_config", "exchange", "listen gave ncclInvalidArgument"},
        Fault{"leaks_descriptors", "set-ups", "descriptors and threads behind"},
        Fault{"leaves_threads", "set-ups", "threads live on"},
        Fault{"loses_at_the_end", "farewell", "the sender had gone"},
        Fault{"mixes_threads", "threads", "process"},
        Fault{"properties_left_out", "table", "maxP2pBytes"},
        Fault{"request_not_written", "no-room", "irecv did not write the request"},
        Fault{"size_of_the_room", "exchange", "bytes instead of"},
        Fault{"spins", "silence", "of processor time"},
        Fault{"too_many_sizes", "exchange", "test wrote more sizes"},
        Fault{"writes_after_deregistration", "tear-down", "memory was written after deregMr"},
        Fault{"writes_after_done", "exchange", "process"},
        Fault{"writes_backwards", "lines", "was seen"}),
    [](const auto& instance) { return std::string(instance.param.plugin); });

}  // namespace
}  // namespace harp::nccl::check
