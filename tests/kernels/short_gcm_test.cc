// Short messages of AES-128-GCM: published answers, and everything that must not be opened. That
// every length comes out as a library has it is shown where packets are sealed
// (tests/harp/session/sealing_test.cc).
#include "kernels/short_gcm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

namespace taco::kernels {
namespace {

using Octets = std::vector<std::byte>;

Octets octets(const std::string& hex) {
  Octets bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

struct Sealed {
  Octets text;
  std::array<std::byte, ShortGcm::kTagBytes> tag{};
};

class ShortGcmTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!ShortGcm::is_supported()) GTEST_SKIP() << "no instructions for AES here";
  }
  static ShortGcm::Nonce nonce_of(const Octets& nonce) {
    return ShortGcm::Nonce(nonce.data(), ShortGcm::kNonceBytes);
  }
  static Sealed sealed(const ShortGcm& key, const Octets& nonce, const Octets& front,
                       const Octets& text) {
    Sealed out;
    out.text.resize(text.size());
    key.seal(nonce_of(nonce), front, text, out.text.data(), out.tag);
    return out;
  }
  static bool opens(const ShortGcm& key, const Octets& nonce, const Octets& front, Sealed& it) {
    return key.open(nonce_of(nonce), front, it.text, it.tag);
  }

  const Octets key_ = octets("feffe9928665731c6d6a8f9467308308");
  const Octets nonce_ = octets("cafebabefacedbaddecaf888");
  const Octets text_ = octets(
      "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
      "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b391aafd255");
};

std::span<const std::byte, ShortGcm::kKeyBytes> as_key(const Octets& key) {
  return std::span<const std::byte, ShortGcm::kKeyBytes>(key.data(), ShortGcm::kKeyBytes);
}

// McGrew and Viega, "The Galois/Counter Mode of Operation", appendix B, cases 1 to 3.
TEST_F(ShortGcmTest, GivesThePublishedAnswers) {
  const Octets zeros(16);
  const ShortGcm zero_key(as_key(zeros));
  const Sealed nothing = sealed(zero_key, Octets(12), {}, {});
  EXPECT_EQ(Octets(nothing.tag.begin(), nothing.tag.end()),
            octets("58e2fccefa7e3061367f1d57a4e7455a"));
  const Sealed block = sealed(zero_key, Octets(12), {}, zeros);
  EXPECT_EQ(block.text, octets("0388dace60b6a392f328c2b971b2fe78"));
  EXPECT_EQ(Octets(block.tag.begin(), block.tag.end()), octets("ab6e47d42cec13bdf53a67b21257bddf"));

  const Sealed blocks = sealed(ShortGcm(as_key(key_)), nonce_, {}, text_);
  EXPECT_EQ(blocks.text,
            octets("42831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e"
                   "21d514b25466931c7d8f6a5aac84aa051ba30b396a0aac973d58e091473f5985"));
  EXPECT_EQ(Octets(blocks.tag.begin(), blocks.tag.end()),
            octets("4d5c2af327cd64a62cf35abd2ba6fab4"));
}

TEST_F(ShortGcmTest, EveryLengthIsOpenedWhereItLies) {
  const ShortGcm key(as_key(key_));
  const Octets front = octets("000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f");
  for (std::size_t size = 0; size <= ShortGcm::kMostBytes; ++size) {
    Octets text(size);
    for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<std::byte>(i * 11 + size);
    Sealed it = sealed(key, nonce_, front, text);
    ASSERT_TRUE(opens(key, nonce_, front, it)) << size << " bytes";
    ASSERT_EQ(it.text, text) << size << " bytes";
  }
}

// And what was not opened is as it came.
TEST_F(ShortGcmTest, NoFlippedBitIsOpened) {
  const ShortGcm key(as_key(key_));
  Octets front(32, std::byte{7});
  Octets text = text_;
  text.resize(53);
  const Sealed intact = sealed(key, nonce_, front, text);
  const auto expect_refusal = [&](std::byte& at, Sealed& it) {
    for (int bit = 0; bit < 8; ++bit) {
      at ^= std::byte{1} << bit;
      const Octets before = it.text;
      EXPECT_FALSE(opens(key, nonce_, front, it));
      EXPECT_EQ(it.text, before);
      at ^= std::byte{1} << bit;
    }
  };
  Sealed it = intact;
  for (std::byte& byte : it.text) expect_refusal(byte, it);
  for (std::byte& byte : it.tag) expect_refusal(byte, it);
  for (std::byte& byte : front) expect_refusal(byte, it);
  EXPECT_TRUE(opens(key, nonce_, front, it));
}

TEST_F(ShortGcmTest, AnotherNonceKeyOrLengthIsNotOpened) {
  const ShortGcm key(as_key(key_));
  const Octets front(32, std::byte{7});
  Sealed it = sealed(key, nonce_, front, text_);
  EXPECT_FALSE(opens(key, Octets(12), front, it));
  EXPECT_FALSE(opens(ShortGcm(as_key(Octets(16))), nonce_, front, it));
  EXPECT_FALSE(opens(key, nonce_, Octets(16, std::byte{7}), it));
  Sealed shorter = it;
  shorter.text.pop_back();
  EXPECT_FALSE(opens(key, nonce_, front, shorter));
  EXPECT_TRUE(opens(key, nonce_, front, it));
}

}  // namespace
}  // namespace taco::kernels
