// Pages by io_uring, with files and buffers registered. The ring is the queue's own; a forked child
// keeps neither its descriptor nor its memory.
#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <iterator>
#include <string>
#include <utility>

#include "base/assert.h"
#include "base/fork.h"
#include "base/log.h"
#include "zerocache/disk/file_system.h"
#include "zerocache/disk/io_engines.h"
#include "zerocache/disk/io_transfer.h"

namespace taco::zerocache {
namespace {

constexpr std::uint64_t kWake = ~std::uint64_t{0};  // the tag of what watches for wakes

class UringQueue : public IoQueue {
 public:
  UringQueue(const IoOptions& options, const std::vector<File*>& files)
      : files_(files), pretend_(options.pretend), flights_(options.depth) {
    for (unsigned i = options.depth; i > 0; --i) free_.push_back(i - 1);
  }
  ~UringQueue() override;
  Status open_ring(const IoOptions& options);

  void submit(const IoRequest& request) override;
  void complete(Duration wait, std::vector<IoCompletion>* done) override;
  void keep_busy() override;
  void wake() override;
  std::size_t open() const override { return waiting_.size() + under_way_ + complete_.size(); }
  std::string_view engine() const override { return "io_uring"; }

 private:
  void register_buffers(const std::vector<std::span<std::byte>>& buffers);
  void watch_wakes();
  void begin_waiting();
  void call(unsigned flight);
  void reap();
  void take_result(unsigned flight, ssize_t result);
  void enter(Duration wait);
  void give_up(int error);

