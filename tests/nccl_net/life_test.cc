// Connections that NCCL has ended, or given up, and processes that have: what is left of them.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <array>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ext/nccl/check/connection.h"
#include "ext/nccl/check/network.h"
#include "support/eventually.h"
#include "support/processes.h"

namespace {

using harp::nccl::check::Network;
using harp::nccl::check::Registered;
using ::taco::kSecond;
using ::taco::testing::eventually;
using ::taco::testing::Fellowship;
using ::taco::testing::require;
using ::taco::testing::require_ok;
using ::taco::testing::run_processes;

struct Loaded {
  Loaded(const char* transport, int table) {
    setenv("TACO_TRANSPORT", transport, 1);
    network = require(Network::load(HARP_NCCL_PLUGIN, table));
    require_ok(network->init(&context));
  }
  std::unique_ptr<Network> network;
  void* context = nullptr;
};

std::string handle_of(Network& network, void* context, void** listening) {
  std::string handle(harp::nccl::abi::kHandleBytes, '\0');
  *listening = require(network.listen(context, 0, handle.data()));
  return handle;
}

// Rank 0 to rank 1: the comm of either.
void* connect(Network& network, void* context, Fellowship& fellowship) {
  const taco::Time deadline = taco::monotonic_now() + 30 * kSecond;
  void *listening = nullptr, *comm = nullptr;
  const bool sends = fellowship.rank() == 0;
  std::string handle =
      fellowship.all_gather(sends ? std::string() : handle_of(network, context, &listening))[1];
  while (comm == nullptr && taco::monotonic_now() < deadline) {
    comm = require(sends ? network.connect(context, 0, handle.data()) : network.accept(listening));
  }
  EXPECT_NE(comm, nullptr) << "not connected in time";
  if (!sends) require_ok(network.close_listen(listening));
  return comm;
}

int descriptors_and_threads() {
  return ::taco::testing::count_descriptors() + ::taco::testing::count_threads();
}

// Connects that NCCL asked for once, a comm and a listener that it has not closed.
TEST(Finalize, ends_what_its_communicator_has_left_open) {
  const auto statuses = run_processes({2, 60 * kSecond, {}}, [](Fellowship& fellowship) {
    const Loaded loaded("shm", 12);
    Network& network = *loaded.network;
    connect(network, loaded.context, fellowship);
    void *listening = nullptr, *context = nullptr;
    const std::string handle = handle_of(network, loaded.context, &listening);
    const int before = descriptors_and_threads();
    require_ok(network.init(&context));
    for (int i = 0; i < 50; ++i) {
      std::string copy = handle;
      require(network.connect(context, 0, copy.data()));
    }
    void* its = nullptr;
    handle_of(network, context, &its);
    connect(network, context, fellowship);
    require_ok(network.finalize(context));
    EXPECT_TRUE(eventually([&] { return descriptors_and_threads() <= before; }))
        << "left by a communicator that has ended: " << descriptors_and_threads() - before;
    EXPECT_TRUE(network.accept(listening).ok()) << "another one's goes on";
    fellowship.barrier();
    require_ok(network.close_listen(listening));
    require_ok(network.finalize(context));  // as NCCL does once more where it gives a plugin up
    require_ok(network.finalize(loaded.context));
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
}

class Transports : public ::testing::TestWithParam<const char*> {};

constexpr int kSmallMessages = 64;  // as many as go before any is received

// Found done, each.
void send_some(Network& network, void* comm) {
  const std::array<char, 8> bytes{};
  for (int i = 0; i < kSmallMessages; ++i) {
    const taco::Time deadline = taco::monotonic_now() + 10 * kSecond;
    void* const request = require(
        harp::nccl::check::send_soon(network, comm, bytes.data(), bytes.size(), nullptr, deadline));
    require(harp::nccl::check::finish(network, request, deadline));
  }
}

std::size_t receive_one(Network& network, void* comm) {
  std::array<char, 8> bytes{};
  const taco::Time deadline = taco::monotonic_now() + 20 * kSecond;
  void* const request = require(harp::nccl::check::receive_soon(network, comm, bytes.data(),
                                                                bytes.size(), nullptr, deadline));
  return require(harp::nccl::check::finish(network, request, deadline));
}

// More than one peer may keep here unreceived; of every other connection it comes late.
TEST_P(Transports, keep_nothing_for_comms_that_are_closed) {
  constexpr int kConnections = 65'536 / kSmallMessages + 50;
  const auto statuses = run_processes({2, 120 * kSecond, {}}, [&](Fellowship& fellowship) {
    const Loaded loaded(GetParam(), 12);
    Network& network = *loaded.network;
    const bool sends = fellowship.rank() == 0;
    for (int i = 0; i < kConnections; ++i) {
      void* const comm = connect(network, loaded.context, fellowship);
      if (sends && i % 2 == 0) send_some(network, comm);
      fellowship.barrier();
      if (!sends) require_ok(network.close_receive(comm));
      fellowship.barrier();
      if (sends && i % 2 == 1) send_some(network, comm);
      if (sends) require_ok(network.close_send(comm));
    }
    void* const comm = connect(network, loaded.context, fellowship);
    if (sends) send_some(network, comm);
    if (!sends) {
      for (int i = 0; i < kSmallMessages; ++i) EXPECT_EQ(receive_one(network, comm), 8u);
    }
    fellowship.barrier();
    require_ok(sends ? network.close_send(comm) : network.close_receive(comm));
    require_ok(network.finalize(loaded.context));
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
}

class Endings : public ::testing::TestWithParam<std::tuple<const char*, int, const char*, bool>> {};

// The sender ends as soon as they are done, be the receiver busy elsewhere: so nothing of them may
// be on its way yet. It closes its comm, or nothing at all.
TEST_P(Endings, of_a_process_lose_no_send_that_is_done) {
  const auto& [transport, table, engines, closes] = GetParam();
  const auto statuses = run_processes({2, 60 * kSecond, {}}, [&](Fellowship& fellowship) {
    setenv("TACO_HARP_ENGINES", engines, 1);
    const Loaded loaded(transport, table);
    Network& network = *loaded.network;
    void* const comm = connect(network, loaded.context, fellowship);
    if (fellowship.rank() == 0) {
      send_some(network, comm);
      if (closes) require_ok(network.close_send(comm));
      exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    for (int i = 0; i < kSmallMessages; ++i) EXPECT_EQ(receive_one(network, comm), 8u);
    require_ok(network.close_receive(comm));
    require_ok(network.finalize(loaded.context));
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
}

std::string name_of(const std::tuple<const char*, int, const char*, bool>& ending) {
  const auto& [transport, table, engines, closes] = ending;
  return std::string(transport) + "_v" + std::to_string(table) + "_engines_" + engines +
         (closes ? "_closed" : "_open");
}

INSTANTIATE_TEST_SUITE_P(All, Endings,
                         ::testing::Combine(::testing::Values("shm", "udp"),
                                            ::testing::Values(10, 11, 12),
                                            ::testing::Values("1", "2"), ::testing::Bool()),
                         [](const auto& instance) { return name_of(instance.param); });

INSTANTIATE_TEST_SUITE_P(All, Transports, ::testing::Values("shm", "udp"),
                         [](const auto& instance) { return std::string(instance.param); });

}  // namespace
