#include "base/mapping.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "base/own_fd.h"

namespace taco {
namespace {

constexpr std::size_t kPage = 4096;

// msync() tells of addresses where nothing is mapped.
bool is_mapped(const std::byte* at) {
  return msync(const_cast<std::byte*>(at), kPage, MS_ASYNC) == 0;
}

OwnFd file_of(std::size_t bytes) {
  OwnFd fd(memfd_create("mapping-test", MFD_CLOEXEC));
  EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  return fd;
}

TEST(Mapping, of_nobody_elses_memory_is_zeroed_and_goes_with_its_owner) {
  const std::byte* at = nullptr;
  {
    auto mapping = Mapping::anonymous(3 * kPage);
    ASSERT_TRUE(mapping.ok()) << mapping.status().message();
    at = mapping->data();
    EXPECT_EQ(mapping->size(), 3 * kPage);
    EXPECT_EQ(at[3 * kPage - 1], std::byte{0});
    std::memset(mapping->data(), 7, mapping->size());
    EXPECT_TRUE(is_mapped(at));
  }
  EXPECT_FALSE(is_mapped(at));
}

TEST(Mapping, has_one_owner_however_it_is_handed_on) {
  Mapping first = std::move(Mapping::anonymous(kPage)).value();
  const std::byte* const at = first.data();
  Mapping second(std::move(first));
  EXPECT_EQ(first.data(), nullptr);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(second.data(), at);
  Mapping third = std::move(Mapping::anonymous(kPage)).value();
  third = std::move(second);
  EXPECT_EQ(third.data(), at);
  EXPECT_TRUE(is_mapped(at));
}

TEST(Mapping, of_a_file_shares_it_from_an_offset_on) {
  OwnFd file = file_of(2 * kPage);
  auto writer = Mapping::of_file(file.get(), kPage, Mapping::Access::kReadWrite, kPage);
  auto reader = Mapping::of_file(file.get(), 2 * kPage, Mapping::Access::kRead);
  ASSERT_TRUE(writer.ok() && reader.ok());
  file.reset();
  writer->data()[5] = std::byte{9};
  EXPECT_EQ(reader->data()[kPage + 5], std::byte{9});
}

TEST(Mapping, is_not_inherited_by_a_forked_child) {
  const Mapping mapping = std::move(Mapping::anonymous(kPage)).value();
  const pid_t child = fork();
  if (child == 0) _exit(is_mapped(mapping.data()) ? 1 : 0);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(Mapping, that_cannot_be_had_is_a_status_with_the_reason) {
  const Status large = Mapping::anonymous(std::size_t{1} << 60).status();
  EXPECT_EQ(large.code(), Code::kResource);
  EXPECT_NE(large.message().find("1152921504606846976 bytes"), std::string::npos);
  EXPECT_NE(large.message().find("Cannot allocate memory"), std::string::npos);
  const Status closed = Mapping::of_file(-1, kPage, Mapping::Access::kRead).status();
  EXPECT_NE(closed.message().find("Bad file descriptor"), std::string::npos);
}

}  // namespace
}  // namespace taco
