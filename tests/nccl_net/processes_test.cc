// How the processes of a check may end, by scripts that play them.
#include "ext/nccl/check/processes.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <string>

#include "support/temporary_directory.h"

namespace {

using harp::nccl::check::Check;

// The objection to a process that is to end itself by SIGKILL, and does what the script says.
std::string said_against(const std::string& script, taco::Duration time = 10 * taco::kSecond) {
  const ::taco::testing::TemporaryDirectory folder;
  const std::string program = folder.path() + "/program";
  std::ofstream(program) << "#!/bin/sh\n" << script << "\n";
  EXPECT_EQ(chmod(program.c_str(), 0700), 0);
  const Check check{.name = "killed", .demand = "", .processes = 1, .run = nullptr, .killed = 0};
  const taco::Duration limit = time - 5 * taco::kSecond;  // see run()
  return run(check, {.program = program, .plugin = "", .limit = limit});
}

TEST(CheckProcesses, that_are_to_be_killed_do_it_themselves) {
  EXPECT_EQ(said_against("kill -KILL $$"), "");
  EXPECT_EQ(said_against("exit 0"), "process 0: went on living");
  EXPECT_EQ(said_against("kill -SEGV $$"), "process 0: ended by signal Segmentation fault");
  EXPECT_EQ(said_against("exec sleep 60", taco::kSecond), "process 0: did not end in time");
}

}  // namespace
