#include "zerocache/disk/io_transfer.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <string>

namespace taco::zerocache {
namespace {

using Next = Transfer::Next;

constexpr std::uint32_t kBytes = 4 * kIoAlignment;

IoRequest request(IoRequest::Kind kind = IoRequest::Kind::kRead) {
  IoRequest request;
  request.kind = kind;
  request.offset = 100 * kIoAlignment;
  request.bytes = kBytes;
  return request;
}

TEST(Transfer, IsDoneWhenAllBytesWereTransferred) {
  Transfer transfer(request(), kIoAlignment);
  EXPECT_EQ(transfer.advance(kBytes, "f"), Next::kDone);
  EXPECT_TRUE(transfer.status().ok());
}

TEST(Transfer, GoesOnBehindWhatWasTransferredAtAPlaceThatDirectReadsAllow) {
  Transfer transfer(request(), kIoAlignment);
  EXPECT_EQ(transfer.advance(kIoAlignment + 1, "f"), Next::kCall);
  EXPECT_EQ(transfer.progress(), kIoAlignment);
  EXPECT_EQ(transfer.offset(), 101 * kIoAlignment);
  EXPECT_EQ(transfer.bytes(), 3 * kIoAlignment);
  EXPECT_EQ(transfer.advance(3 * kIoAlignment, "f"), Next::kDone);
  EXPECT_TRUE(transfer.status().ok());
}

TEST(Transfer, GoesOnAtAnyByteWhereThatIsAllowed) {
  Transfer transfer(request(), 1);
  EXPECT_EQ(transfer.advance(5, "f"), Next::kCall);
  EXPECT_EQ(transfer.progress(), 5u);
}

TEST(Transfer, TriesAgainWhatWasInterruptedOrHadToWait) {
  Transfer transfer(request(), kIoAlignment);
  EXPECT_EQ(transfer.advance(-EINTR, "f"), Next::kCall);
  EXPECT_EQ(transfer.advance(-EAGAIN, "f"), Next::kPause);
  EXPECT_EQ(transfer.bytes(), kBytes);
  EXPECT_EQ(transfer.advance(kBytes, "f"), Next::kDone);
  EXPECT_TRUE(transfer.status().ok());
}

TEST(Transfer, GivesUpWhenNothingEverMoves) {
  for (const ssize_t result : {-EINTR, -EAGAIN, 0, 17}) {
    Transfer transfer(request(IoRequest::Kind::kWrite), kIoAlignment);
    int calls = 1;
    while (transfer.advance(result, "f") != Next::kDone) ASSERT_LT(++calls, 10'000);
    EXPECT_EQ(calls, Transfer::kMaxIdleCalls);
    EXPECT_EQ(transfer.status().code(), Code::kResource);
    EXPECT_NE(transfer.status().message().find("no progress"), std::string::npos);
  }
}

TEST(Transfer, ProgressStartsTheCountOfIdleCallsAnew) {
  Transfer transfer(request(), kIoAlignment);
  for (int i = 1; i < Transfer::kMaxIdleCalls; ++i) transfer.advance(-EINTR, "f");
  EXPECT_EQ(transfer.advance(kIoAlignment, "f"), Next::kCall);
  for (int i = 1; i < Transfer::kMaxIdleCalls; ++i) {
    EXPECT_EQ(transfer.advance(-EINTR, "f"), Next::kCall);
  }
}

TEST(Transfer, AnErrorNamesFilePlaceAndReason) {
  Transfer transfer(request(IoRequest::Kind::kWrite), kIoAlignment);
  transfer.advance(kIoAlignment, "/disk/slab");
  EXPECT_EQ(transfer.advance(-ENOSPC, "/disk/slab"), Next::kDone);
  EXPECT_EQ(transfer.status().code(), Code::kResource);
  EXPECT_EQ(transfer.status().message(),
            "writing 12288 bytes at 413696 of /disk/slab: No space left on device");
}

TEST(Transfer, AFileThatEndsInTheMiddleIsAnError) {
  Transfer transfer(request(), kIoAlignment);
  EXPECT_EQ(transfer.advance(kIoAlignment, "/disk/slab"), Next::kCall);
  EXPECT_EQ(transfer.advance(0, "/disk/slab"), Next::kDone);
  EXPECT_NE(transfer.status().message().find("/disk/slab: the file ends at byte 413696"),
            std::string::npos);
}

TEST(Transfer, AFileMayEndInTheMiddleOfABlock) {
  Transfer transfer(request(), kIoAlignment);
  EXPECT_EQ(transfer.advance(kIoAlignment + 100, "/disk/slab"), Next::kCall);
  EXPECT_EQ(transfer.advance(100, "/disk/slab"), Next::kCall);
  EXPECT_EQ(transfer.advance(100, "/disk/slab"), Next::kDone);
  EXPECT_NE(transfer.status().message().find("the file ends at byte 413796"), std::string::npos)
      << transfer.status().message();
}

}  // namespace
}  // namespace taco::zerocache
