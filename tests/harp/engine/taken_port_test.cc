// A program of its own: a process reads TACO_PORT once, when the first Stack is made.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "harp/engine/stack.h"

namespace taco::harp {
namespace {

TEST(TakenPort, IsNamedWithItsVariableWhereNoneBehindItIsFree) {
  const int taken = socket(AF_INET, SOCK_DGRAM, 0);
  sockaddr_in last{};
  last.sin_family = AF_INET;
  last.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  last.sin_port = htons(65'535);
  // Where somebody else has it already, it is taken just as well.
  static_cast<void>(bind(taken, reinterpret_cast<const sockaddr*>(&last), sizeof last));
  setenv("TACO_PORT", "65535", 1);
  StackOptions local;
  local.interfaces = {"lo"};
  const Status made = Stack::acquire(local).status();
  EXPECT_EQ(made.code(), Code::kResource);
  EXPECT_NE(made.message().find("TACO_PORT=65535: no port from there to 65535 could be opened"),
            std::string::npos)
      << made.message();
  close(taken);
}

}  // namespace
}  // namespace taco::harp
