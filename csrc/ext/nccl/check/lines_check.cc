// NCCL's protocols for small messages put a flag beside the data, and a GPU reads the buffer of a
// receive until it sees the flag, while the message is still arriving. So a word of 8 bytes, half
// of it data and half of it flag, must never be seen in two pieces; and of a line of 128 bytes the
// last word is the flag, and is seen last. A thread plays the GPU here.
#include <atomic>
#include <string>
#include <thread>

#include "ext/nccl/check/checks.h"
#include "ext/nccl/check/traffic.h"

namespace harp::nccl::check {
namespace {

using taco::Code;

constexpr std::size_t kWords = 8192, kBytes = kWords * sizeof(std::uint64_t);
constexpr std::size_t kWordsOfLine = 16;
constexpr std::uint32_t kMessages = 1500;

std::uint32_t data_of(std::uint32_t message, std::size_t word) {
  return (message * 2'654'435'761u) ^ static_cast<std::uint32_t>(word * 40'503u);
}

std::uint64_t word_of(std::uint32_t message, std::size_t word) {
  return std::uint64_t{message} << 32 | data_of(message, word);
}

class Watcher {
 public:
  explicit Watcher(const std::byte* buffer)
      : words_(reinterpret_cast<const std::atomic<std::uint64_t>*>(buffer)),
        thread_([this] { watch(); }) {}
  ~Watcher() { stop(); }
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  bool has_seen_wrong() const { return stopped_; }
  // Empty: nothing was wrong with what was seen so far.
  std::string stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    return wrong_;
  }

 private:
  void watch() {
    while (!stop_ && wrong_.empty()) {
      for (std::size_t line = 0; line < kWords && wrong_.empty(); line += kWordsOfLine) look(line);
    }
    stopped_ = true;
  }

  // The flag first, then what it promises.
  void look(std::size_t line) {
    const std::uint64_t last = words_[line + kWordsOfLine - 1].load(std::memory_order_acquire);
    const auto promised = static_cast<std::uint32_t>(last >> 32);
    for (std::size_t i = line; i < line + kWordsOfLine; ++i) {
      const std::uint64_t word = words_[i].load(std::memory_order_acquire);
      const auto message = static_cast<std::uint32_t>(word >> 32);
      if (word != word_of(message, i)) {
        wrong_ = "a word of 8 bytes was seen in two pieces, at byte " + std::to_string(i * 8);
      } else if (message < promised) {
        wrong_ = "a line's flag was seen before its data, at byte " + std::to_string(i * 8);
      }
    }
  }

  const std::atomic<std::uint64_t>* words_;
  std::atomic<bool> stop_ = false, stopped_ = false;
  std::string wrong_;  // the thread's own until it is joined
  std::thread thread_;
};

void write_message(Buffer& buffer, std::uint32_t message) {
  auto* const words = reinterpret_cast<std::uint64_t*>(buffer.data());
  for (std::size_t i = 0; i < kWords; ++i) words[i] = word_of(message, i);
}

Status move_lines(Network& network, const Ring& ring, const Fellows& fellows, Buffer& out,
                  void* out_region, Buffer& in, void* in_region, const Watcher& watcher) {
  for (std::uint32_t message = 1; message <= kMessages; ++message) {
    if (watcher.has_seen_wrong()) return {};
    write_message(out, message);
    // Lengths are whole words.
    const std::size_t bytes = message % 3 == 0 ? 8 * (1 + message * 131 % kWords) : kBytes;
    const auto receive =
        receive_soon(network, ring.receive, in.data(), kBytes, in_region, fellows.deadline());
    if (!receive.ok()) return receive.status();
    const auto send =
        send_soon(network, ring.send, out.data(), bytes, out_region, fellows.deadline());
    if (!send.ok()) return send.status();
    const auto got = finish(network, receive.value(), fellows.deadline());
    if (!got.ok()) return got.status();
    const auto sent = finish(network, send.value(), fellows.deadline());
    if (!sent.ok()) return sent.status();
  }
  return {};
}

}  // namespace

Status check_lines(Stage& stage) {
  auto session = open_session(stage, With::kRing);
  if (!session.ok()) return session.status();
  Network& network = *session->network;
  const Ring& ring = session->ring;
  Buffer out(kBytes), in(kBytes);
  write_message(in, 0);
  auto out_region = Registered::with(network, ring.send, out.data(), kBytes);
  auto in_region = Registered::with(network, ring.receive, in.data(), kBytes);
  if (!out_region.ok()) return out_region.status();
  if (!in_region.ok()) return in_region.status();
  Watcher watcher(in.data());
  TACO_RETURN_IF_ERROR(move_lines(network, ring, stage.fellows, out, out_region->region(), in,
                                  in_region->region(), watcher));
  const std::string wrong = watcher.stop();
  if (!wrong.empty()) return {Code::kMismatch, wrong};
  TACO_RETURN_IF_ERROR(in_region->end());
  TACO_RETURN_IF_ERROR(out_region->end());
  return end(session.value(), stage.fellows);
}

}  // namespace harp::nccl::check
