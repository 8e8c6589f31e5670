#include "base/names.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <string>

namespace taco {
namespace {

constexpr std::array<std::string_view, 4> kKnown = {"auto", "ring", "direct", "rabenseifner"};

TEST(Names, a_list_has_commas_between_its_names) {
  std::string list;
  append_name(list, "ring");
  EXPECT_EQ(list, "ring");
  append_name(list, "direct");
  EXPECT_EQ(list, "ring, direct");
}

TEST(Names, the_name_with_the_fewest_edits_is_the_nearest) {
  EXPECT_EQ(nearest_name("rign", kKnown), "ring");
  EXPECT_EQ(nearest_name("rabenseiffner", kKnown), "rabenseifner");
  EXPECT_EQ(nearest_name("redirect", kKnown), "direct");
  EXPECT_EQ(nearest_name("auto", kKnown), "auto");
}

TEST(Names, a_name_without_its_end_is_found_by_its_beginning) {
  EXPECT_EQ(nearest_name("rab", kKnown), "rabenseifner");
  EXPECT_EQ(nearest_name("LIGHT_TOPK",
                         std::array<std::string_view, 3>{"LIGHT_AUTO", "LIGHT_TOPK_ALLREDUCE",
                                                         "LIGHT_TOPK_FP16"}),
            "LIGHT_TOPK_ALLREDUCE");
}

TEST(Names, one_that_is_near_to_none_suggests_none) {
  for (const char* name : {"", "x", "gonr", "hierarchical", "tree", "on"}) {
    EXPECT_EQ(nearest_name(name, kKnown), "") << name;
    EXPECT_EQ(suggestion(name, kKnown), "") << name;
  }
  EXPECT_EQ(suggestion("rign", kKnown), "; did you mean ring?");
}

TEST(Names, the_first_of_equals_is_taken_and_nothing_of_nothing) {
  EXPECT_EQ(nearest_name("rong", std::array<std::string_view, 2>{"ring", "rang"}), "ring");
  EXPECT_EQ(nearest_name("ring", {}), "");
}

TEST(Names, WhatATerminalMightObeyIsShownAsAQuestionMark) {
  EXPECT_EQ(printable("rank 0: \xC3\xA9\xE2\x82\xAC\xF0\x9F\x8C\xAE"),
            "rank 0: \xC3\xA9\xE2\x82\xAC\xF0\x9F\x8C\xAE");
  EXPECT_EQ(printable("a\x1B[2J\x7F\n"), "a?[2J??");
  EXPECT_EQ(printable("a\xC2\x9B"
                      "2J"),
            "a?2J")
      << "a command of one character";
  EXPECT_EQ(printable("\xC3"), "?") << "cut within a letter";
  EXPECT_EQ(printable("\xC0\xAF\xED\xA0\x80\xF5"), "??????") << "overlong, a surrogate, too large";
  EXPECT_EQ(printable(""), "");
}

TEST(Names, BytesAreTwoDigitsEach) {
  constexpr std::array<std::byte, 3> kBytes = {std::byte{0x00}, std::byte{0x0f}, std::byte{0xa5}};
  EXPECT_EQ(hex_of(kBytes), "000fa5");
  EXPECT_EQ(hex_of({}), "");
}

}  // namespace
}  // namespace taco
