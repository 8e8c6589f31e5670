#include "edge/rendezvous_record.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace taco::edge {
namespace {

Hello hello(const std::string& host, double gbits) {
  Hello made;
  made.token = "token of " + host;
  made.version = "1.2.3";
  made.settings = {{"TACO_ALGORITHM", "auto"}, {"TACO_TUNE", "0"}};
  made.host = host;
  made.address = std::string("address\0with a zero", 19);
  made.further = {"of the second", std::string("third\0", 6)};
  made.gbits = gbits;
  return made;
}

Table table() {
  Table made;
  made.group_id = 77;
  made.word = std::string("a block\0of costs", 16);
  made.ranks = {hello("a", 0), hello("b", 25), hello("a", 10), hello("c", 0)};
  return made;
}

MemberHandle handle() {
  return {.job = "job 7", .hello = hello("a", 2.5), .word = std::string("costs\0", 6)};
}

TEST(RendezvousRecord, AHandleIsTextAndSurvivesIt) {
  const MemberHandle sent = handle();
  const std::string text = sent.encode();
  EXPECT_TRUE(std::ranges::all_of(text, [](char c) { return c > ' ' && c < 127; })) << text;
  const Result<MemberHandle> read = MemberHandle::decode(text);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read.value().job, sent.job);
  EXPECT_EQ(read.value().word, sent.word);
  EXPECT_EQ(read.value().hello.encode(), sent.hello.encode());
}

TEST(RendezvousRecord, WhatIsNoHandleIsSaid) {
  const std::string good = handle().encode();
  for (std::size_t length = 0; length < good.size(); ++length)
    EXPECT_FALSE(MemberHandle::decode(good.substr(0, length)).ok()) << length;
  const Result<MemberHandle> gloos = MemberHandle::decode("gloo:0:0:0:127.0.0.1:29500");
  EXPECT_EQ(gloos.status().code(), Code::kInvalidArgument);
  EXPECT_NE(gloos.status().message().find("gloo:0:0"), std::string::npos);
  EXPECT_EQ(MemberHandle::decode(good + "00").status().code(), Code::kInvalidArgument);
  EXPECT_EQ(MemberHandle::decode("taco-member-2:00").status().code(), Code::kVersionMismatch);
  std::mt19937_64 random(3);
  for (int i = 0; i < 2000; ++i) {
    std::string damaged = good;
    damaged[random() % damaged.size()] = static_cast<char>('0' + random() % 10);
    (void)MemberHandle::decode(damaged);  // no more than an error
  }
}

TEST(RendezvousRecord, HelloSurvivesItsEncoding) {
  const Hello sent = hello("a", 2.5);
  const Result<Hello> read = Hello::decode(sent.encode());
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read.value().token, sent.token);
  EXPECT_EQ(read.value().version, sent.version);
  ASSERT_EQ(read.value().settings.size(), 2u);
  EXPECT_EQ(read.value().settings[1].name, "TACO_TUNE");
  EXPECT_EQ(read.value().settings[1].value, "0");
  EXPECT_EQ(read.value().host, sent.host);
  EXPECT_EQ(read.value().address, sent.address);
  EXPECT_EQ(read.value().further, sent.further);
  EXPECT_EQ(read.value().gbits, sent.gbits);
}

// The store's TCP comes to a halt over larger packets where hosts have jumbo frames and the switch
// between them has not. The settings are those of a group.
TEST(RendezvousRecord, TheTableOfTwoRanksFitsIntoOnePacket) {
  Hello made = hello("a host identity of thirty-six letters", 25);
  made.token = std::string(32, 't');
  made.address = std::string(120, 'a');
  made.further = {made.address};
  made.settings = {{"TACO_ALGORITHM", "auto"},
                   {"Options.compress_all_reduce", ""},
                   {"TACO_CHUNK_BYTES", "1048576"},
                   {"TACO_TUNE", "0"},
                   {"TACO_HARP_SECURITY", "encrypt"},
                   {"TACO_HARP_CHECKSUM", "crc32c"},
                   {"TACO_HARP_KEY_FILE", "#01234567"},
                   {"TACO_HARP_ENGINES", "64"},
                   {"LIGHT_2D_ALLREDUCE", "auto"},
                   {"LIGHT_INTRA_SIZE", "0"},
                   {"LIGHT_HIERARCHICAL_THRESHOLD", ""},
                   {"LIGHT_TOPK_ALLREDUCE", "0"},
                   {"LIGHT_TOPK_RATIO", "0.01"},
                   {"LIGHT_TOPK_THRESHOLD", "1048576"},
                   {"LIGHT_TOPK_FP16", "0"},
                   {"LIGHT_WIRE_DTYPE", "float32"},
                   {"LIGHT_AUTO", "0"},
                   {"LIGHT_FUSION_BYTES", "auto"}};
  Table two;
  two.word = std::string(160, 'w');
  two.ranks = {made, made};
  EXPECT_LT(two.encode().size(), 1400u);
}

