#include "base/file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <string>

namespace taco {
namespace {

class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& text) {
    const int fd = mkstemp(path_);
    EXPECT_EQ(write(fd, text.data(), text.size()), static_cast<ssize_t>(text.size()));
    close(fd);
  }
  ~TemporaryFile() { std::remove(path_); }
  const char* path() const { return path_; }

 private:
  char path_[32] = "/tmp/taco-file-test-XXXXXX";
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

}  // namespace
}  // namespace taco
