#include "base/file.h"

#include <errno.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <thread>

namespace taco {
namespace {

class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& text) {
    std::ofstream file(path_);
    EXPECT_TRUE(file << text << std::flush) << path_;
  }
  ~TemporaryFile() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  const std::string path_ = ::testing::TempDir() + "taco-file-test-" + std::to_string(getpid());
};

TEST(ReadFile, GivesAllOfItHoweverManyReadsThatTakes) {
  std::string text;
  for (int line = 0; line < 5000; ++line) text += "line " + std::to_string(line) + "\n";
  const TemporaryFile file(text);
  EXPECT_EQ(read_file(file.path(), text.size()), text);
}

TEST(ReadFile, GivesNothingOfOneTooLong) {
  const TemporaryFile file("four");
  EXPECT_EQ(read_file(file.path(), 3), "");
}

TEST(ReadFile, GivesNothingOfWhatCannotBeRead) {
  EXPECT_EQ(read_file("/nowhere/at/all"), "");
  EXPECT_EQ(read_file("/proc/self"), "");               // a directory
  EXPECT_EQ(read_file("/sys/class/net/lo/speed"), "");  // no such attribute of this device
}

TEST(WriteFile, IsForThisUserAloneAndReplacesWhatWasThere) {
  const TemporaryFile file("an older and longer text");
  ASSERT_TRUE(write_file(file.path(), "said"));
  EXPECT_EQ(read_file(file.path()), "said");
  struct stat about {};
  ASSERT_EQ(stat(file.path().c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0600u);
  EXPECT_NE(access((file.path() + ".part").c_str(), F_OK), 0);
}

TEST(WriteFile, SaysWhyItCannot) {
  EXPECT_FALSE(write_file("/nowhere/at/all", "said"));
  EXPECT_EQ(errno, ENOENT);
}

TEST(AwaitFile, TakesWhatComesLater) {
  const TemporaryFile file("");
  EXPECT_EQ(await_file(file.path(), monotonic_now() + kMillisecond), "");
  std::thread other([&] { EXPECT_TRUE(write_file(file.path(), "said")); });
  EXPECT_EQ(await_file(file.path(), kNever), "said");
  other.join();
}

}  // namespace
}  // namespace taco
