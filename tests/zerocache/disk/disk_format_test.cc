#include "zerocache/disk/disk_format.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "zerocache/checkpoint/manifest.h"
#include "zerocache/pages/checksum.h"
#include "zerocache/pages/digest_variants.h"

namespace taco::zerocache {
namespace {

DataHeader some_header() {
  DataHeader header;
  header.kind = DataHeader::Kind::kCheckpoint;
  header.store = 0x0123456789abcdef;
  header.page_bytes = 8192;
  header.pages = 77;
  header.index = 1;
  header.count = 3;
  header.serial = 12;
  return header;
}

TEST(DataHeader, IsReadAsItWasWritten) {
  AlignedMemory memory(kHeaderBytes);
  const HeaderBlock block(memory.data(), kHeaderBytes);
  encode_header(some_header(), block);
  const auto read = decode_header(block, "f");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read.value().kind, DataHeader::Kind::kCheckpoint);
  EXPECT_EQ(read.value().store, 0x0123456789abcdefu);
  EXPECT_EQ(read.value().page_bytes, 8192u);
  EXPECT_EQ(read.value().pages, 77u);
  EXPECT_EQ(read.value().index, 1u);
  EXPECT_EQ(read.value().count, 3u);
  EXPECT_EQ(read.value().serial, 12u);
}

TEST(DataHeader, EveryFlippedBitIsNoticed) {
  AlignedMemory memory(kHeaderBytes);
  const HeaderBlock block(memory.data(), kHeaderBytes);
  encode_header(some_header(), block);
  constexpr std::size_t kUsed = 8 + 4 + 4 + 8 + 8 + 4 + 4 + 4 + 8 + 8;
  for (std::size_t bit = 0; bit < 8 * kUsed; ++bit) {
    block[bit / 8] ^= std::byte(1 << bit % 8);
    const auto read = decode_header(block, "/disk/f");
    EXPECT_FALSE(read.ok()) << "bit " << bit;
    EXPECT_EQ(read.status().message().find("/disk/f"), 0u);
    block[bit / 8] ^= std::byte(1 << bit % 8);
  }
}

TEST(RecordReader, BeyondTheEndEverythingIsZeroAndNotOk) {
  RecordWriter writer;
  writer.put_u32(7);
  writer.put_text("abc");
  RecordReader whole(writer.bytes());
  EXPECT_EQ(whole.u32(), 7u);
  EXPECT_EQ(whole.text(), "abc");
  EXPECT_TRUE(whole.ok());
  EXPECT_EQ(whole.u64(), 0u);
  EXPECT_FALSE(whole.ok());
  RecordReader cut(std::span(writer.bytes()).first(9));
  cut.u32();
  EXPECT_EQ(cut.text(), "");
  EXPECT_FALSE(cut.ok());
}

TEST(RecordReader, DoesNotBelieveACountThatCannotBe) {
  RecordWriter writer;
  writer.put_u32(1000);
  writer.put_u64(0);
  RecordReader reader(writer.bytes());
  EXPECT_EQ(reader.count(8), 0u);
  EXPECT_FALSE(reader.ok());
}

Manifest some_manifest() {
  Manifest manifest;
  manifest.serial = 3;
  manifest.store = 99;
  manifest.page_bytes = 4096;
  manifest.tensors = {{{"a", 5000, 0}, {}},
                      {{"empty", 0, 5056}, {"float32", {0, 3}, {3, 1}}},
                      {{"b", 100, 5056}, {"bfloat16", {5, 1, 10}, {1, 77, 5}}}};
  manifest.pages = {{0, 0, 0xa}, {1, 0, 0xb}};
  manifest.files = {"pages-3-0.data", "pages-3-1.data"};
  manifest.note = std::string("any\0bytes", 9);
  return manifest;
}

TEST(Manifest, IsReadAsItWasWritten) {
  const auto read = decode_manifest(encode_manifest(some_manifest()), "m");
  ASSERT_TRUE(read.ok()) << read.status().message();
  const Manifest& manifest = read.value();
  EXPECT_EQ(manifest.serial, 3u);
  EXPECT_EQ(manifest.store, 99u);
  EXPECT_EQ(manifest.page_bytes, 4096u);
  ASSERT_EQ(manifest.tensors.size(), 3u);
  EXPECT_EQ(manifest.tensors[2].name, "b");
  EXPECT_EQ(manifest.tensors[2].bytes, 100u);
  EXPECT_EQ(manifest.tensors[2].offset, 5056u);
  EXPECT_EQ(manifest.tensors[2].form.dtype, "bfloat16");
  EXPECT_EQ(manifest.tensors[2].form.shape, (std::vector<std::uint64_t>{5, 1, 10}));
  EXPECT_EQ(manifest.tensors[2].form.strides, (std::vector<std::uint64_t>{1, 77, 5}));
  EXPECT_FALSE(manifest.tensors[0].form.known());
  ASSERT_EQ(manifest.pages.size(), 2u);
  EXPECT_EQ(manifest.pages[1].file, 1u);
  EXPECT_EQ(manifest.pages[1].checksum, 0xbu);
  EXPECT_EQ(manifest.files, some_manifest().files);
  EXPECT_EQ(manifest.note, some_manifest().note);
}

TEST(Manifest, OfTheFirstFormatIsReadToo) {
  Manifest manifest = some_manifest();
  manifest.format = kFirstManifestFormat;
  const std::vector<std::byte> bytes = encode_manifest(manifest);
  EXPECT_LT(bytes.size(), encode_manifest(some_manifest()).size());
  const auto read = decode_manifest(bytes, "m");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read.value().format, kFirstManifestFormat);
  EXPECT_EQ(read.value().tensors[2].name, "b");
  EXPECT_FALSE(read.value().tensors[2].form.known());
  EXPECT_EQ(encode_manifest(read.value()), bytes);
  for (const std::uint32_t other : {0u, kManifestFormat + 1}) {
    manifest.format = other;
    EXPECT_EQ(decode_manifest(encode_manifest(manifest), "m").status().message(),
              "m has format " + std::to_string(other) + "; this program reads format 2");
  }
}

