// The settings of a host: what a file may hold, what is refused by line, and who may write it.
#include "base/conf_file.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "base/env.h"
#include "support/temporary_directory.h"

namespace taco {
namespace {

TEST(ConfFile, holds_keys_and_values_in_their_order) {
  const auto lines = parse_conf(
      "# a comment\n\nversion = 1\r\n  paths=4\nsocket_buffer =\t8388608\n"
      "interfaces = eth0,eth1",
      "a.conf");
  ASSERT_TRUE(lines.ok()) << lines.status().message();
  EXPECT_EQ(lines.value(), (ConfLines{{"version", "1"},
                                      {"paths", "4"},
                                      {"socket_buffer", "8388608"},
                                      {"interfaces", "eth0,eth1"}}));
  const auto again = parse_conf(conf_text(lines.value()), "b.conf");
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again.value(), lines.value());
}

TEST(ConfFile, names_the_line_of_what_is_wrong_and_what_to_do) {
  const struct {
    const char *text, *said;
  } cases[] = {
      {"", "a.conf: it has no version: run harp-setup again"},
      {"# nothing\n", "a.conf: it has no version"},
      {"paths = 4\n", "a.conf, line 1: the first key must be version"},
      {"version = 2\n",
       "a.conf, line 1: it is of version \"2\", and this taco_torch reads version 1"},
      {"version = 1\npats = 4\n", "line 2: the key \"pats\" is not known; did you mean paths?"},
      {"version = 1\n\npaths = 9\n", "line 3: paths is \"9\", but must be auto or an integer"},
      {"version = 1\npaths =\n", "line 2: paths is \"\", but must be"},
      {"version = 1\npaths = 2\npaths = 2\n", "line 3: the key \"paths\" stands there twice"},
      {"version = 1\npaths 2\n", "line 2: \"paths 2\" is no \"key = value\""},
      {"version = 1\nlog = debug\n", "line 2: the key \"log\" is not known"},
  };
  for (const auto& each : cases) {
    const auto lines = parse_conf(each.text, "a.conf");
    EXPECT_EQ(lines.status().code(), Code::kInvalidArgument) << each.text;
    EXPECT_NE(lines.status().message().find(each.said), std::string::npos)
        << lines.status().message();
  }
}

TEST(ConfFile, has_a_value_of_the_environment_behind_every_key) {
  for (const ConfKey& each : conf_keys()) {
    const auto rows = Env::table();
    EXPECT_TRUE(std::any_of(rows.begin(), rows.end(), [&](const Env::Row& row) {
      return row.name == each.variable;
    })) << each.key;
  }
}

// A folder of its own, and a child in which the environment has not been parsed yet.
class ConfOfProcess : public ::testing::Test {
 protected:
  void write(const std::string& text, mode_t mode = 0644) {
    std::ofstream(place_) << text;
    chmod(place_.c_str(), mode);
  }
  template <class Body>
  void in_child(const Body& body) {
    const pid_t child = fork();
    if (child == 0) {
      setenv("TACO_HARP_CONF", place_.c_str(), 1);
      body();
      _exit(HasFailure() ? 1 : 0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  const testing::TemporaryDirectory folder_;
  const std::string place_ = folder_ / "harp.conf";
};

TEST_F(ConfOfProcess, holds_where_the_environment_says_nothing_else) {
  write("version = 1\npaths = 4\nport = 18600\n");
  in_child([] {
    setenv("TACO_PATHS", "2", 1);
    const auto env = Env::get();
    ASSERT_TRUE(env.ok()) << env.status().message();
    EXPECT_EQ(env.value().paths, 2);
    EXPECT_EQ(env.value().port, 18600);
    for (const Env::Row& row : Env::table()) {
      EXPECT_TRUE(row.name != "TACO_PORT" || row.value == "18600") << row.value;
      EXPECT_TRUE(row.name != "TACO_PATHS" || row.value == "2") << row.value;
    }
  });
}

// A value may be well formed and wrong all the same, as a driver that there is not.
TEST_F(ConfOfProcess, is_named_by_line_and_key_where_it_says_what_is_wrong) {
  write("version = 1\n# soon\n driver= pigeon\n");
  in_child([&] {
    EXPECT_EQ(conf_origin("TACO_HARP_DRIVER", "pigeon"), " (driver, line 3 of " + place_ + ")");
    EXPECT_EQ(conf_origin("TACO_HARP_DRIVER", ""), " (driver, line 3 of " + place_ + ")");
    EXPECT_EQ(conf_origin("TACO_HARP_DRIVER", "udp"), "") << "a program's own choice";
    EXPECT_EQ(conf_origin("TACO_PORT", "1"), "");
    EXPECT_EQ(conf_origin("TACO_LOG", "x"), "");
    setenv("TACO_HARP_DRIVER", "pigeon", 1);
    EXPECT_EQ(conf_origin("TACO_HARP_DRIVER", "pigeon"), "");
  });
}

TEST_F(ConfOfProcess, is_an_error_where_it_is_wrong_missing_or_anybodys_to_write) {
  in_child([&] {
    EXPECT_NE(Env::get().status().message().find(place_ + " (TACO_HARP_CONF) cannot be read"),
              std::string::npos);
  });
  write("version = 1\npaths = many\n");
  in_child([&] {
    EXPECT_NE(Env::get().status().message().find(place_ + ", line 2: paths is \"many\""),
              std::string::npos);
  });
  write("version = 1\n", 0666);
  in_child([&] {
    EXPECT_NE(Env::get().status().message().find("may be written by others"), std::string::npos);
  });
  in_child([] {
    setenv("TACO_HARP_CONF", "none", 1);
    EXPECT_TRUE(Env::get().ok());
  });
}

}  // namespace
}  // namespace taco
