// What the fuzz targets that drive simulated processes have in common: reading the input, and
// messages that complete once. Test support.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "support/sim_cluster.h"
#include "support/sim_wire.h"

namespace taco::harp {

[[noreturn]] inline void fail(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  abort();
}

// Bytes of the input, zeros when they are used up.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : rest_(data, size) {}
  bool is_empty() const { return rest_.empty(); }
  std::uint8_t byte() {
    if (rest_.empty()) return 0;
    const std::uint8_t value = rest_.front();
    rest_ = rest_.subspan(1);
    return value;
  }
  std::uint32_t word() {
    const std::uint32_t low = byte();
    return low | std::uint32_t{byte()} << 8;
  }
  Datagram bytes(std::size_t count) {
    const auto taken = std::as_bytes(rest_.first(std::min(count, rest_.size())));
    rest_ = rest_.subspan(taken.size());
    return {taken.begin(), taken.end()};
  }

 private:
  std::span<const std::uint8_t> rest_;
};

struct Message {
  Message(std::uint64_t tag, std::uint32_t from, std::uint32_t to, std::size_t bytes)
      : from(from), to(to) {
    source.resize(bytes);
    for (std::size_t i = 0; i < bytes; ++i) source[i] = static_cast<std::byte>(i * 31 + tag);
    target.resize(bytes);
    send.key = recv.key = {1, tag};
    send.signature = recv.signature = 7;
    send.data = source.data();
    send.bytes = recv.max_bytes = bytes;
    send.on_done = [](SendRequest& request, const Status&) {
      if (static_cast<Message*>(request.context)->sent++ > 0) fail("a send completed twice");
    };
    recv.sink = Sink::place(target.data());
    recv.on_done = [](RecvRequest& request, const Status& status) {
      auto& message = *static_cast<Message*>(request.context);
      if (message.received++ > 0) fail("a receive completed twice");
      message.ok = status.ok();
    };
    send.context = recv.context = this;
  }
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;

  const std::uint32_t from, to;  // nodes
  std::vector<std::byte> source, target;
  SendRequest send;
  RecvRequest recv;
  int sent = 0, received = 0;
  bool ok = false;
};

}  // namespace taco::harp
