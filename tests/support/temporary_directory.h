// A directory of a test's own. Test support.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>

namespace taco::testing {

// All that is in it is removed at the end.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    EXPECT_NE(mkdtemp(path_.data()), nullptr) << path_ << ": " << std::strerror(errno);
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_ = ::testing::TempDir() + "taco-XXXXXX";
};

}  // namespace taco::testing