TEST(RendezvousRecord, TableNumbersHostsAsTheyAppearAndTakesTheFirstKnownSpeed) {
  const Result<Table> read = Table::decode(table().encode());
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read.value().group_id, 77u);
  EXPECT_EQ(read.value().word, table().word);
  EXPECT_EQ(read.value().host_of_rank(), (std::vector<int>{0, 1, 0, 2}));
  EXPECT_EQ(read.value().host_gbits(), (std::vector<double>{10, 25, 0}));
}

TEST(RendezvousRecord, RefusalSaysItsReasonAndIsNoTable) {
  for (const Code code : {Code::kRendezvous, Code::kVersionMismatch}) {
    const std::string bytes = Refusal{Status(code, "not so"), 3}.encode();
    const std::optional<Refusal> read = Refusal::decode(bytes);
    ASSERT_TRUE(read.has_value());
    EXPECT_EQ(read->why.code(), code);
    EXPECT_NE(read->why.message().find("not so"), std::string::npos);
    EXPECT_EQ(read->readers, 3);
    EXPECT_FALSE(Table::decode(bytes).ok());
  }
  EXPECT_FALSE(Refusal::decode(table().encode()).has_value());
  EXPECT_FALSE(Refusal::decode("").has_value());
}

TEST(RendezvousRecord, CutShortOrLengthenedBytesAreAVersionMismatch) {
  const std::string bytes = table().encode();
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    const Result<Table> read = Table::decode(std::string_view(bytes).substr(0, length));
    ASSERT_FALSE(read.ok()) << length;
    EXPECT_EQ(read.status().code(), Code::kVersionMismatch);
  }
  EXPECT_FALSE(Table::decode(bytes + "x").ok());
}

TEST(RendezvousRecord, DamagedBytesAreReadWithoutHarm) {
  const std::string bytes = table().encode();
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 5000; ++round) {
    std::string damaged = bytes;
    for (int i = 0; i < 3; ++i) damaged[random() % damaged.size()] = static_cast<char>(random());
    const Result<Table> read = Table::decode(damaged);
    if (read.ok()) {
      EXPECT_LE(read.value().ranks.size(), bytes.size());
    }
  }
}

TEST(RendezvousRecord, ComparingNamesBothSides) {
  Hello ours = hello("a", 0);
  EXPECT_TRUE(compare(0, ours, 3, hello("b", 1)).ok());
  Hello theirs = hello("b", 0);
  theirs.version = "9.9.9";
  const Status status = compare(0, ours, 3, theirs);
  EXPECT_EQ(status.code(), Code::kVersionMismatch);
  for (const char* word : {"rank 0", "rank 3", "1.2.3", "9.9.9"}) {
    EXPECT_NE(status.message().find(word), std::string::npos) << status.message();
  }
}

// As a process of another version writes it: lengths took eight bytes once.
std::string foreign_hello(const std::string& format, const std::string& version, bool wide) {
  std::string bytes;
  for (const std::string& text : {format, std::string("their token"), version}) {
    bytes.push_back(static_cast<char>(text.size()));
    if (wide) bytes.append(7, '\0');
    bytes += text;
  }
  return bytes + "what nobody here can read";
}

TEST(RendezvousRecord, AnotherVersionsGreetingIsReadAsFarAsItTakesToNameItAndToAnswer) {
  const Hello ours = hello("a", 0);
  for (const std::string& bytes : {foreign_hello("taco-meeting-1", "0.1.0", true),
                                   foreign_hello("taco-meeting-2", "0.1.0", true),
                                   foreign_hello("taco-meeting-6", "0.1.0", false)}) {
    const Result<Hello> theirs = Hello::decode(bytes);
    ASSERT_TRUE(theirs.ok()) << theirs.status().message();
    EXPECT_EQ(theirs.value().token, "their token");
    const Status status = compare(0, ours, 3, theirs.value());
    EXPECT_EQ(status.code(), Code::kVersionMismatch);
    EXPECT_EQ(status.message(),
              "taco_torch versions differ: rank 0 has 1.2.3, rank 3 has 0.1.0. "
              "All ranks need the same.");
  }
  const Result<Hello> theirs = Hello::decode(foreign_hello("taco-meeting-6", "1.2.3", false));
  ASSERT_TRUE(theirs.ok());
  EXPECT_EQ(compare(0, ours, 3, theirs.value()).code(), Code::kVersionMismatch)
      << "one in the making";
  EXPECT_FALSE(Hello::decode(foreign_hello("another-thing", "1.2.3", false)).ok());
}

