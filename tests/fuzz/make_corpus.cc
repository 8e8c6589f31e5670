// make_corpus DIRECTORY: what the fuzz targets begin with, a few dozen inputs each, the same every
// time: DIRECTORY/<target>/<number>. Packets that two simulated processes exchange, addresses,
// words of a negotiation, and games for the targets that read their input as a list of moves.
// Inputs that have once found something are kept as they are, in corpus/<target>/ beside this file.
#include <array>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "harp/address.h"
#include "harp/drivers/frames/icmp_refusal.h"
#include "harp/drivers/frames/neighbour_message.h"
#include "harp/drivers/frames/udp_frame.h"
#include "pg/controller/words.h"
#include "session_game.h"

namespace taco::harp {
namespace {

constexpr int kKinds = 32;  // of games: their first byte says who takes part
constexpr std::size_t kMaxPackets = 48;

class Corpus {
 public:
  Corpus(const std::filesystem::path& root, const std::string& target) : folder_(root / target) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void add(std::span<const std::byte> input) {
    std::ofstream file(folder_ / std::to_string(count_++), std::ios::binary);
    file.write(reinterpret_cast<const char*>(input.data()),
               static_cast<std::streamsize>(input.size()));
    if (!file.flush()) fail("make_corpus: cannot write");
  }

