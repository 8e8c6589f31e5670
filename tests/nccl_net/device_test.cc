// Connects that NCCL gives up, by never asking for them again.
#include "ext/nccl/device.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/eventually.h"
#include "support/processes.h"

namespace {

using harp::nccl::Device;
using harp::nccl::kNobody;
using ::taco::kMillisecond;
using ::taco::kSecond;
using ::taco::testing::eventually;
using ::taco::testing::Fellowship;
using ::taco::testing::require;
using ::taco::testing::run_processes;

constexpr taco::Duration kRound = 100 * kMillisecond;

void pass(taco::Duration time) { std::this_thread::sleep_for(std::chrono::nanoseconds(time)); }

TEST(Device, ends_connects_that_nobody_asks_for_again) {
  const auto statuses = run_processes({1, 60 * kSecond, {}}, [](Fellowship&) {
    setenv("TACO_TRANSPORT", "shm", 1);
    const auto device = require(Device::open(kRound));
    std::string handle(harp::nccl::abi::kHandleBytes, '\0');
    auto* const listening = require(device->listen(kNobody, handle.data()));
    const int before = ::taco::testing::count_descriptors();
    std::vector<std::string> given_up(20, handle);
    for (std::string& each : given_up) require(device->connect(kNobody, each.data()));
    for (int round = 0; round <= Device::kRoundsUnasked + 1; ++round) {
      pass(kRound + kRound / 10);
      require(device->accept(listening));
    }
    EXPECT_TRUE(eventually([&] { return ::taco::testing::count_descriptors() <= before; }));
    const auto late = device->connect(kNobody, given_up[0].data());
    EXPECT_EQ(late.status().code(), taco::Code::kInvalidArgument);
    require(device->connect(kNobody, handle.data()));
  });
  EXPECT_EQ(statuses, std::vector<int>{0});
}

// A process that was stopped in between asks again for what was on its way.
TEST(Device, counts_no_time_in_which_NCCL_does_not_call) {
  const auto statuses = run_processes({1, 60 * kSecond, {}}, [](Fellowship&) {
    setenv("TACO_TRANSPORT", "shm", 1);
    const auto device = require(Device::open(kRound));
    std::string handle(harp::nccl::abi::kHandleBytes, '\0');
    require(device->listen(kNobody, handle.data()));
    std::vector<std::string> handles(2, handle);
    for (std::string& each : handles) require(device->connect(kNobody, each.data()));
    pass((Device::kRoundsUnasked + 2) * kRound);
    for (std::string& each : handles) {
      while (require(device->connect(kNobody, each.data())) == nullptr) pass(kMillisecond);
    }
  });
  EXPECT_EQ(statuses, std::vector<int>{0});
}

}  // namespace
