#include "harp/key_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/conf_file.h"
#include "base/descriptors.h"
#include "base/names.h"

namespace taco::harp {
namespace {

constexpr char kFingerprint[] = "taco harp key fingerprint";

class File {
 public:
  // O_NONBLOCK: opening a FIFO must not wait until another process opens it for writing.
  explicit File(const std::string& path)
      : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

Status bad(const std::string& path, const std::string& why) {
  return Status(Code::kInvalidArgument, setting_text("TACO_HARP_KEY_FILE", path) + ": " + why);
}

std::string making(const std::string& path) {
  return "make one key and copy it to every host: (umask 077; head -c 32 /dev/urandom > " + path +
         ")";
}

Status check(const std::string& path, const struct stat& file) {
  if (!S_ISREG(file.st_mode)) return bad(path, "is not a regular file");
  if (file.st_uid != geteuid() && file.st_uid != 0) {
    return bad(path, "belongs to user " + std::to_string(file.st_uid) + ", not to this one (" +
                         std::to_string(geteuid()) + ") or to root: chown it");
  }
  if ((file.st_mode & 077) != 0) {
    char mode[8];
    std::snprintf(mode, sizeof mode, "%04o", file.st_mode & 07777);
    return bad(
        path, std::string("has mode ") + mode + ", so that others may touch it: chmod 600 " + path);
  }
  return {};
}

}  // namespace

Result<Digest> read_key_file(const std::string& path) {
  const File file(path);
  if (file.get() < 0) {
    const std::string advice = errno == ENOENT ? "; " + making(path) : "";
    return bad(path, "cannot be opened: " + system_error_text(errno) + advice);
  }
  struct stat status {};
  if (fstat(file.get(), &status) != 0) {
    return bad(path, std::string("cannot be looked at: ") + strerror(errno));
  }
  TACO_RETURN_IF_ERROR(check(path, status));
  std::array<std::byte, kMaxKeyBytes + 1> bytes;
  std::size_t size = 0;
  while (size < bytes.size()) {
    const ssize_t got = read(file.get(), bytes.data() + size, bytes.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return bad(path, std::string("cannot be read: ") + strerror(errno));
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  if (size < kMinKeyBytes || size > kMaxKeyBytes) {
    return bad(path, "holds " +
                         (size > kMaxKeyBytes ? "more than " + std::to_string(kMaxKeyBytes)
                                              : std::to_string(size)) +
                         " bytes, but a key has " + std::to_string(kMinKeyBytes) + " to " +
                         std::to_string(kMaxKeyBytes) + "; " + making(path));
  }
  return sha256(std::span(bytes).first(size));
}

std::string fingerprint(const Digest& key) {
  const Digest digest = hmac_sha256(key, std::as_bytes(std::span(kFingerprint)));
  return hex_of(std::span(digest).first(4));
}

}  // namespace taco::harp
