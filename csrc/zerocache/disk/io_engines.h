// The two engines behind open_io_queue(), for it alone.
#pragma once

#include <memory>
#include <vector>

#include "base/status.h"
#include "zerocache/disk/io_queue.h"

namespace taco::zerocache {

// kUnsupported, with the kernel's words, where io_uring is refused.
Result<std::unique_ptr<IoQueue>> open_uring_queue(const IoOptions& options,
                                                  const std::vector<File*>& files);

// kResource if there are not as many threads.
Result<std::unique_ptr<IoQueue>> open_thread_queue(const IoOptions& options,
                                                   const std::vector<File*>& files);

}  // namespace taco::zerocache
