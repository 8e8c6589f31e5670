// The common part of the fuzz targets that drive simulated processes: reading the input, messages
// that complete once, and the game in which two processes exchange them while the input has its
// way. Test support.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/log.h"
#include "support/seen_nonces.h"
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

// The newest few of what has come: what is said when sessions stand counts as much as what began
// them.
template <class T>
class Newest {
 public:
  explicit Newest(std::size_t most) : max_(most) {}
  void add(T one) {
    if (kept_.size() < max_) return kept_.push_back(std::move(one));
    kept_[oldest_++ % max_] = std::move(one);
  }
  const T* any(std::size_t which) const {  // null: nothing has come
    return kept_.empty() ? nullptr : &kept_[which % kept_.size()];
  }

 private:
  const std::size_t max_;
  std::vector<T> kept_;
  std::size_t oldest_ = 0;
};

// Nodes 0 and 1 mean each other well; whoever else there is follows the input, turn by turn. The
// input's first byte, whose bits from the second to the fourth are the same for all games, says of
// what kind the game is.
class SessionGame {
 public:
  SessionGame(const SessionGame&) = delete;
  SessionGame& operator=(const SessionGame&) = delete;
  virtual ~SessionGame() {
    cluster_.network().set_tap(nullptr);
    cluster_.end();
  }

 protected:
  // Six messages of 20 kB at most, copies of small ones, records, and 16 paths.
  static constexpr std::size_t kMaxSessionBytes = 1 << 20;
  static constexpr Time kLimit = 60 * kSecond;  // virtual

  SessionGame(const Input& input, std::uint8_t kind, std::uint32_t nodes, std::uint64_t seed,
              const SimFaults& faults)
      : input_(input), kind_(kind), cluster_(nodes, seed, faults) {
    cluster_.network().set_tap([this](const SimNetwork::Departure& sent) {
      if (!nonces_.add(sent)) fail("two packets are sealed under one nonce");
      // A packet that has left in part leaves again.
      if (sent.fate != "forged" && sent.fate != "in part") see(sent);
    });
    for (const std::uint32_t node : {0u, 1u}) {
      cluster_[node].set_security(level());
      if ((kind_ & 8) != 0) cluster_[node].set_paths(2);
    }
  }

  // One of the two that mean well has so much work of its own in every turn from now on.
  void slow_down() {
    const std::uint8_t value = input_.byte();
    cluster_[value & 1u].set_turn_time((value >> 1) * 200 * kMicrosecond);
  }
  // Cables are full when so much waits for them, and refuse datagrams of which a part has left.
  void narrow_cables() {
    SimFaults& faults = cluster_.network().faults();
    faults.longest_queue = input_.byte() * kMicrosecond / 8;
  }

  // Sees a packet of a sender that is no part of the input.
  virtual void see(const SimNetwork::Departure& sent) = 0;
  // Does what the input says next.
  virtual void turn() = 0;
  // Checks what must hold at all times.
  virtual void check_bounds() {
    for (const std::uint32_t node : {0u, 1u}) {
      for (std::uint32_t other = 0; other < cluster_.size(); ++other) {
        const Session* const session = other != node ? cluster_[node].session(other) : nullptr;
        if (session != nullptr && session->memory_bytes() > kMaxSessionBytes) {
          fail("a session has grown");
        }
      }
      const CreditPool& pool = cluster_[node].credit();
      if (pool.outstanding() > pool.most()) {
        fail("more credit is granted than there is");
      }
    }
  }

  Security level() const {
    constexpr Security kLevels[] = {Security::kNone, Security::kAuth, Security::kEncrypt,
                                    Security::kAuth};
    return kLevels[kind_ >> 1 & 3];
  }
  void add(std::uint32_t from, std::uint32_t to, std::size_t bytes) {
    messages_.push_back(std::make_unique<Message>(messages_.size() + 1, from, to, bytes));
  }
  const std::vector<std::unique_ptr<Message>>& messages() const { return messages_; }
  // Nodes 0 and 1 do their part.
  void begin(Message& message) {
    if (message.from < 2) cluster_[message.from].send(message.to, message.send);
    if (message.to < 2) cluster_[message.to].recv(message.from, message.recv);
  }
  // To the end of the input, and on until nodes 0 and 1 have exchanged all messages. False: they
  // never do.
  bool take_turns() {
    while (!input_.is_empty()) turn();
    return cluster_.run(
        kLimit, [&] { return is_finished() || is_lost(); }, [&] { check_bounds(); });
  }
  // Between nodes 0 and 1 everything has come as it was sent.
  void judge(bool done) {
    if (is_lost()) fail("a session that was to stand has ended");
    if (!done) fail("messages were kept from arriving");
    for (const auto& message : messages_) {
      if (!is_between_us(*message)) continue;
      if (!message->ok) fail("a receive has failed");
      if (message->target != message->source) fail("a message has been changed");
    }
  }
  void pass_time(Duration time) {
    const Time until = cluster_.now() + time;
    cluster_.wake_at(until);
    cluster_.run(
        until, [&] { return cluster_.now() >= until; }, [&] { check_bounds(); });
  }

  Input input_;
  const std::uint8_t kind_;
  SimCluster cluster_;

 private:
  static bool is_between_us(const Message& message) { return message.from < 2 && message.to < 2; }
  bool is_finished() const {
    return std::all_of(messages_.begin(), messages_.end(), [](const auto& each) {
      return !is_between_us(*each) || (each->sent > 0 && each->received > 0);
    });
  }
  bool is_lost() {
    return cluster_[0].peer(1).matcher.lost() || cluster_[1].peer(0).matcher.lost();
  }

  std::vector<std::unique_ptr<Message>> messages_;
  SeenNonces nonces_;
};

// One run of a fuzz target.
template <class Game>
int play(const std::uint8_t* data, std::size_t size) {
  set_log_level(LogLevel::kOff);
  Game(data, size).play();
  return 0;
}

}  // namespace taco::harp