  const std::vector<File*> files_;
  const std::function<ssize_t(const IoRequest&, ssize_t)> pretend_;
  io_uring ring_ = {};
  bool has_ring_ = false;
  Status broken_;   // why the ring takes no more requests
  int wakes_ = -1;  // an eventfd that the ring watches
  bool woken_ = false;
  std::uint32_t generation_ = 0;
  std::vector<std::byte*> registered_;  // where each buffer was mapped when it was registered
  std::vector<Transfer> flights_;       // those not in free_ are the kernel's
  std::vector<unsigned> free_;
  std::size_t under_way_ = 0;
  std::deque<IoRequest> waiting_;  // for a flight
  std::vector<IoCompletion> complete_;
};

Status UringQueue::open_ring(const IoOptions& options) {
  const int opened = io_uring_queue_init(options.depth + 1, &ring_, 0);  // one watches for wakes
  if (opened < 0) {
    return Status(Code::kUnsupported,
                  std::string("io_uring is refused here (") + std::strerror(-opened) + ")");
  }
  has_ring_ = true;
  close_on_fork(ring_.ring_fd);
  generation_ = fork_generation();
  io_uring_ring_dontfork(&ring_);
  std::vector<int> descriptors;
  for (const File* file : files_) descriptors.push_back(file->descriptor());
  const int registered = io_uring_register_files(&ring_, descriptors.data(),
                                                 static_cast<unsigned>(descriptors.size()));
  if (registered < 0) {
    return Status(Code::kUnsupported,
                  std::string("io_uring takes no files here (") + std::strerror(-registered) + ")");
  }
  register_buffers(options.buffers);
  wakes_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wakes_ < 0) return system_error(errno, "no descriptor to wake a queue of pages by");
  close_on_fork(wakes_);
  watch_wakes();
  return {};
}

// It works without, a little slower: so a limit on locked memory is no failure.
void UringQueue::register_buffers(const std::vector<std::span<std::byte>>& buffers) {
  if (buffers.empty()) return;
  std::vector<iovec> vectors;
  std::size_t bytes = 0;
  for (const std::span<std::byte> buffer : buffers) {
    vectors.push_back({buffer.data(), buffer.size()});
    bytes += buffer.size();
  }
  const int result =
      io_uring_register_buffers(&ring_, vectors.data(), static_cast<unsigned>(vectors.size()));
  if (result < 0) {
    TACO_LOG_INFO("zerocache",
                  "io_uring does not take %zu buffers of together %zu bytes (%s; see ulimit -l): "
                  "their memory is looked up anew for every read and write",
                  vectors.size(), bytes, std::strerror(-result));
    return;
  }
  for (const std::span<std::byte> buffer : buffers) registered_.push_back(buffer.data());
}

UringQueue::~UringQueue() {
  if (!has_ring_ || generation_ != fork_generation()) return;
  // The kernel may write into the callers' memory until a request ends; waiting ones never begin.
  waiting_.clear();
  while (under_way_ > 0) {
    enter(kNever);
    reap();
  }
  if (wakes_ >= 0) close_now(wakes_);
  close_now(ring_.ring_fd);
  ring_.ring_fd = -1;  // so that io_uring_queue_exit() closes nothing of another's
  io_uring_queue_exit(&ring_);
}

void UringQueue::submit(const IoRequest& request) {
  if (!broken_.ok()) {
    complete_.push_back({request.tag, broken_});
    return;
  }
  waiting_.push_back(request);
  keep_busy();
}

void UringQueue::keep_busy() {
  reap();
  begin_waiting();
  enter(0);
}

void UringQueue::wake() {
  const std::uint64_t one = 1;
  // It fails only where so many wakes wait already that the count is full.
  static_cast<void>(::write(wakes_, &one, sizeof one) == sizeof one);
}

void UringQueue::watch_wakes() {
  io_uring_sqe* const sqe = io_uring_get_sqe(&ring_);
  TACO_ASSERT(sqe != nullptr);
  io_uring_prep_poll_add(sqe, wakes_, POLLIN);
  io_uring_sqe_set_data64(sqe, kWake);
}

void UringQueue::begin_waiting() {
  while (!waiting_.empty() && !free_.empty()) {
    const unsigned flight = free_.back();
    free_.pop_back();
    ++under_way_;
    flights_[flight] = Transfer(waiting_.front(), kIoAlignment);
    waiting_.pop_front();
    call(flight);
  }
}

// There is always an entry: each flight has at most one, and so has what watches for wakes.
void UringQueue::call(unsigned flight) {
  io_uring_sqe* const sqe = io_uring_get_sqe(&ring_);
  TACO_ASSERT(sqe != nullptr);
  const Transfer& transfer = flights_[flight];
  const IoRequest& request = transfer.request();
  const bool is_read = request.kind == IoRequest::Kind::kRead;
  const int file = static_cast<int>(request.file);
  const auto bytes = static_cast<unsigned>(transfer.bytes());
  if (request.buffer >= 0 && static_cast<std::size_t>(request.buffer) < registered_.size()) {
    // The kernel knows the buffer by where it was mapped when it was registered.
    std::byte* const memory =
        registered_[static_cast<std::size_t>(request.buffer)] + transfer.progress();
    if (is_read) {
      io_uring_prep_read_fixed(sqe, file, memory, bytes, transfer.offset(), request.buffer);
    } else {
      io_uring_prep_write_fixed(sqe, file, memory, bytes, transfer.offset(), request.buffer);
    }
  } else if (is_read) {
    io_uring_prep_read(sqe, file, transfer.memory(), bytes, transfer.offset());
  } else {
    io_uring_prep_write(sqe, file, transfer.memory(), bytes, transfer.offset());
  }
  io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
  io_uring_sqe_set_data64(sqe, flight);
}

// Hands what is prepared to the kernel, and waits for a result if `wait` is not 0.
void UringQueue::enter(Duration wait) {
  int result = 0;
  if (wait == 0 || under_way_ == 0) {
    result = io_uring_submit(&ring_);
  } else if (wait == kNever) {
    result = io_uring_submit_and_wait(&ring_, 1);
  } else {
    __kernel_timespec limit = {wait / kSecond, wait % kSecond};
    io_uring_cqe* unused = nullptr;
    result = io_uring_submit_and_wait_timeout(&ring_, &unused, 1, &limit, nullptr);
  }
  const bool again =
      result >= 0 || result == -ETIME || result == -EINTR || result == -EAGAIN || result == -EBUSY;
  if (!again) give_up(-result);
}

// The ring itself is broken: nothing will ever complete by it.
void UringQueue::give_up(int error) {
  const Status status(Code::kInternal,
                      std::string("io_uring takes no more requests: ") + std::strerror(error));
  broken_ = status;
  std::vector<bool> idle(flights_.size(), false);
  for (const unsigned flight : free_) idle[flight] = true;
  for (unsigned i = 0; i < flights_.size(); ++i) {
    if (idle[i]) continue;
    complete_.push_back({flights_[i].request().tag, status});
    free_.push_back(i);
  }
  for (const IoRequest& request : waiting_) complete_.push_back({request.tag, status});
  waiting_.clear();
  under_way_ = 0;
}

void UringQueue::reap() {
  io_uring_cqe* cqe = nullptr;
  while (io_uring_peek_cqe(&ring_, &cqe) == 0) {
    const std::uint64_t tag = io_uring_cqe_get_data64(cqe);
    const ssize_t result = cqe->res;
    io_uring_cqe_seen(&ring_, cqe);
    if (!broken_.ok()) continue;  // its request has been handed out as failed
    if (tag != kWake) {
      take_result(static_cast<unsigned>(tag), result);
      continue;
    }
    std::uint64_t count = 0;
    woken_ = ::read(wakes_, &count, sizeof count) == sizeof count;
    watch_wakes();
  }
}

void UringQueue::take_result(unsigned flight, ssize_t result) {
  Transfer& transfer = flights_[flight];
  const IoRequest& request = transfer.request();
  if (pretend_) result = pretend_(request, result);
  if (transfer.advance(result, files_[request.file]->path()) != Transfer::Next::kDone) {
    call(flight);
    return;
  }
  complete_.push_back({request.tag, transfer.status()});
  --under_way_;
  free_.push_back(flight);
}

void UringQueue::complete(Duration wait, std::vector<IoCompletion>* done) {
  const Time end = wait == kNever ? kNever : monotonic_now() + wait;
  keep_busy();
  while (complete_.empty() && under_way_ > 0 && !woken_) {
    const Duration left = end == kNever ? kNever : end - monotonic_now();
    if (left <= 0) break;
    enter(left);
    reap();
  }
  woken_ = false;
  // Requests that have ended make room for those that wait; these begin before the caller looks at
  // the results.
  begin_waiting();
  enter(0);
  std::move(complete_.begin(), complete_.end(), std::back_inserter(*done));
  complete_.clear();
}

}  // namespace

Result<std::unique_ptr<IoQueue>> open_uring_queue(const IoOptions& options,
                                                  const std::vector<File*>& files) {
  auto queue = std::make_unique<UringQueue>(options, files);
  TACO_RETURN_IF_ERROR(queue->open_ring(options));
  return std::unique_ptr<IoQueue>(std::move(queue));
}

}  // namespace taco::zerocache
