#include "support/faulty_files.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace taco::testing {

using zerocache::Caching;
using zerocache::File;
using zerocache::OpenMode;
using Kind = FileCall::Kind;

namespace {

class FaultyFile : public File {
 public:
  FaultyFile(std::unique_ptr<File> file, const FaultyFiles::Fault& fault)
      : File(file->path()), file_(std::move(file)), fault_(fault) {}

  ssize_t read_at(std::byte* to, std::size_t bytes, std::uint64_t offset) override {
    const ssize_t limit = fault_({Kind::kRead, path(), offset, bytes});
    if (limit < 0) return limit;
    return file_->read_at(to, shortened(bytes, limit), offset);
  }
  ssize_t write_at(const std::byte* from, std::size_t bytes, std::uint64_t offset) override {
    const ssize_t limit = fault_({Kind::kWrite, path(), offset, bytes});
    if (limit < 0) return limit;
    return file_->write_at(from, shortened(bytes, limit), offset);
  }
  Result<std::uint64_t> size() override { return file_->size(); }
  Status reserve(std::uint64_t bytes) override {
    const ssize_t error = fault_({Kind::kReserve, path(), 0, bytes});
    if (error < 0) return zerocache::system_error(static_cast<int>(-error), path());
    return file_->reserve(bytes);
  }
  Status sync() override {
    const ssize_t error = fault_({Kind::kSync, path()});
    if (error < 0) return zerocache::system_error(static_cast<int>(-error), "fsync of " + path());
    return file_->sync();
  }

 private:
  static std::size_t shortened(std::size_t bytes, ssize_t limit) {
    return limit == 0 ? bytes : std::min(bytes, static_cast<std::size_t>(limit));
  }
  const std::unique_ptr<File> file_;
  const FaultyFiles::Fault& fault_;
};

}  // namespace

Status FaultyFiles::fail_if_asked(const FileCall& call) const {
  const ssize_t error = fault_(call);
  if (error >= 0) return {};
  return zerocache::system_error(static_cast<int>(-error), call.path);
}

Result<std::unique_ptr<File>> FaultyFiles::open(const std::string& path, OpenMode mode,
                                                Caching caching) {
  TACO_RETURN_IF_ERROR(fail_if_asked({Kind::kOpen, path}));
  auto file = real_.open(path, mode, caching);
  if (!file.ok()) return file;
  return std::unique_ptr<File>(new FaultyFile(std::move(file).value(), fault_));
}

Status FaultyFiles::make_directory(const std::string& path) {
  TACO_RETURN_IF_ERROR(fail_if_asked({Kind::kMakeDirectory, path}));
  return real_.make_directory(path);
}

Status FaultyFiles::rename(const std::string& from, const std::string& to) {
  TACO_RETURN_IF_ERROR(fail_if_asked({Kind::kRename, to}));
  return real_.rename(from, to);
}

Status FaultyFiles::remove(const std::string& path) {
  TACO_RETURN_IF_ERROR(fail_if_asked({Kind::kRemove, path}));
  return real_.remove(path);
}

Status FaultyFiles::sync_directory(const std::string& path) {
  TACO_RETURN_IF_ERROR(fail_if_asked({Kind::kSyncDirectory, path}));
  return real_.sync_directory(path);
}

namespace {

bool worked(bool result, const char* what) {
  EXPECT_TRUE(result) << what << ": " << std::strerror(errno);
  return result;
}

bool write_text(const char* path, const std::string& text) {
  return static_cast<bool>(std::ofstream(path) << text << std::flush);
}

// An ordinary user may mount in a user namespace, as whose root it passes.
bool own_mounts() {
  if (unshare(CLONE_NEWNS) == 0) return true;
  const std::string uid = std::to_string(getuid()), gid = std::to_string(getgid());
  return unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 && write_text("/proc/self/setgroups", "deny") &&
         write_text("/proc/self/uid_map", "0 " + uid + " 1") &&
         write_text("/proc/self/gid_map", "0 " + gid + " 1");
}

}  // namespace

bool mount_small_disk(const std::string& path, std::size_t bytes) {
  const std::string options = "size=" + std::to_string(bytes);
  return worked(own_mounts(), "mounts of one's own") &&
         worked(mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0, "private mounts") &&
         worked(mount("tmpfs", path.c_str(), "tmpfs", 0, options.c_str()) == 0, "tmpfs");
}

bool make_read_only(const std::string& path) {
  const int flags = MS_REMOUNT | MS_RDONLY;
  return worked(mount("tmpfs", path.c_str(), "tmpfs", flags, nullptr) == 0, "read-only");
}

}  // namespace taco::testing
