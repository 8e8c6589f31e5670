#include "ext/nccl/handle.h"

#include <gtest/gtest.h>

#include <string>

namespace harp::nccl {
namespace {

TEST(Handle, is_known_by_its_version_and_holds_the_ticket) {
  const std::string ticket(Listener::kTicketBytes, 't');
  const Handle handle = handle_for(ticket);
  EXPECT_TRUE(check(handle).ok());
  EXPECT_EQ(std::string(handle.ticket.data(), handle.ticket.size()), ticket);
  EXPECT_EQ(handle.dialer, 0u);
}

TEST(Handle, is_read_and_written_at_any_address) {
  std::string bytes(abi::kHandleBytes + 3, '\0');
  Handle handle = handle_for(std::string(Listener::kTicketBytes, 't'));
  handle.dialer = 7;
  write_handle(handle, bytes.data() + 3);
  EXPECT_EQ(read_handle(bytes.data() + 3).dialer, 7u);
}

TEST(Handle, of_another_network_is_refused_with_what_to_do) {
  const std::string bytes(abi::kHandleBytes, '\x02');
  const Status refused = check(read_handle(bytes.data()));
  EXPECT_EQ(refused.code(), taco::Code::kInvalidArgument);
  EXPECT_NE(refused.message().find("NCCL_NET=HARP"), std::string::npos) << refused.message();
}

TEST(Handle, of_another_version_is_refused_with_what_to_do) {
  Handle handle = handle_for("");
  handle.version = 9;
  const Status refused = check(handle);
  EXPECT_EQ(refused.code(), taco::Code::kVersionMismatch);
  EXPECT_NE(refused.message().find("version 9"), std::string::npos) << refused.message();
}

}  // namespace
}  // namespace harp::nccl