 private:
  const std::filesystem::path folder_;
  int count_ = 0;
};

// One packet of each type and length, of sessions with two paths whose links lose some and come to
// carry less in mid-message: data, fragments, eager messages, control packets, hellos, resets.
void add_packets(Corpus corpus) {
  SimFaults faults;
  faults.loss = 0.05;
  SimCluster cluster(2, 1, faults);
  std::set<std::pair<std::byte, std::size_t>> known;
  cluster.network().set_tap([&](const SimNetwork::Departure& sent) {
    const bool is_new = known.insert({sent.bytes[0], sent.bytes.size() / 16}).second;
    if (is_new && known.size() <= kMaxPackets) corpus.add(sent.bytes);
  });
  for (const std::uint32_t node : {0u, 1u}) cluster[node].set_paths(2);
  std::vector<std::unique_ptr<Message>> messages;
  for (const std::uint32_t from : {0u, 1u}) {
    for (const std::size_t bytes : {0u, 40u, 300u, 20'000u, 200'000u}) {
      messages.push_back(std::make_unique<Message>(messages.size() + 1, from, 1 - from, bytes));
      cluster[from].send(1 - from, messages.back()->send);
      cluster[1 - from].recv(from, messages.back()->recv);
    }
  }
  const auto is_done = [&] {
    return std::all_of(messages.begin(), messages.end(),
                       [](const auto& each) { return each->sent > 0 && each->received > 0; });
  };
  cluster.run(kSecond, [&] { return messages.back()->recv.bytes > 0 || known.size() > 12; });
  for (const std::uint32_t node : {0u, 1u}) cluster.network().set_mtu(node, 1 - node, 1300);
  if (!cluster.run(20 * kSecond, is_done)) fail("make_corpus: messages do not arrive");
  cluster.network().set_tap(nullptr);
  cluster.end();
  const Datagram quoted(wire::kResetBytes, std::byte{7});
  corpus.add(datagram_of(wire::frames_header(wire::Type::kReset, {}, quoted.size()), quoted));
}

void add_addresses(Corpus corpus) {
  for (std::size_t paths = 0; paths <= kMaxPaths; paths += 4) {
    Address address;
    address.incarnation = 7 + paths;
    address.pid = 77;
    address.has_shm = paths > 4;
    address.host_id = "host";
    address.host_name = std::string(paths, 'n');
    for (std::uint32_t i = 0; i < paths; ++i) {
      Endpoint endpoint = SimNetwork::endpoint(1, i);
      if (i % 3 == 2) endpoint = endpoint_from(std::array<std::byte, 16>{std::byte{0xfd}}, 80);
      address.paths.push_back({endpoint, 1500, 1000 * i});
    }
    const std::string text = encode(address);
    corpus.add(std::as_bytes(std::span(text)));
    // The target puts a checksum behind it.
    corpus.add(std::as_bytes(std::span(text)).first(text.size() - 4));
  }
}

// As the host whose kernel has nobody at the datagram's port answers: its packet, behind headers of
// IP and ICMP.
std::vector<std::byte> refusal_of(std::span<const std::byte> datagram, bool v6) {
  const std::size_t ip_bytes = v6 ? kIpv6Header : kIpv4Header;
  const auto headers = datagram.first(kEthernetHeader + ip_bytes);
  std::vector<std::byte> frame(headers.begin(), headers.end());
  frame[kEthernetHeader + (v6 ? 6 : 9)] = v6 ? std::byte{kIcmpv6Protocol} : std::byte{1};
  std::array<std::byte, 8> icmp{std::byte{3}, std::byte{3}};
  if (v6) icmp = {std::byte{1}, std::byte{4}};
  frame.insert(frame.end(), icmp.begin(), icmp.end());
  frame.insert(frame.end(), datagram.begin() + kEthernetHeader, datagram.end());
  return frame;
}

// One frame of each kind, alone and with only its beginning in the first piece.
void add_frames(Corpus corpus) {
  const auto add = [&](std::span<const std::byte> frame) {
    for (const std::size_t piece : {std::size_t{255}, std::size_t{64}}) {
      std::vector<std::byte> input{static_cast<std::byte>(piece)};
      input.insert(input.end(), frame.begin(), frame.end());
      corpus.add(input);
    }
  };
  constexpr MacAddress kMac{std::byte{2}};
  const std::vector<std::byte> payload(100, std::byte{7});
  const IoSlice slice{payload.data(), payload.size()};
  for (const std::byte family : {std::byte{4}, std::byte{6}}) {
    std::array<std::byte, 16> bytes{std::byte{0xfd}};
    if (family == std::byte{4}) bytes = mapped_address(SimNetwork::endpoint(1, 0));
    const Endpoint own = endpoint_from(bytes, 80);
    std::vector<std::byte> frame(udp_headers_bytes(own));
    write_udp_headers({kMac, kMac, own, own}, {{&slice, 1}, payload.size()}, frame);
    frame.insert(frame.end(), payload.begin(), payload.end());
    add(frame);
    const std::vector<std::byte> refusal = refusal_of(frame, family == std::byte{6});
    if (!parse_icmp_refusal(refusal)) fail("make_corpus: a refusal that cannot be read");
    add(refusal);
    std::vector<std::byte> question(kMaxNeighbourFrame);
    question.resize(write_solicitation(kMac, own, own, question));
    add(question);
    std::vector<std::byte> answer(kMaxNeighbourFrame);
    const auto asked = parse_neighbour_message(question);
    if (!asked) fail("make_corpus: a question that cannot be read");
    answer.resize(write_advertisement(kMac, own, *asked, answer));
    add(answer);
  }
}

// Games of every kind: the same moves in another order, with time between them: from before the
// first hello until the messages have arrived.
void add_games(Corpus corpus, int moves) {
  SimRandom random(1);
  for (int kind = 0; kind < kKinds; ++kind) {
    std::vector<std::uint8_t> game{static_cast<std::uint8_t>(kind)};
    for (int i = 0; i < 24; ++i) {
      game.push_back(static_cast<std::uint8_t>((kind + i) % moves));
      const std::size_t bytes = 2 + random.below(10);
      for (std::size_t j = 0; j < bytes; ++j) {
        game.push_back(static_cast<std::uint8_t>(random.next()));
      }
      if (i % 2 == 1) game.insert(game.end(), {7, static_cast<std::uint8_t>(random.below(64))});
    }
    corpus.add(std::as_bytes(std::span(game)));
  }
}

// A request of each kind, behind a byte and the size of its words. Some have so many rows that
// those of two ranks are more than memory holds.
void add_words(Corpus corpus) {
  namespace controller = pg::controller;
  for (const std::int64_t rows : {std::int64_t{4}, std::int64_t{1} << 62}) {
    for (int kind = 0; kind < controller::kKinds; ++kind) {
      controller::Request request{.kind = static_cast<controller::Kind>(kind), .name = "x"};
      request.dtype = kernels::Dtype::kU8;
      request.shapes = {{rows}};
      if (request.kind == controller::Kind::kAllToAll) request.splits = {rows, 0};
      if (request.kind == controller::Kind::kAddSet) request.ranks = {0, 1};
      controller::WordsWriter writer(1, 0);
      writer.add(request);
      const std::string input = std::string(1 + sizeof(std::int64_t), '\1') + writer.take();
      corpus.add(std::as_bytes(std::span(input)));
    }
  }
}

}  // namespace
}  // namespace taco::harp

int main(int count, char** arguments) {
  if (count != 2) taco::harp::fail("usage: make_corpus DIRECTORY");
  taco::set_log_level(taco::LogLevel::kOff);
  const std::filesystem::path root = arguments[1];
  taco::harp::add_packets({root, "wire_fuzz"});
  taco::harp::add_addresses({root, "address_fuzz"});
  taco::harp::add_frames({root, "frame_fuzz"});
  taco::harp::add_words({root, "negotiation_fuzz"});
  taco::harp::add_games({root, "session_fuzz"}, 11);
  taco::harp::add_games({root, "handshake_fuzz"}, 10);
  return 0;
}
