// The calls that the page store makes to files and directories, few enough that tests put something
// else in their place: files that fail, transfer in part or claim to be full, and a disk that loses
// power. real() is the operating system's.
//
// Any thread may use a file system and a file; a lock belongs to its process.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace taco::zerocache {

class File {
 public:
  explicit File(std::string path) : path_(std::move(path)) {}
  virtual ~File() = default;
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  const std::string& path() const { return path_; }

  // As pread and pwrite do it, in part too; an error is returned as a negative errno.
  virtual ssize_t read_at(std::byte* to, std::size_t bytes, std::uint64_t offset) = 0;
  virtual ssize_t write_at(const std::byte* from, std::size_t bytes, std::uint64_t offset) = 0;
  virtual Result<std::uint64_t> size() = 0;
  // Makes the file `bytes` long with room for all of it; kResource if the disk has not that much.
  virtual Status reserve(std::uint64_t bytes) = 0;
  // Makes all bytes written so far last, whatever happens to the machine. After a failure nobody
  // knows what is on the disk, and another call would not find out: the file is to be given up.
  virtual Status sync() = 0;
  // False once somebody has removed it: what is written then is lost when it is closed.
  virtual bool has_name() const { return true; }
  // For io_uring; -1: there is none.
  virtual int descriptor() const { return -1; }

 private:
  const std::string path_;
};

// Held until destroyed.
class DirectoryLock {
 public:
  DirectoryLock() = default;
  virtual ~DirectoryLock() = default;
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;
};

enum class OpenMode : unsigned char {
  kRead,    // what exists, to be read only
  kCreate,  // what does not exist yet, to be read and written
};
enum class Caching : unsigned char {
  kKernel,  // through the page cache
  // Past it where the file system can (O_DIRECT): memory, lengths and places must be aligned.
  kDirect,
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  static FileSystem& real();

  virtual Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode,
                                             Caching caching) = 0;
  // Success if there is one already.
  virtual Status make_directory(const std::string& path) = 0;
  // Replaces what `to` names, at once: whoever looks sees the old file or the new one.
  virtual Status rename(const std::string& from, const std::string& to) = 0;
  virtual Status remove(const std::string& path) = 0;  // a file; success if there is none
  // The names that were made, renamed and removed in a directory last.
  virtual Status sync_directory(const std::string& path) = 0;
  virtual Result<std::vector<std::string>> list(const std::string& directory) = 0;  // names, sorted
  // Keeps other processes, and other locks of this one, out of a directory. kInvalidArgument names
  // the process that holds it.
  virtual Result<std::unique_ptr<DirectoryLock>> lock(const std::string& directory) = 0;
};

// The folder that holds `path`: "." if it names none.
std::string folder_of(const std::string& path);

// All of it, however many calls that takes. kResource names the file, the place and the reason.
Status read_fully(File& file, std::span<std::byte> bytes, std::uint64_t offset);
Status write_fully(File& file, std::span<const std::byte> bytes, std::uint64_t offset);

// kResource, or kInvalidArgument for what the caller named wrongly: "<what>: <the kernel's words>".
Status system_error(int error, const std::string& what);

}  // namespace taco::zerocache
