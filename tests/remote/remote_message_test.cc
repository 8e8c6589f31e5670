// Messages between endpoints, and the handles that programs carry, are read as they were written,
// and nothing else is taken for one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string>

#include "remote/message.h"

namespace taco::remote {
namespace {

Request a_request() {
  return {.endpoint = 1,
          .from = 2,
          .number = 3,
          .action = Action::kWrite,
          .region = {4, {std::byte{5}, std::byte{6}}},
          .offset = 7,
          .bytes = 3,
          .carried = {}};
}

std::span<const std::byte> written(const Message& message, MessageBytes& out) {
  return {out.data(), write_message(message, out)};
}

TEST(RemoteMessage, ARequestComesAsItWent) {
  const std::array<std::byte, 3> bytes{std::byte{1}, std::byte{2}, std::byte{3}};
  Request request = a_request();
  for (const bool carries : {false, true}) {
    if (carries) request.carried = bytes;
    MessageBytes out;
    Result<Message> read = read_message(written(request, out));
    ASSERT_TRUE(read.ok()) << read.status().message();
    const Request& got = std::get<Request>(*read);
    EXPECT_EQ(got.endpoint, 1u);
    EXPECT_EQ(got.from, 2u);
    EXPECT_EQ(got.number, 3u);
    EXPECT_EQ(got.action, Action::kWrite);
    EXPECT_EQ(got.region, request.region);
    EXPECT_EQ(got.offset, 7u);
    EXPECT_EQ(got.bytes, 3u);
    EXPECT_EQ(got.carried.size(), carries ? 3u : 0u);
  }
}

TEST(RemoteMessage, APartingComesAsItWent) {
  using Why = Parting::Why;
  for (const Why why : {Why::kClosed, Why::kOthers, Why::kCrowded}) {
    MessageBytes out;
    Result<Message> read = read_message(written(Parting{8, 9, why}, out));
    ASSERT_TRUE(read.ok()) << read.status().message();
    EXPECT_EQ(std::get<Parting>(*read).endpoint, 8u);
    EXPECT_EQ(std::get<Parting>(*read).from, 9u);
    EXPECT_EQ(std::get<Parting>(*read).why, why);
  }
  MessageBytes out;
  EXPECT_FALSE(read_message(written(Parting{8, 9, static_cast<Why>(4)}, out)).ok());
}

// Each byte of a request that is no field of its own: format, type, action, zeros.
TEST(RemoteMessage, WhatIsNoRequestIsRefused) {
  MessageBytes good;
  const std::size_t size = write_message(a_request(), good);
  for (std::size_t shorter = 0; shorter < size; ++shorter)
    EXPECT_FALSE(read_message({good.data(), shorter}).ok()) << shorter;
  for (std::size_t at = 0; at < 8; ++at) {
    MessageBytes bad = good;
    bad[at] ^= std::byte{0x84};
    EXPECT_FALSE(read_message({bad.data(), size}).ok()) << at;
  }
  const auto refused = [](auto&& change) {
    Request request = a_request();
    change(request);
    MessageBytes out;
    return !read_message(written(request, out)).ok();
  };
  const std::array<std::byte, 4> more{};
  EXPECT_TRUE(refused([](Request& request) { request.bytes = 0; }));
  EXPECT_TRUE(refused([](Request& request) { request.bytes = harp::kMaxMessageBytes + 1; }));
  EXPECT_TRUE(refused([&](Request& request) { request.carried = more; }));
  EXPECT_TRUE(refused([](Request& request) { request.number = std::uint64_t{1} << 62; }));
  EXPECT_TRUE(refused([&](Request& request) {
    request.action = Action::kRead;
    request.carried = std::span(more).first(3);
  }));
}

TEST(RemoteMessage, AnAnswerComesAsItWentAndLongTextsAreCut) {
  AnswerBytes out;
  const auto through = [&](const Status& status) {
    return read_answer({out.data(), write_answer(status, out)});
  };
  EXPECT_TRUE(through(Status()).ok());
  const Status why = through(Status(Code::kAborted, "it was revoked"));
  EXPECT_EQ(why.code(), Code::kAborted);
  EXPECT_EQ(why.message(), "it was revoked");
  const Status cut = through(Status(Code::kInvalidArgument, std::string(2000, 'x')));
  EXPECT_EQ(cut.code(), Code::kInvalidArgument);
  EXPECT_EQ(cut.message(), std::string(kMaxAnswerBytes - 2, 'x'));
}

// An owner passes on what the transport says of the bytes, whose codes are not its own to choose.
TEST(RemoteMessage, AnAnswerOfAnyCodeIsReadAndKeepsItsText) {
  const Code kept[] = {Code::kInvalidArgument, Code::kMismatch, Code::kAborted, Code::kResource,
                       Code::kInternal};
  for (int value = 1; value <= static_cast<int>(Code::kInternal); ++value) {
    const auto code = static_cast<Code>(value);
    AnswerBytes out;
    const Status read = read_answer({out.data(), write_answer(Status(code, "why"), out)});
    EXPECT_EQ(read.message(), "why") << value;
    const bool is_kept = std::ranges::find(kept, code) != std::end(kept);
    EXPECT_EQ(read.code(), is_kept ? code : Code::kInternal) << value;
  }
}

TEST(RemoteMessage, WhatIsNoAnswerIsAMismatchAndNoSuccess) {
  AnswerBytes out{};
  EXPECT_EQ(read_answer({}).code(), Code::kMismatch);
  const std::size_t size = write_answer(Status(), out);
  EXPECT_EQ(read_answer({out.data(), size + 1}).code(), Code::kMismatch);  // done, with a text
  out[0] = std::byte{9};
  EXPECT_EQ(read_answer({out.data(), size}).code(), Code::kMismatch);
  write_answer(Status(), out);
  out[1] = std::byte{200};  // no code
  EXPECT_EQ(read_answer({out.data(), size}).code(), Code::kMismatch);
}

TEST(RemoteHandle, ComesAsItWent) {
  const Handle handle{1, {2, {std::byte{3}}}, 4, 5};
  const std::string bytes = encode(handle);
  EXPECT_EQ(bytes.size(), kHandleBytes);
  Result<Handle> read = decode_handle(bytes);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(*read, handle);
}

TEST(RemoteHandle, OfAnotherVersionIsRefusedByBothVersions) {
  std::string bytes = encode(Handle{});
  bytes[12] = 7;
  const Status status = decode_handle(bytes).status();
  EXPECT_EQ(status.code(), Code::kVersionMismatch);
  EXPECT_NE(status.message().find("version 7"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("version 1"), std::string::npos) << status.message();
}

TEST(RemoteHandle, ThatIsDamagedOrNoneIsRefused) {
  const std::string good = encode(Handle{1, {2, {std::byte{3}}}, 4, 5});
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x20);
    EXPECT_FALSE(decode_handle(bad).ok()) << at;
    EXPECT_FALSE(decode_handle(good.substr(0, at)).ok()) << at;
  }
  EXPECT_FALSE(decode_handle(good + "x").ok());
  EXPECT_EQ(decode_handle("nixl").status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace taco::remote
