#include "zerocache/disk/file_system.h"

#include <errno.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "zerocache/disk/io_transfer.h"

namespace taco::zerocache {
namespace {

// Less than what the kernel takes in one call, and than what a request can hold.
constexpr std::size_t kMaxAtOnce = std::size_t{256} << 20;

Status transfer_fully(File& file, IoRequest::Kind kind, std::byte* memory, std::size_t bytes,
                      std::uint64_t offset) {
  while (bytes > 0) {
    IoRequest request;
    request.kind = kind;
    request.offset = offset;
    request.memory = memory;
    request.bytes = static_cast<std::uint32_t>(std::min(bytes, kMaxAtOnce));
    // An aligned request may be a direct read or write, which has to stay aligned.
    const bool is_aligned = offset % kIoAlignment == 0 && request.bytes % kIoAlignment == 0;
    TACO_RETURN_IF_ERROR(carry_out(file, request, is_aligned ? kIoAlignment : 1));
    memory += request.bytes;
    bytes -= request.bytes;
    offset += request.bytes;
  }
  return {};
}

}  // namespace

std::string folder_of(const std::string& path) {
  const std::size_t end = path.find_last_not_of('/');
  const std::size_t slash = path.rfind('/', end);
  if (slash == std::string::npos) return ".";
  const std::size_t last = path.find_last_not_of('/', slash);
  return last == std::string::npos ? "/" : path.substr(0, last + 1);
}

Status read_fully(File& file, std::span<std::byte> bytes, std::uint64_t offset) {
  return transfer_fully(file, IoRequest::Kind::kRead, bytes.data(), bytes.size(), offset);
}

Status write_fully(File& file, std::span<const std::byte> bytes, std::uint64_t offset) {
  // A request's memory is of one type for both kinds; a write does not write to it.
  return transfer_fully(file, IoRequest::Kind::kWrite, const_cast<std::byte*>(bytes.data()),
                        bytes.size(), offset);
}

Status system_error(int error, const std::string& what) {
  const bool misnamed = error == ENOENT || error == ENOTDIR || error == EISDIR || error == EACCES ||
                        error == EPERM || error == EROFS || error == ENAMETOOLONG || error == ELOOP;
  return Status(misnamed ? Code::kInvalidArgument : Code::kResource,
                what + ": " + std::strerror(error));
}

}  // namespace taco::zerocache
