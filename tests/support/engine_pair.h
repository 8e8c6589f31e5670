// Two engines of each of two processes, for tests: groups of both numbers are under way at once.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "harp/engine/held_stacks.h"
#include "harp/tools/exchange.h"
#include "support/processes.h"
#include "support/stack_world.h"

namespace taco::testing {

inline harp::HeldStack hold(const harp::StackOptions& options, const std::string& group,
                            int rank = 0, int world = 2) {
  auto held = harp::hold_stack(options, {group, world, rank});
  EXPECT_TRUE(held.ok()) << held.status().message();
  return std::move(held).value();
}

// Two engines at both ends, and the peers of each.
struct EnginePair {
  EnginePair(Fellowship& fellowship, const harp::StackOptions& options)
      : EnginePair(fellowship, options, 1 - fellowship.rank()) {}
  // With that rank, one of several.
  EnginePair(Fellowship& fellowship, const harp::StackOptions& options, int other)
      : rank(fellowship.rank()), other(other) {
    for (int i = 0; i < 2; ++i) {
      const std::string group = std::to_string(i);
      stacks[i] = hold(options, group, rank).stack;
      stacks[i]->set_observer(harp::Service::kCollectives, &notes[i]);
      const auto addresses = fellowship.all_gather(stacks[i]->address());
      const auto peer = stacks[i]->add_peer(addresses[other]);
      EXPECT_TRUE(peer.ok()) << peer.status().message();
      peers[i] = peer.value();
    }
  }
  ~EnginePair() {
    for (int i = 0; i < 2; ++i) harp::drop_stack(stacks[i], {std::to_string(i), 2, rank});
  }
  // Both engines at once: the same keys, which are of a Stack alone.
  void exchange(std::uint64_t tag, std::size_t bytes) {
    std::array<std::vector<std::byte>, 2> out, in;
    std::vector<std::unique_ptr<harp::Exchange>> under_way;
    for (int i = 0; i < 2; ++i) {
      out[i] = pattern(bytes, 2 * tag + i);
      in[i].resize(bytes);
      under_way.push_back(std::make_unique<harp::Exchange>(*stacks[i]));
      under_way[i]->send(peers[i], {1, tag}, out[i].data(), bytes);
      under_way[i]->recv(peers[i], {1, tag}, harp::Sink::place(in[i].data()), bytes);
      under_way[i]->start();
    }
    for (int i = 0; i < 2; ++i) {
      const Status status = under_way[i]->finish(30 * kSecond);
      EXPECT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(in[i], out[i]);
    }
  }

  const int rank, other;
  std::array<NoteTaker, 2> notes;
  std::array<std::shared_ptr<harp::Stack>, 2> stacks;
  std::array<harp::PeerId, 2> peers{};
};

}  // namespace taco::testing
