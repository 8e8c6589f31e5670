// The head of a put: what is written is read again, and whatever else comes is refused.
#include "pg/window/window_message.h"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <vector>

namespace taco::pg {
namespace {

using kernels::Dtype;
using Type = WindowMessage::Type;
using Text = std::array<std::byte, kMaxWindowMessageBytes>;

std::vector<std::byte> written(const WindowMessage& message) {
  Text text;
  const std::size_t bytes = write_window_message(message, text.data());
  return {text.begin(), text.begin() + static_cast<std::ptrdiff_t>(bytes)};
}

TEST(WindowMessage, APutIsReadAsItWasWritten) {
  std::vector<std::byte> data(kMaxCarriedBytes, std::byte{7});
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{8}, data.size()}) {
    const std::span<const std::byte> carried = std::span(data).first(bytes);
    const auto text = written({.type = Type::kPut,
                               .dtype = Dtype::kF64,
                               .signals = true,
                               .offset = std::uint64_t{5} << 40,
                               .bytes = bytes,
                               .carried = carried});
    EXPECT_LE(text.size(), kMaxWindowMessageBytes);
    Result<WindowMessage> read = read_window_message(text);
    ASSERT_TRUE(read.ok()) << read.status().message();
    EXPECT_EQ(read->type, Type::kPut);
    EXPECT_EQ(read->dtype, Dtype::kF64);
    EXPECT_TRUE(read->signals);
    EXPECT_EQ(read->offset, std::uint64_t{5} << 40);
    EXPECT_EQ(read->bytes, bytes);
    EXPECT_FALSE(read->follows());
    EXPECT_TRUE(std::ranges::equal(read->carried, carried));
  }
}

TEST(WindowMessage, BytesThatFollowAreAnnounced) {
  const auto text = written({.type = Type::kPut, .bytes = std::uint64_t{3} << 33});
  EXPECT_EQ(text.size(), kWindowHeadBytes);
  Result<WindowMessage> read = read_window_message(text);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_TRUE(read->follows());
  EXPECT_EQ(read->bytes, std::uint64_t{3} << 33);
}

// Whatever is read brings as many bytes as it says, or none and says that they follow.
TEST(WindowMessage, DamagedMessagesAreRefusedOrHarmless) {
  std::mt19937 random(7);
  std::vector<std::byte> data(100, std::byte{1});
  const auto whole = written(
      {.type = Type::kPut, .signals = true, .offset = 64, .bytes = data.size(), .carried = data});
  int refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::vector<std::byte> text = whole;
    text.resize(random() % (whole.size() + 20));
    for (int flips = static_cast<int>(random() % 4); flips > 0 && !text.empty(); --flips)
      text[random() % text.size()] ^= static_cast<std::byte>(1u << random() % 8);
    Result<WindowMessage> read = read_window_message(text);
    refused += read.ok() ? 0 : 1;
    if (!read.ok()) {
      EXPECT_EQ(read.status().code(), Code::kMismatch);
    } else if (read->type == Type::kSignal) {
      EXPECT_TRUE(read->carried.empty() && read->bytes == 0);
    } else {
      EXPECT_TRUE(read->follows() ? read->carried.empty() : read->carried.size() == read->bytes);
    }
  }
  EXPECT_GT(refused, 10'000);
}

TEST(WindowMessage, AWindowTakesWhatLiesInsideAndIsOfItsDtype) {
  std::array<float, 10> memory;
  const WindowMemory window{{reinterpret_cast<std::byte*>(memory.data()), sizeof memory},
                            Dtype::kF32};
  const auto refusal = [&](std::uint64_t offset, std::uint64_t bytes, Dtype dtype = Dtype::kF32) {
    return refusal_of({.type = Type::kPut, .dtype = dtype, .offset = offset, .bytes = bytes},
                      window);
  };
  EXPECT_EQ(refusal(0, 40), "");
  EXPECT_EQ(refusal(36, 4), "");
  EXPECT_EQ(refusal(40, 0), "");
  EXPECT_NE(refusal(40, 4), "");
  EXPECT_NE(refusal(0, 44), "");
  EXPECT_NE(refusal(44, 0), "");
  EXPECT_NE(refusal(2, 4), "") << "in the middle of an element";
  EXPECT_NE(refusal(0, 3), "") << "half an element";
  EXPECT_NE(refusal(~std::uint64_t{0} - 3, 8), "") << "the end overflows";
  EXPECT_NE(refusal(8, ~std::uint64_t{0} - 3), "") << "the end overflows";
  EXPECT_NE(refusal(0, 4, Dtype::kI32), "");
  EXPECT_NE(refusal(0, 44).find("11 elements at offset 0 exceed the window"), std::string::npos);
  EXPECT_NE(refusal(0, 4, Dtype::kI32).find("int32 does not match"), std::string::npos);
}

}  // namespace
}  // namespace taco::pg
