// The whole session: two processes over the simulated network exchange messages, each with the
// engine's own loop, while the input says what somebody else on the network sends them, and when:
// copies of what he has seen, just now or long ago, hellos of the beginning among them, whole,
// altered or cut off, with a right checksum or without; headers of his own; resets. Engines come to
// have work of their own, and interfaces refuse what has left in part. Whatever that is, nothing
// crashes, what the processes hold and grant stays bounded, and no nonce seals two packets. Beyond
// that he must not change, stop or repeat a message, or end a session, as far
// as docs/harp.md promises it: at `encrypt` whatever he sends, at the other levels unless he reads
// the network and puts right checksums on what he alters.
#include <algorithm>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "session_game.h"

namespace taco::harp {
namespace {

class Game final : public SessionGame {
 public:
  Game(const std::uint8_t* data, std::size_t size) : Game(Input(data, size)) {}

  void play() {
    for (const auto& message : messages()) begin(*message);
    const bool done = take_turns();
    if (!reseals() || level() == Security::kEncrypt) judge(done);
  }

 private:
  struct Seen {
    SimPlace from, to;
    Datagram bytes;
  };
  explicit Game(Input input) : SessionGame(input, input.byte(), 2, 1, faults()) {
    for (const std::uint32_t node : {0u, 1u}) {
      for (const std::size_t bytes : {0u, 300u, 20'000u}) add(node, 1 - node, bytes);
    }
  }
  static SimFaults faults() {
    SimFaults faults;
    faults.latency = 20 * kMicrosecond;
    return faults;
  }
  bool reseals() const { return (kind_ & 1) != 0; }

  void see(const SimNetwork::Departure& sent) override {
    Seen seen{sent.from, sent.to, Datagram(sent.bytes.begin(), sent.bytes.end())};
    std::vector<Seen>& first = wire::is_hello(seen.bytes) ? hellos_ : old_;
    if (first.size() < kMaxOld) first.push_back(seen);
    seen_.add(std::move(seen));
  }

  // From where it came, or from elsewhere.
  void repeat(const std::vector<Seen>& first) {
    const std::uint8_t which = input_.byte();
    const SimPlace elsewhere = place();
    if (first.empty()) return;
    const Seen& old = first[which % first.size()];
    const bool is_where_it_was = (which & 128) != 0;
    cluster_.network().forge(is_where_it_was ? old.from : elsewhere, old.to, old.bytes);
  }

  SimPlace place() {
    const std::uint8_t value = input_.byte();
    return {value & 3u, value >> 2u & 3u, value >> 4u & 1u};  // hosts 2 and 3 do not exist
  }
  const Seen* seen() { return seen_.any(input_.byte()); }
  void forge(const SimPlace& from, std::uint32_t to, const Datagram& bytes) {
    const std::uint32_t address = input_.byte() & 1;
    cluster_.network().forge(from, {to & 1, address, 0}, bytes);
  }

  void turn() override {
    switch (input_.byte() % 12) {
      case 0: {
        const SimPlace from = place();
        const std::uint32_t to = input_.byte();
        return forge(from, to, input_.bytes(input_.word() % 1500));
      }
      case 1: {
        const SimPlace from = place();
        const std::uint32_t to = input_.byte();
        return forge(from, to, with_header());
      }
      case 2:
        if (const Seen* copy = seen()) cluster_.network().forge(copy->from, copy->to, copy->bytes);
        return;
      case 3: {
        const SimPlace from = place();
        if (const Seen* copy = seen()) forge(from, copy->to.node, copy->bytes);
        return;
      }
      case 4:
        return alter();
      case 5:
        return reset();
      case 6:
        return repeat(hellos_);
      case 8:
        return repeat(old_);
      case 9:
        return slow_down();
      case 10:
        return narrow_cables();
      default:
        return pass_time((1 + input_.byte()) * 10 * kMicrosecond);
    }
  }

  // A checksum and all, for a connection that nobody has.
  Datagram with_header() {
    wire::Header header{};
    const Datagram fields = input_.bytes(sizeof header);
    if (!fields.empty()) std::memcpy(&header, fields.data(), fields.size());
    header.version_and_type = static_cast<std::uint8_t>(wire::kVersion << 4 | (input_.byte() & 7));
    header.connection |= std::uint64_t{1} << 63;  // of an engine that does not exist
    return datagram_of(header, input_.bytes(input_.byte()));
  }

  // Some bytes of a copy changed, most often of its header and what follows that; its end cut off.
  void alter() {
    const Seen* const copy = seen();
    if (copy == nullptr || copy->bytes.empty()) return;
    Datagram bytes = copy->bytes;
    for (int i = input_.byte() % 8; i >= 0; --i) {
      const std::uint32_t where = input_.word();
      const std::size_t within =
          (where & 0xc000) != 0 ? std::min<std::size_t>(bytes.size(), 64) : bytes.size();
      bytes[where % within] ^= static_cast<std::byte>(input_.byte());
    }
    const std::uint32_t cut = input_.word();
    if ((cut & 1) != 0) bytes.resize(cut % (bytes.size() + 1));
    // A right checksum shows nothing of a hello, which has a proof.
    const bool is_hello = wire::is_hello(bytes) && wire::is_hello(copy->bytes);
    if ((reseals() || is_hello) && bytes.size() >= sizeof(wire::Header)) {
      const std::span<const std::byte> body = std::span(bytes).subspan(sizeof(wire::Header));
      bytes = datagram_of(header_of(bytes), body);
    }
    cluster_.network().forge(copy->from, copy->to, bytes);
  }

  // "I know no such connection", in its addressee's name, to who sent it.
  void reset() {
    const Seen* const copy = seen();
    if (copy == nullptr || copy->bytes.size() < wire::kResetBytes) return;
    const std::span<const std::byte> quoted = std::span(copy->bytes).first(wire::kResetBytes);
    const wire::Header header = wire::frames_header(wire::Type::kReset, {}, quoted.size());
    cluster_.network().forge(copy->to, copy->from, datagram_of(header, quoted));
  }

  static constexpr std::size_t kMaxOld = 32;
  Newest<Seen> seen_{128};
  std::vector<Seen> hellos_, old_;  // the first ones
};

}  // namespace
}  // namespace taco::harp

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return taco::harp::play<taco::harp::Game>(data, size);
}
