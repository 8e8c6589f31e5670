#include <gtest/gtest.h>

#include <string_view>

#include "kernels/samples.h"
#include "kernels/variant.h"

namespace taco::kernels {
namespace {

using testing::Bytes;
using testing::Random;

// One bit at a time, straight from the definition.
std::uint32_t crc32c_by_definition(std::uint32_t crc, const unsigned char* data, std::size_t n) {
  crc = ~crc;
  for (std::size_t i = 0; i < n; ++i) {
    crc ^= data[i];
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78u : 0u);
  }
  return ~crc;
}

class ChecksumTest : public ::testing::TestWithParam<const Checksum*> {
 protected:
  std::uint32_t of(std::string_view text) const {
    return GetParam()->crc32c(0, text.data(), text.size());
  }
};

// RFC 3720, appendix B.4, and the customary check value.
TEST_P(ChecksumTest, GivesThePublishedAnswers) {
  EXPECT_EQ(of(""), 0u);
  EXPECT_EQ(of("123456789"), 0xE3069283u);
  EXPECT_EQ(of(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(of(std::string(32, '\xFF')), 0x62A8AB43u);
  std::string ascending;
  for (char c = 0; c < 32; ++c) ascending.push_back(c);
  EXPECT_EQ(of(ascending), 0x46DD794Eu);
  EXPECT_EQ(of(std::string(ascending.rbegin(), ascending.rend())), 0x113FDB5Cu);
}

TEST_P(ChecksumTest, EqualsTheDefinitionAtEveryLengthAndAlignment) {
  Random random(21);
  for (std::size_t size = 0; size < 1700; ++size) {
    Bytes bytes(size, random());
    testing::fill(bytes, Dtype::kU8, random);
    const auto start = static_cast<std::uint32_t>(random());
    ASSERT_EQ(GetParam()->crc32c(start, bytes.data(), size),
              crc32c_by_definition(start, bytes.data(), size))
        << size << " bytes";
  }
}

TEST_P(ChecksumTest, Chains) {
  Random random(22);
  Bytes bytes(100'003, 5);
  testing::fill(bytes, Dtype::kU8, random);
  const std::uint32_t whole = crc32c_by_definition(0, bytes.data(), bytes.size());
  for (int i = 0; i < 200; ++i) {
    const std::size_t cut = random() % (bytes.size() + 1);
    const std::uint32_t first = GetParam()->crc32c(0, bytes.data(), cut);
    ASSERT_EQ(GetParam()->crc32c(first, bytes.data() + cut, bytes.size() - cut), whole) << cut;
  }
}

TEST_P(ChecksumTest, EveryFlippedBitOfAPacketIsSeen) {
  Random random(24);
  Bytes bytes(1472, 3);
  testing::fill(bytes, Dtype::kU8, random);
  const std::uint32_t intact = GetParam()->crc32c(0, bytes.data(), bytes.size());
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    const auto mask = static_cast<unsigned char>(1 << (bit % 8));
    bytes.data()[bit / 8] ^= mask;
    ASSERT_NE(GetParam()->crc32c(0, bytes.data(), bytes.size()), intact) << "bit " << bit;
    bytes.data()[bit / 8] ^= mask;
  }
}

std::string plain_name(const char* name) {
  std::string text(name);
  std::erase(text, '.');
  return text;
}
INSTANTIATE_TEST_SUITE_P(Host, ChecksumTest,
                         ::testing::ValuesIn(host_checksums().begin(), host_checksums().end()),
                         [](const auto& instance) { return plain_name(instance.param->name); });

}  // namespace
}  // namespace taco::kernels