// The bytes of version 0.1.0.
TEST(RendezvousRecord, ARefusalIsWrittenAsAllVersionsReadIt) {
  std::string expected("\x0e\0\0\0\0\0\0\0taco-refusal-1", 22);
  expected += std::string("\x08\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0why", 27);
  EXPECT_EQ((Refusal{Status(Code::kVersionMismatch, "why"), 2}.encode()), expected);
}

TEST(RendezvousRecord, ATableWithSettingsIsRefused) {
  Table one;
  one.ranks = {hello("a", 0)};
  one.ranks[0].settings.clear();
  std::string with = hello("a", 0).encode(), without = one.ranks[0].encode();
  ASSERT_LT(with.size(), 255u);
  std::string bytes = one.encode();
  const std::size_t at = bytes.find(without);
  bytes.replace(at, without.size(), with);
  bytes[at - 1] = static_cast<char>(with.size());
  EXPECT_TRUE(Table::decode(one.encode()).ok());
  EXPECT_FALSE(Table::decode(bytes).ok());
}

TEST(RendezvousRecord, ATableOfAnotherFormatIsRefused) {
  Table mixed = table();
  std::string bytes = mixed.encode();
  const std::size_t inner = bytes.rfind("taco-meeting-5");
  ASSERT_NE(inner, 0u);
  bytes[inner + 13] = '6';
  EXPECT_FALSE(Table::decode(bytes).ok());
}

TEST(RendezvousRecord, SettingsAreComparedInFullWhereverTheyComeFrom) {
  const Hello ours = hello("a", 0);
  Hello theirs = hello("b", 0);
  theirs.settings[0] = {"Options.algorithm", "auto"};
  EXPECT_TRUE(compare(0, ours, 3, theirs).ok()) << "said in another way";
  for (const char* algorithm : {"ring", "aut", "auto ", "all_reduce=ring, broadcast=binomial"}) {
    theirs.settings[0].value = algorithm;
    const Status status = compare(0, ours, 3, theirs);
    EXPECT_EQ(status.code(), Code::kVersionMismatch) << algorithm;
    EXPECT_EQ(status.message(),
              std::string("settings differ: rank 0 has TACO_ALGORITHM=auto, rank 3 has "
                          "Options.algorithm=") +
                  algorithm + ". All ranks need the same.");
  }
  theirs.settings.pop_back();
  EXPECT_FALSE(compare(0, ours, 3, theirs).ok()) << "not said at all";
}

TEST(RendezvousRecord, RanksThatCameWithOneStackAreNamed) {
  std::vector<Hello> ranks(4, hello("a", 0));
  for (int rank = 0; rank < 4; ++rank) ranks[rank].address = "address " + std::to_string(rank);
  EXPECT_TRUE(check_distinct(ranks).ok());
  ranks[3].address = ranks[1].address;
  const Status status = check_distinct(ranks);
  EXPECT_EQ(status.code(), Code::kRendezvous);
  EXPECT_NE(status.message().find("ranks 1 and 3"), std::string::npos) << status.message();
}

TEST(RendezvousRecord, ListsOfRanksReadAloud) {
  EXPECT_EQ(list_of_ranks({4}), "4");
  EXPECT_EQ(list_of_ranks({1, 4, 7}), "1, 4 and 7");
  std::vector<int> many(20);
  for (int i = 0; i < 20; ++i) many[i] = i;
  EXPECT_EQ(list_of_ranks(many), "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 8 more");
}

TEST(RendezvousRecord, AShortTimeIsToldInMilliseconds) {
  EXPECT_EQ(describe_duration(10 * kMillisecond), "10 ms");
  EXPECT_EQ(describe_duration(999 * kMillisecond), "999 ms");
  EXPECT_EQ(describe_duration(kSecond), "1.0 s");
  EXPECT_EQ(describe_duration(20 * kSecond + 340 * kMillisecond), "20.3 s");
}

}  // namespace
}  // namespace taco::edge
