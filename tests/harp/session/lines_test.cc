// Receives whose memory is read while the message comes: a line's last word says that the line is
// there (Sink::by_line).
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "support/sim_cluster.h"
#include "support/sim_transfer.h"

namespace taco::harp {
namespace {

constexpr std::size_t kWords = kLineBytes / sizeof(std::uint64_t);

struct Line {
  std::uint64_t words[kWords];
};

// No word is zero, as the memory is before it is written.
Line line_of(std::size_t index) {
  Line line;
  for (std::size_t i = 0; i < kWords; ++i) line.words[i] = index * kWords + i + 1;
  return line;
}

std::vector<Line> lines(std::size_t count) {
  std::vector<Line> all;
  for (std::size_t i = 0; i < count; ++i) all.push_back(line_of(i));
  return all;
}

// Reads what has come so far, as a GPU would.
class Reader {
 public:
  explicit Reader(const Transfer& transfer) : memory_(transfer.target) {}
  void look() {
    for (std::size_t at = 0; at + kLineBytes <= memory_.size(); at += kLineBytes) {
      Line line;
      std::memcpy(&line, memory_.data() + at, sizeof line);
      const Line whole = line_of(at / kLineBytes);
      const bool is_signed = line.words[kWords - 1] == whole.words[kWords - 1];
      torn_ += is_signed && std::memcmp(&line, &whole, sizeof line) != 0 ? 1 : 0;
    }
  }
  std::uint64_t torn() const { return torn_; }

 private:
  const std::vector<std::byte>& memory_;
  std::uint64_t torn_ = 0;
};

SimFaults rough() {
  SimFaults faults;
  faults.loss = 0.03;
  faults.duplication = 0.02;
  faults.reordering = 0.3;
  faults.jitter = 20 * kMicrosecond;
  faults.gso = faults.gro = false;
  return faults;
}

// How often a line was seen to be signed and not whole.
std::uint64_t torn_lines(std::uint64_t seed, std::size_t bytes, Sink (*sink)(void*),
                         Security security = Security::kNone, bool narrows = false) {
  SimCluster cluster(2, seed, rough());
  for (std::uint32_t i = 0; i < 2; ++i) cluster[i].set_security(security);
  Transfer transfer(1, bytes);
  const std::vector<Line> all = lines(bytes / kLineBytes + 1);
  std::memcpy(transfer.source.data(), all.data(), bytes);
  transfer.expected = transfer.source;
  transfer.recv.sink = sink(transfer.target.data());
  Reader reader(transfer);
  cluster[1].matcher(0).recv(transfer.recv);
  cluster[0].matcher(1).send(transfer.send);
  const Time begin = cluster.now();
  const bool done = cluster.run(
      begin + 60 * kSecond, [&] { return transfer.done(); },
      [&] {
        reader.look();
        if (narrows && cluster.now() > begin + kMillisecond) {
          cluster.network().set_mtu(0, 1, 1300);
        }
      });
  EXPECT_TRUE(done);
  reader.look();
  transfer.check();
  cluster.end();
  return reader.torn();
}

constexpr std::size_t kSizes[] = {8, 128, 1440, 1448, 1536, 4000, 100'000, 300'008};

TEST(Lines, AreWholeOnceTheirLastWordIsThereWhateverTheNetworkDoes) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    for (const std::size_t bytes : kSizes) {
      EXPECT_EQ(torn_lines(seed, bytes, Sink::place_by_line), 0u) << bytes << ", seed " << seed;
    }
  }
}

TEST(Lines, AreWholeIfSealedAndIfTheirPathBecomesNarrow) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    EXPECT_EQ(torn_lines(seed, 200'000, Sink::place_by_line, Security::kEncrypt), 0u) << seed;
    EXPECT_EQ(torn_lines(seed, 200'000, Sink::place_by_line, Security::kNone, true), 0u) << seed;
  }
}

// So the reader would see it.
TEST(Lines, AreTornWhereNobodyAskedForThem) {
  std::uint64_t torn = 0;
  for (std::uint64_t seed = 1; seed <= 5; ++seed) torn += torn_lines(seed, 100'000, Sink::place);
  EXPECT_GT(torn, 0u);
}

}  // namespace
}  // namespace taco::harp
