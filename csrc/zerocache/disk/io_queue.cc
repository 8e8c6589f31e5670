#include "zerocache/disk/io_queue.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/log.h"
#include "zerocache/disk/file_system.h"
#include "zerocache/disk/io_engines.h"
#include "zerocache/disk/throttle.h"

namespace taco::zerocache {
namespace {

Result<std::unique_ptr<IoQueue>> open_engine(const IoOptions& options,
                                             const std::vector<File*>& files) {
  using Engine = IoOptions::Engine;
  if (options.engine == Engine::kThreads) return open_thread_queue(options, files);
  const bool has_descriptors = std::all_of(
      files.begin(), files.end(), [](const File* file) { return file->descriptor() >= 0; });
  if (!has_descriptors) {
    if (options.engine == Engine::kAuto) return open_thread_queue(options, files);
    return Status(Code::kInvalidArgument, "io_uring needs files that the kernel knows");
  }
  auto queue = open_uring_queue(options, files);
  if (queue.ok() || options.engine == Engine::kUring) return queue;
  if (queue.status().code() != Code::kUnsupported) return queue;
  TACO_LOG_INFO("zerocache", "%s; pages move by threads that call pread and pwrite instead",
                queue.status().message().c_str());
  return open_thread_queue(options, files);
}

}  // namespace

Result<std::unique_ptr<IoQueue>> open_io_queue(const IoOptions& options,
                                               const std::vector<File*>& files) {
  if (options.depth < 1 || options.depth > kMaxDepth) {
    return Status(Code::kInvalidArgument, "a queue of depth " + std::to_string(options.depth) +
                                              ": it must be from 1 to " +
                                              std::to_string(kMaxDepth));
  }
  auto queue = open_engine(options, files);
  if (!queue.ok() || options.bytes_per_second == 0) return queue;
  return std::unique_ptr<IoQueue>(
      new ThrottledQueue(std::move(queue).value(), options.bytes_per_second));
}

}  // namespace taco::zerocache