TEST(Manifest, EveryFlippedBitAndEveryCutIsNoticed) {
  std::vector<std::byte> bytes = encode_manifest(some_manifest());
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] ^= std::byte(1 << bit % 8);
    EXPECT_FALSE(decode_manifest(bytes, "m").ok()) << "bit " << bit;
    bytes[bit / 8] ^= std::byte(1 << bit % 8);
  }
  for (std::size_t left = 0; left < bytes.size(); ++left) {
    EXPECT_FALSE(decode_manifest(std::span(bytes).first(left), "m").ok()) << left << " bytes";
  }
  bytes.push_back({});
  EXPECT_FALSE(decode_manifest(bytes, "m").ok()) << "a byte more";
}

// A valid checksum does not make the numbers true.
TEST(Manifest, WhatDoesNotFitTogetherIsRefused) {
  const auto refused = [](const std::function<void(Manifest&)>& change) {
    Manifest manifest = some_manifest();
    change(manifest);
    const auto read = decode_manifest(encode_manifest(manifest), "/disk/m");
    return !read.ok() && read.status().message() == "/disk/m is damaged";
  };
  EXPECT_TRUE(refused([](Manifest& m) { m.page_bytes = 5000; }));
  EXPECT_TRUE(refused([](Manifest& m) { m.tensors[2].bytes = 8192; }));
  EXPECT_TRUE(refused([](Manifest& m) { m.tensors[2].offset = std::uint64_t{0} - 64; }));
  EXPECT_TRUE(refused([](Manifest& m) { m.tensors[2].offset = 64; }));
  EXPECT_TRUE(refused([](Manifest& m) { m.tensors[2].form.shape[0] = 7; }));
  EXPECT_TRUE(refused([](Manifest& m) { m.tensors[2].form.shape[0] = 0; }));
  EXPECT_TRUE(refused([](Manifest& m) { m.tensors[2].form.strides[2] = 4; }));
  EXPECT_TRUE(refused([](Manifest& m) { m.tensors[1].form.shape[0] = 1; }));
  EXPECT_TRUE(refused([](Manifest& m) { m.tensors[0].form = {"", {1}, {1}}; }));
  constexpr std::uint64_t kMax = ~std::uint64_t{0};
  EXPECT_TRUE(refused([](Manifest& m) { m.tensors[2].form = {"int8", {kMax, kMax}, {1, kMax}}; }));
  EXPECT_TRUE(refused([](Manifest& m) { m.pages[1].file = 2; }));
  EXPECT_TRUE(refused([](Manifest& m) { m.files[0] = "../elsewhere"; }));
  EXPECT_TRUE(refused([](Manifest& m) { m.files[0] = ""; }));
  EXPECT_FALSE(refused([](Manifest&) {}));
}

TEST(Checksum, DependsOnEveryBitAndOnWhosePageItIs) {
  std::vector<std::byte> bytes(4096, std::byte{7});
  const PageIdentity identity = {1, 2, 3};
  const std::uint64_t sum = checksum(bytes, identity);
  EXPECT_EQ(checksum(bytes, {1, 2, 3}), sum);
  EXPECT_NE(checksum(bytes, {9, 2, 3}), sum);
  EXPECT_NE(checksum(bytes, {1, 9, 3}), sum);
  EXPECT_NE(checksum(bytes, {1, 2, 9}), sum);
  std::mt19937 random(1);
  for (int i = 0; i < 1000; ++i) {
    const std::size_t bit = random() % (8 * bytes.size());
    bytes[bit / 8] ^= std::byte(1 << bit % 8);
    EXPECT_NE(checksum(bytes, identity), sum) << "bit " << bit;
    bytes[bit / 8] ^= std::byte(1 << bit % 8);
  }
}

TEST(Checksum, IsTheSameByEveryInstructionSet) {
  std::vector<std::byte> bytes(5000);
  std::mt19937 random(2);
  for (std::byte& byte : bytes) byte = std::byte(random());
  for (std::size_t count = 0; count <= bytes.size(); count += 1 + count / 50) {
    const std::uint64_t expected = digest_portable(bytes.data(), count);
    EXPECT_EQ(digest({bytes.data(), count}), expected);
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) {
      EXPECT_EQ(digest_avx2(bytes.data(), count), expected);
    }
    if (__builtin_cpu_supports("avx512f")) {
      EXPECT_EQ(digest_avx512(bytes.data(), count), expected);
    }
#endif
  }
}

// Written into files: it must stay the same on every machine and with every version of the library.
TEST(Checksum, IsTheSameEverywhere) {
  EXPECT_EQ(digest({}), 0x2d06800538d394c2u);  // of no bytes, as XXH3's authors have it
}

}  // namespace
}  // namespace taco::zerocache
