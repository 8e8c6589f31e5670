// FileSystem::real(): files and directories of the operating system.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/file.h"
#include "base/fork.h"
#include "base/log.h"
#include "zerocache/disk/file_system.h"

namespace taco::zerocache {
namespace {

constexpr char kLockName[] = "taco-zerocache.lock";

// A descriptor that forked children do not keep.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd), generation_((close_on_fork(fd), fork_generation())) {}
  // In a forked child it is closed already, and its number may be something else's.
  ~Descriptor() {
    if (is_ours()) close_now(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  bool is_ours() const { return generation_ == fork_generation(); }
  int get() const { return fd_; }

 private:
  const int fd_;
  const std::uint32_t generation_;
};

class RealFile : public File {
 public:
  RealFile(const std::string& path, int fd) : File(path), descriptor_(fd) {}

  ssize_t read_at(std::byte* to, std::size_t bytes, std::uint64_t offset) override {
    const ssize_t result = pread(descriptor_.get(), to, bytes, static_cast<off_t>(offset));
    return result < 0 ? -errno : result;
  }
  ssize_t write_at(const std::byte* from, std::size_t bytes, std::uint64_t offset) override {
    const ssize_t result = pwrite(descriptor_.get(), from, bytes, static_cast<off_t>(offset));
    return result < 0 ? -errno : result;
  }
  Result<std::uint64_t> size() override {
    struct stat facts;
    if (fstat(descriptor_.get(), &facts) != 0) return system_error(errno, "size of " + path());
    return static_cast<std::uint64_t>(facts.st_size);
  }
  Status reserve(std::uint64_t bytes) override;
  Status sync() override {
    if (fsync(descriptor_.get()) != 0) return system_error(errno, "fsync of " + path());
    return {};
  }
  bool has_name() const override {
    struct stat facts;
    return fstat(descriptor_.get(), &facts) != 0 || facts.st_nlink > 0;
  }
  int descriptor() const override { return descriptor_.get(); }

 private:
  const Descriptor descriptor_;
};

Status RealFile::reserve(std::uint64_t bytes) {
  int error = 0;
  do {
    error = fallocate(descriptor_.get(), 0, 0, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  } while (error == EINTR);
  if (error == EOPNOTSUPP) {
    TACO_LOG_WARNING("zerocache",
                     "%s: this file system cannot set room aside; if the disk fills up, writes of "
                     "pages will fail later",
                     path().c_str());
    error = ftruncate(descriptor_.get(), static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  }
  if (error == 0) return {};
  return system_error(error, "setting " + std::to_string(bytes) + " bytes aside for " + path());
}

// Whether the open file is the one of this name.
bool is_named(int fd, const std::string& path) {
  struct stat named, held;
  return fstat(fd, &held) == 0 && stat(path.c_str(), &named) == 0 && named.st_ino == held.st_ino &&
         named.st_dev == held.st_dev;
}

// The file stays under its name while it is locked. A process that finds it locked reads in it by
// whom.
class RealLock : public DirectoryLock {
 public:
  RealLock(std::string path, int fd) : path_(std::move(path)), descriptor_(fd) {}
  ~RealLock() override {
    // If the directory was removed and made anew, the name there may be somebody else's lock.
    if (descriptor_.is_ours() && is_named(descriptor_.get(), path_)) unlink(path_.c_str());
  }

 private:
  const std::string path_;
  const Descriptor descriptor_;
};

Status held_by_another(const std::string& directory, const std::string& path) {
  const std::string text = read_file(path, 64);
  const long pid = strtol(text.c_str(), nullptr, 10);
  std::string holder = "another process";
  if (pid == getpid()) {
    holder = "this process (" + std::to_string(pid) + ") already";
  } else if (pid > 0) {
    std::string name = read_file("/proc/" + std::to_string(pid) + "/comm", 64);
    name.erase(std::remove(name.begin(), name.end(), '\n'), name.end());
    holder = "process " + std::to_string(pid) + (name.empty() ? "" : " (" + name + ")");
  }
  return Status(Code::kInvalidArgument, "directory " + directory + " is in use by " + holder +
                                            ": give each process a directory of its own");
}

class RealFileSystem : public FileSystem {
 public:
  Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode,
                                     Caching caching) override {
    const int access = mode == OpenMode::kRead ? O_RDONLY : O_RDWR | O_CREAT | O_EXCL;
    const int direct = caching == Caching::kDirect ? O_DIRECT : 0;
    int fd = ::open(path.c_str(), access | direct | O_CLOEXEC, 0666);
    if (fd < 0 && errno == EINVAL && direct != 0) {
      // Linux has made the file by the time it finds that it cannot be opened so.
      fd = ::open(path.c_str(), (access & ~O_EXCL) | O_CLOEXEC, 0666);
      if (fd >= 0) {
        TACO_LOG_INFO("zerocache",
                      "%s: this file system knows no direct I/O; pages pass through the kernel's "
                      "page cache, which takes memory beside the cache's own",
                      path.c_str());
      }
    }
    if (fd < 0) {
      return system_error(errno, (mode == OpenMode::kRead ? "opening " : "making ") + path);
    }
    return std::unique_ptr<File>(new RealFile(path, fd));
  }

  Status make_directory(const std::string& path) override {
    if (mkdir(path.c_str(), 0777) == 0) return {};
    const int error = errno;
    struct stat facts;
    if (error == EEXIST && stat(path.c_str(), &facts) == 0 && S_ISDIR(facts.st_mode)) return {};
    return system_error(error == EEXIST ? ENOTDIR : error, "making directory " + path);
  }

  Status rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) == 0) return {};
    return system_error(errno, "renaming " + from + " to " + to);
  }

  Status remove(const std::string& path) override {
    if (unlink(path.c_str()) == 0 || errno == ENOENT) return {};
    return system_error(errno, "removing " + path);
  }

  Status sync_directory(const std::string& path) override {
    const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return system_error(errno, "opening directory " + path);
    const int error = fsync(fd) == 0 ? 0 : errno;
    close(fd);
    if (error != 0) return system_error(error, "fsync of directory " + path);
    return {};
  }

  Result<std::vector<std::string>> list(const std::string& directory) override {
    DIR* const folder = opendir(directory.c_str());
    if (folder == nullptr) return system_error(errno, "opening directory " + directory);
    std::vector<std::string> names;
    while (const dirent* entry = readdir(folder)) {
      const std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(name);
    }
    closedir(folder);
    std::sort(names.begin(), names.end());
    return names;
  }

  Result<std::unique_ptr<DirectoryLock>> lock(const std::string& directory) override {
    const std::string path = directory + "/" + kLockName;
    while (true) {
      const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
      if (fd < 0) return system_error(errno, "making " + path);
      if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        const int error = errno;
        close(fd);
        if (error == EWOULDBLOCK) return held_by_another(directory, path);
        if (error == EINTR) continue;
        return system_error(error, "locking " + path);
      }
      // Its holder before may have removed it between the two calls: then it is nobody's lock.
      if (!is_named(fd, path)) {
        close(fd);
        continue;
      }
      const std::string pid = std::to_string(getpid()) + "\n";
      if (ftruncate(fd, 0) != 0 || pwrite(fd, pid.data(), pid.size(), 0) < 0) {
        TACO_LOG_INFO("zerocache", "%s: cannot write who holds it", path.c_str());
      }
      return std::unique_ptr<DirectoryLock>(new RealLock(path, fd));
    }
  }
};

}  // namespace

FileSystem& FileSystem::real() {
  static RealFileSystem* const real =
      new RealFileSystem;  // never destroyed: files may outlive main
  return *real;
}

}  // namespace taco::zerocache
