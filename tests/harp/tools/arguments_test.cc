// Arguments of commands: every mistake is named with what to do.
#include "harp/tools/arguments.h"

#include <gtest/gtest.h>

namespace taco::harp {
namespace {

struct Taken {
  bool json = false;
  std::int64_t rounds = 1;
  double seconds = 1;
  std::size_t bytes = 0;
  std::string way = "auto", host;
  std::vector<std::string> others;

  std::vector<Option> options() {
    return {{"--json", "", "For machines.", set_flag(json)},
            {"--rounds", "N", "How many.", set_integer(rounds, 1, 100)},
            {"--seconds", "S", "How long.", set_number(seconds, 0.1, 60)},
            {"--bytes", "SIZE", "How large.", set_bytes(bytes, 1, std::size_t{1} << 30)},
            {"--way", "NAME", "By what.", set_choice(way, {"auto", "shm", "udp"})},
            {"--host", "NAME", "Where.", set_text(host)}};
  }
  Status take(const std::vector<std::string>& arguments) {
    return take_arguments(arguments, options(), [&](const std::string& other) {
      others.push_back(other);
      return Status();
    });
  }
};

TEST(Arguments, are_taken_in_either_spelling) {
  Taken taken;
  const Status status = taken.take({"a", "--json", "--rounds", "7", "--bytes=3M", "--way=udp", "b",
                                    "--seconds", "0.5", "--host", "nodeb"});
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(taken.json);
  EXPECT_EQ(taken.rounds, 7);
  EXPECT_EQ(taken.bytes, std::size_t{3} << 20);
  EXPECT_EQ(taken.seconds, 0.5);
  EXPECT_EQ(taken.way, "udp");
  EXPECT_EQ(taken.host, "nodeb");
  EXPECT_EQ(taken.others, (std::vector<std::string>{"a", "b"}));
}

TEST(Arguments, that_are_wrong_are_named_with_their_value_and_what_they_must_be) {
  const struct {
    std::vector<std::string> arguments;
    const char* said;
  } cases[] = {
      {{"--round", "7"}, "--round is unknown; did you mean --rounds?"},
      {{"--rounds"}, "--rounds needs a value: --rounds N"},
      {{"--rounds", "x"}, "--rounds x: must be an integer from 1 to 100"},
      {{"--rounds", "101"}, "--rounds 101: must be an integer from 1 to 100"},
      {{"--rounds=7 "}, "--rounds 7 : must be an integer"},
      {{"--seconds", "nan"}, "--seconds nan: must be a number from 0.1 to 60"},
      {{"--bytes", "2G"}, "--bytes 2G: must be bytes from 1 to 1073741824"},
      {{"--bytes", "99999999999999999999"}, "--bytes 99999999999999999999: must be bytes"},
      {{"--bytes", "K"}, "--bytes K: must be bytes"},
      {{"--bytes", ""}, "--bytes : must be bytes"},
      {{"--way", "tcp"}, "--way tcp: must be one of auto, shm, udp"},
      {{"--json=yes"}, "--json takes no value"},
  };
  for (const auto& each : cases) {
    const Status status = Taken().take(each.arguments);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << each.said;
    EXPECT_NE(status.message().find(each.said), std::string::npos) << status.message();
  }
}

TEST(Arguments, all_stand_in_the_help_that_fits_a_terminal) {
  Taken taken;
  const std::string help = help_of(taken.options());
  for (const Option& option : taken.options()) {
    EXPECT_NE(help.find("  " + option.name), std::string::npos);
    EXPECT_NE(help.find(option.help), std::string::npos);
  }
}

}  // namespace
}  // namespace taco::harp
