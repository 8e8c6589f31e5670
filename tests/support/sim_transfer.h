// One message from one simulated process to another, placed or added, with what came of it. Test
// support.
#pragma once

#include <gtest/gtest.h>
#include <malloc.h>

#include <vector>

#include "harp/transport.h"
#include "support/same_bytes.h"
#include "support/sim_random.h"

namespace taco::harp {

struct Transfer {
  struct Outcome {
    int calls = 0;
    Status status;
  };

  std::vector<std::byte> source, target, expected;
  SendRequest send;
  RecvRequest recv;
  Outcome sent, received;

  Transfer(std::uint64_t tag, std::size_t bytes, std::uint64_t signature = 7)
      : source(bytes), target(bytes) {
    keep_memory();
    SimRandom(tag + 99).fill(source);
    expected = source;
    send.key = recv.key = {1, tag};
    send.signature = recv.signature = signature;
    send.data = source.data();
    send.bytes = recv.max_bytes = bytes;
    send.on_done = note<SendRequest>;
    send.context = &sent;
    recv.sink = Sink::place(target.data());
    recv.on_done = note<RecvRequest>;
    recv.context = &received;
  }
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  // Adds to what the target holds, so that a byte that is consumed twice shows.
  void reduce() {
    for (std::size_t i = 0; i < target.size(); ++i) target[i] = static_cast<std::byte>(i * 7);
    add(expected.data(), source.data(), target.data(), target.size());
    recv.sink = Sink::reduce_into(target.data(), target.data(), add, 1);
  }

  bool done() const { return sent.calls > 0 && received.calls > 0; }
  void check() const {
    EXPECT_EQ(sent.calls, 1);
    EXPECT_EQ(received.calls, 1);
    EXPECT_TRUE(sent.status.ok()) << sent.status.message();
    EXPECT_TRUE(received.status.ok()) << received.status.message();
    EXPECT_EQ(recv.bytes, source.size());
    EXPECT_TRUE(same_bytes(target, expected));
  }

 private:
  // A message has the memory of the one before: to have the kernel clear pages for each takes
  // longer than to simulate its packets. A sanitizer's allocator goes its own way.
  static void keep_memory() {
    [[maybe_unused]] static const bool once =
        mallopt(M_MMAP_THRESHOLD, 1 << 30) == 1 && mallopt(M_TRIM_THRESHOLD, 1 << 30) == 1;
  }
  template <class Request>
  static void note(Request& request, const Status& status) {
    auto& outcome = *static_cast<Outcome*>(request.context);
    ++outcome.calls;
    outcome.status = status;
  }
  static void add(void* out, const void* a, const void* b, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      static_cast<std::byte*>(out)[i] =
          static_cast<std::byte>(static_cast<unsigned>(static_cast<const std::byte*>(a)[i]) +
                                 static_cast<unsigned>(static_cast<const std::byte*>(b)[i]));
    }
  }
};

}  // namespace taco::harp
