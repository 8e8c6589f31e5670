// The real file system with faults where a test wants them: calls that fail, transfer in part, or
// are only watched. Test support.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "zerocache/disk/file_system.h"

namespace taco::testing {

// A call about to be made.
struct FileCall {
  enum class Kind : unsigned char {
    kOpen,
    kRead,
    kWrite,
    kReserve,
    kSync,
    kMakeDirectory,
    kRename,
    kRemove,
    kSyncDirectory,
  };
  Kind kind;
  std::string path;
  std::uint64_t offset = 0;
  std::size_t bytes = 0;
};

class FaultyFiles : public zerocache::FileSystem {
 public:
  // Returns 0 to let the call happen, -errno to have it fail, or of how many bytes it shall consist
  // at most (reads and writes). Called on whichever thread makes the call.
  using Fault = std::function<ssize_t(const FileCall&)>;
  explicit FaultyFiles(Fault fault) : fault_(std::move(fault)) {}

  Result<std::unique_ptr<zerocache::File>> open(const std::string& path, zerocache::OpenMode mode,
                                                zerocache::Caching caching) override;
  Status make_directory(const std::string& path) override;
  Status rename(const std::string& from, const std::string& to) override;
  Status remove(const std::string& path) override;
  Status sync_directory(const std::string& path) override;
  Result<std::vector<std::string>> list(const std::string& directory) override {
    return real_.list(directory);
  }
  Result<std::unique_ptr<zerocache::DirectoryLock>> lock(const std::string& directory) override {
    return real_.lock(directory);
  }

 private:
  Status fail_if_asked(const FileCall& call) const;

  const Fault fault_;
  FileSystem& real_ = FileSystem::real();
};

// For a child process of the test (see processes.h): mounts of its own, and a tmpfs of so many
// bytes at `path`, which vanishes with the process. False, with a failure of the test, where the
// kernel does not allow that.
bool mount_small_disk(const std::string& path, std::size_t bytes);
// Makes the file system mounted there read-only from now on.
bool make_read_only(const std::string& path);

}  // namespace taco::testing
