// The job's key in a file: what is accepted, and what is said about what is not.
#include "harp/key_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "support/temporary_directory.h"

namespace taco::harp {
namespace {

class KeyFile : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& content, mode_t mode = 0600) {
    const std::string path = folder / name;
    std::ofstream(path, std::ios::binary) << content;
    EXPECT_EQ(chmod(path.c_str(), mode), 0);
    return path;
  }
  // The error names the variable, the file and `what`.
  void expect_refused(const std::string& path, const std::string& what) {
    const Status status = read_key_file(path).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << path;
    EXPECT_NE(status.message().find("TACO_HARP_KEY_FILE=\"" + path + "\""), std::string::npos)
        << status.message();
    EXPECT_NE(status.message().find(what), std::string::npos) << status.message();
  }
  const testing::TemporaryDirectory folder;
};

TEST_F(KeyFile, KeysOfSixteenTo4096BytesAreTaken) {
  for (const std::size_t bytes : {16ul, 32ul, 4096ul}) {
    const auto key = read_key_file(write("good", std::string(bytes, '\0')));
    ASSERT_TRUE(key.ok()) << key.status().message();
  }
  expect_refused(write("short", std::string(15, 'k')), "holds 15 bytes, but a key has 16 to 4096");
  expect_refused(write("long", std::string(4097, 'k')), "holds more than 4096 bytes");
  expect_refused(write("empty", ""), "holds 0 bytes");
  EXPECT_TRUE(read_key_file(write("private", std::string(16, 'k'), 0400)).ok());
}

TEST_F(KeyFile, TheContentIsTheKey) {
  const Digest one = read_key_file(write("one", std::string(20, 'k'))).value();
  EXPECT_EQ(read_key_file(write("same", std::string(20, 'k'))).value(), one);
  const Digest other = read_key_file(write("other", std::string(19, 'k') + "l")).value();
  EXPECT_NE(other, one);
  EXPECT_NE(fingerprint(other), fingerprint(one));
  EXPECT_EQ(fingerprint(one), fingerprint(one));
  EXPECT_EQ(fingerprint(one).size(), 8u);
}

TEST_F(KeyFile, OthersMayNotTouchIt) {
  for (const mode_t mode : {0640, 0604, 0610, 0602, 0666, 0601}) {
    const std::string path = write("open", std::string(32, 'k'), mode);
    char text[8];
    std::snprintf(text, sizeof text, "%04o", mode);
    expect_refused(path, std::string("has mode ") + text);
    expect_refused(path, "chmod 600 " + path);
  }
}

TEST_F(KeyFile, MustBeARegularFileThatCanBeRead) {
  expect_refused(folder.path(), "is not a regular file");
  const std::string none = folder / "none";
  expect_refused(none, "cannot be opened: No such file or directory; make one key and copy it to");
  expect_refused(none, "(umask 077; head -c 32 /dev/urandom > " + none + ")");
  const std::string fifo = folder / "fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  expect_refused(fifo, "is not a regular file");
  expect_refused("/dev/zero", "is not a regular file");
}

TEST_F(KeyFile, MustBelongToThisUserOrToRoot) {
  if (geteuid() != 0) GTEST_SKIP() << "only root gives files away";
  const std::string path = write("theirs", std::string(32, 'k'));
  ASSERT_EQ(chown(path.c_str(), 12345, 12345), 0);
  expect_refused(path, "belongs to user 12345, not to this one (0) or to root: chown it");
}

}  // namespace
}  // namespace taco::harp
