#include "zerocache/disk/io_queue.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "support/eventually.h"
#include "support/faulty_files.h"
#include "support/processes.h"
#include "support/refused_call.h"
#include "support/temporary_directory.h"
#include "zerocache/disk/disk_format.h"
#include "zerocache/disk/file_system.h"

namespace taco::zerocache {
namespace {

using testing::FaultyFiles;
using testing::FileCall;
using testing::TemporaryDirectory;
using Engine = IoOptions::Engine;
using Kind = IoRequest::Kind;

constexpr std::size_t kPage = 16 * kIoAlignment;
constexpr std::uint32_t kPages = 24;

void fill(std::byte* memory, std::uint64_t seed) {
  for (std::size_t i = 0; i < kPage; ++i) memory[i] = std::byte((seed * 2654435761u + i * 7) >> 3);
}

// Files of pages, memory for all of them, and a queue over both.
class Rig {
 public:
  Rig(Engine engine, FileSystem& files, int count = 2) : memory_(kPages * kPage) {
    options.engine = engine;
    options.depth = 4;
    for (int i = 0; i < count; ++i) {
      auto file = files.open(directory_ / std::to_string(i), OpenMode::kCreate, Caching::kDirect);
      EXPECT_TRUE(file.ok()) << file.status().message();
      files_.push_back(std::move(file).value());
      EXPECT_TRUE(files_.back()->reserve(kPages * kPage).ok());
    }
  }
  std::vector<File*> files() const {
    std::vector<File*> files;
    for (const auto& file : files_) files.push_back(file.get());
    return files;
  }
  void open() {
    auto opened = open_io_queue(options, files());
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    queue = std::move(opened).value();
  }
  std::byte* frame(std::uint32_t page) const { return memory_.data() + page * kPage; }
  std::string path(int file) const { return directory_ / std::to_string(file); }
  void submit(Kind kind, std::uint32_t page, std::int32_t buffer = -1) {
    IoRequest request;
    request.kind = kind;
    request.file = page % static_cast<std::uint32_t>(files_.size());
    request.offset = page * kPage;
    request.bytes = kPage;
    request.memory = frame(page);
    request.buffer = buffer;
    request.tag = page;
    queue->submit(request);
  }
  std::map<std::uint64_t, Status> finish() {
    std::map<std::uint64_t, Status> done;
    while (queue->open() > 0) {
      std::vector<IoCompletion> some;
      queue->complete(kNever, &some);
      for (const IoCompletion& each : some) {
        EXPECT_TRUE(done.emplace(each.tag, each.status).second) << "twice: " << each.tag;
      }
    }
    return done;
  }
  // Writes every page, forgets it and reads it back.
  void round_trip(bool registered = false) {
    for (std::uint32_t page = 0; page < kPages; ++page) {
      fill(frame(page), page);
      submit(Kind::kWrite, page, registered ? static_cast<std::int32_t>(page) : -1);
    }
    for (const auto& [tag, status] : finish()) EXPECT_TRUE(status.ok()) << status.message();
    std::memset(memory_.data(), 0, memory_.size());
    for (std::uint32_t page = 0; page < kPages; ++page) {
      submit(Kind::kRead, page, registered ? static_cast<std::int32_t>(page) : -1);
    }
    const auto done = finish();
    EXPECT_EQ(done.size(), kPages);
    for (const auto& [tag, status] : done) EXPECT_TRUE(status.ok()) << status.message();
    std::vector<std::byte> expected(kPage);
    for (std::uint32_t page = 0; page < kPages; ++page) {
      fill(expected.data(), page);
      EXPECT_EQ(std::memcmp(expected.data(), frame(page), kPage), 0) << "page " << page;
    }
  }

  IoOptions options;

 private:
  TemporaryDirectory directory_;
  AlignedMemory memory_;
  std::vector<std::unique_ptr<File>> files_;

 public:
  std::unique_ptr<IoQueue> queue;  // goes before files and memory
};

class Engines : public ::testing::TestWithParam<Engine> {};
INSTANTIATE_TEST_SUITE_P(Queue, Engines, ::testing::Values(Engine::kUring, Engine::kThreads),
                         [](const auto& parameter) {
                           return parameter.param == Engine::kUring ? "Uring" : "Threads";
                         });

TEST_P(Engines, ManyMorePagesThanItsDepthAreWrittenAndReadBack) {
  Rig rig(GetParam(), FileSystem::real());
  rig.open();
  EXPECT_EQ(rig.queue->engine(), GetParam() == Engine::kUring ? "io_uring" : "threads");
  rig.round_trip();
}

TEST_P(Engines, LookingDoesNotWaitAndWaitingEndsInTime) {
  Rig rig(GetParam(), FileSystem::real());
  rig.open();
  std::vector<IoCompletion> done;
  rig.queue->complete(kNever, &done);  // nothing is open: nothing to wait for
  rig.submit(Kind::kWrite, 0);
  while (done.empty()) rig.queue->complete(0, &done);
  EXPECT_EQ(done[0].tag, 0u);
  rig.submit(Kind::kRead, 0);
  while (done.size() < 2) rig.queue->complete(kMillisecond, &done);
  EXPECT_TRUE(done[1].status.ok());
  EXPECT_EQ(rig.queue->open(), 0u);
}

TEST_P(Engines, AFileThatIsCutOffIsAnErrorThatNamesIt) {
  Rig rig(GetParam(), FileSystem::real());
  rig.open();
  rig.round_trip();
  ASSERT_EQ(truncate(rig.path(0).c_str(), 4 * kPage + 2 * kIoAlignment), 0);
  rig.submit(Kind::kRead, 2);
  rig.submit(Kind::kRead, 4);
  const auto done = rig.finish();
  EXPECT_TRUE(done.at(2).ok()) << done.at(2).message();
  EXPECT_EQ(done.at(4).code(), Code::kResource);
  EXPECT_NE(done.at(4).message().find(rig.path(0) + ": the file ends at byte 270336"),
            std::string::npos)
      << done.at(4).message();
}

TEST_P(Engines, TheThrottleSlowsItDownAndLosesNothing) {
  Rig rig(GetParam(), FileSystem::real());
  rig.options.bytes_per_second = 2 * kPages * kPage * 20;  // all of it in a twentieth of a second
  rig.open();
  const Time start = monotonic_now();
  rig.round_trip();
  EXPECT_GE(monotonic_now() - start, kSecond / 20 - 2 * kMillisecond);
}

TEST_P(Engines, LeavesNoThreadAndNoDescriptorBehind) {
  const int threads = testing::count_threads(), descriptors = testing::count_descriptors();
  for (int i = 0; i < 5; ++i) {
    Rig rig(GetParam(), FileSystem::real());
    rig.open();
    for (std::uint32_t page = 0; page < kPages; ++page) rig.submit(Kind::kWrite, page);
    rig.queue.reset();  // with requests under way, and others that have not begun
  }
  // The kernel may have made workers, which end by themselves.
  EXPECT_TRUE(testing::eventually([&] { return testing::count_threads() == threads; }))
      << testing::thread_names();
  EXPECT_EQ(testing::count_descriptors(), descriptors);
}

TEST_P(Engines, AForkedChildMayDestroyItsCopyAndHarmsNobody) {
  Rig rig(GetParam(), FileSystem::real());
  rig.open();
  rig.round_trip();
  const std::vector<int> statuses =
      testing::run_processes({.count = 1}, [&](testing::Fellowship&) { rig.queue.reset(); });
  EXPECT_EQ(statuses, std::vector<int>{0});
  rig.round_trip();
}

// A file whose bytes come when the test says so.
class PipeFile : public File {
 public:
  PipeFile() : File("a pipe") { EXPECT_EQ(pipe2(ends_, O_CLOEXEC), 0); }
  ~PipeFile() override {
    for (const int end : ends_) close(end);
  }
  ssize_t read_at(std::byte* to, std::size_t bytes, std::uint64_t) override {
    return ::read(ends_[0], to, bytes);
  }
  ssize_t write_at(const std::byte*, std::size_t, std::uint64_t) override { return -EBADF; }
  Result<std::uint64_t> size() override { return std::uint64_t{0}; }
  Status reserve(std::uint64_t) override { return {}; }
  Status sync() override { return {}; }
  int descriptor() const override { return ends_[0]; }
  void give(const std::vector<char>& bytes) {
    EXPECT_EQ(::write(ends_[1], bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  }

 private:
  int ends_[2] = {-1, -1};
};

TEST_P(Engines, AWakeEndsAWaitAndNoRequest) {
  PipeFile file;
  AlignedMemory memory(kIoAlignment);
  IoOptions options;
  options.engine = GetParam();
  auto queue = std::move(open_io_queue(options, {&file})).value();
  IoRequest request;
  request.bytes = kIoAlignment;
  request.memory = memory.data();
  request.tag = 77;
  queue->submit(request);
  std::vector<IoCompletion> done;
  for (int i = 0; i < 3; ++i) {
    queue->wake();  // before the wait
    queue->complete(kNever, &done);
    std::thread waker([&queue] {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      queue->wake();
    });
    queue->complete(kNever, &done);
    waker.join();
    EXPECT_TRUE(done.empty());
  }
  file.give(std::vector<char>(kIoAlignment, 'a'));
  while (done.empty()) queue->complete(kNever, &done);
  EXPECT_TRUE(done[0].status.ok()) << done[0].status.message();
  EXPECT_EQ(done[0].tag, 77u);
  EXPECT_EQ(std::to_integer<char>(memory.data()[kIoAlignment - 1]), 'a');
}

TEST(IoQueue, RefusesADepthThatMakesNoSense) {
  Rig rig(Engine::kAuto, FileSystem::real(), 1);
  for (const unsigned depth : {0u, 5000u}) {
    rig.options.depth = depth;
    const Status refused = open_io_queue(rig.options, rig.files()).status();
    EXPECT_EQ(refused.code(), Code::kInvalidArgument);
    EXPECT_NE(refused.message().find(std::to_string(depth)), std::string::npos);
  }
}

// The result of a call of the kernel's, or what a shim says it was: by turns in part, interrupted,
// to be tried later, and whole.
class Trouble {
 public:
  ssize_t next(ssize_t whole) {
    switch (turn_++ % 5) {
      case 0:
        return kIoAlignment;
      case 1:
        return -EINTR;
      case 2:
        return std::min<ssize_t>(whole, 3 * kIoAlignment + 17);
      case 3:
        return -EAGAIN;
      default:
        return whole;
    }
  }
  unsigned turns() const { return turn_; }

 private:
  std::atomic<unsigned> turn_{0};
};

TEST(UringQueue, ContinuesWhatWasTransferredInPartAndRepeatsWhatWasInterrupted) {
  Trouble trouble;
  Rig rig(Engine::kUring, FileSystem::real());
  rig.options.pretend = [&](const IoRequest&, ssize_t result) {
    return result < 0 ? result : std::min(result, trouble.next(result));
  };
  rig.open();
  rig.round_trip();
  EXPECT_GT(trouble.turns(), 4 * kPages);
}

TEST(ThreadQueue, ContinuesWhatWasTransferredInPartAndRepeatsWhatWasInterrupted) {
  Trouble trouble;
  FaultyFiles files([&](const FileCall& call) -> ssize_t {
    if (call.kind != FileCall::Kind::kRead && call.kind != FileCall::Kind::kWrite) return 0;
    // In whole blocks: these are direct reads and writes.
    const ssize_t result = trouble.next(static_cast<ssize_t>(call.bytes));
    const auto block = static_cast<ssize_t>(kIoAlignment);
    return result < 0 ? result : result / block * block;
  });
  Rig rig(Engine::kThreads, files);
  rig.open();
  rig.round_trip();
  EXPECT_GT(trouble.turns(), 4 * kPages);
}

TEST(UringQueue, AnErrorOfOneRequestLeavesTheOthersAlone) {
  Rig rig(Engine::kUring, FileSystem::real());
  rig.options.pretend = [&](const IoRequest& request, ssize_t result) -> ssize_t {
    return request.tag == 3 ? -EIO : result;
  };
  rig.open();
  for (std::uint32_t page = 0; page < kPages; ++page) rig.submit(Kind::kWrite, page);
  for (const auto& [tag, status] : rig.finish()) {
    EXPECT_EQ(status.ok(), tag != 3) << status.message();
    if (tag == 3) {
      EXPECT_EQ(status.message(),
                "writing 65536 bytes at 196608 of " + rig.path(1) + ": Input/output error");
    }
  }
}

TEST(UringQueue, RegisteredBuffersStayTheSameMemoryWhereverTheyAreMapped) {
  Rig rig(Engine::kUring, FileSystem::real(), 1);
  const auto map = [](std::size_t pages) {
    return static_cast<std::byte*>(
        mmap(nullptr, pages * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  };
  std::byte* const home = map(1);
  std::byte* const other = map(1);
  ASSERT_NE(home, MAP_FAILED);
  rig.options.buffers = {{home, kPage}};
  rig.open();
  fill(home, 99);
  ASSERT_EQ(mremap(home, kPage, kPage, MREMAP_MAYMOVE | MREMAP_FIXED, other), other);
  IoRequest request;
  request.kind = Kind::kWrite;
  request.bytes = kPage;
  request.memory = other;
  request.buffer = 0;
  rig.queue->submit(request);
  EXPECT_TRUE(rig.finish().at(0).ok());
  std::memset(other, 0, kPage);
  request.kind = Kind::kRead;
  rig.queue->submit(request);
  const auto done = rig.finish();
  EXPECT_TRUE(done.at(0).ok()) << done.at(0).message();
  fill(rig.frame(0), 99);
  EXPECT_EQ(std::memcmp(rig.frame(0), other, kPage), 0);
  rig.queue.reset();
  munmap(other, kPage);
}

TEST(UringQueue, RegisteredBuffersCarryManyPages) {
  Rig rig(Engine::kUring, FileSystem::real());
  for (std::uint32_t page = 0; page < kPages; ++page) {
    rig.options.buffers.push_back({rig.frame(page), kPage});
  }
  rig.open();
  rig.round_trip(true);
}

TEST(IoQueue, FilesThatTheKernelDoesNotKnowAreServedByThreads) {
  FaultyFiles files([](const FileCall&) { return 0; });
  Rig rig(Engine::kAuto, files);
  rig.open();
  EXPECT_EQ(rig.queue->engine(), "threads");
  rig.options.engine = Engine::kUring;
  EXPECT_EQ(open_io_queue(rig.options, rig.files()).status().code(), Code::kInvalidArgument);
}

std::string g_log;

// As in many containers.
TEST(IoQueue, WhereIoUringIsRefusedThreadsServeAndTheLogSaysSo) {
  const std::vector<int> statuses = testing::run_processes({.count = 1}, [](testing::Fellowship&) {
    ASSERT_TRUE(testing::refuse_call(__NR_io_uring_setup));
    set_log_level(LogLevel::kInfo);
    set_log_sink([](LogLevel, std::string_view line) { g_log += line; });
    Rig rig(Engine::kAuto, FileSystem::real());
    rig.open();
    EXPECT_EQ(rig.queue->engine(), "threads");
    EXPECT_NE(g_log.find("io_uring is refused here (Operation not permitted)"), std::string::npos)
        << g_log;
    rig.round_trip();
    Rig strict(Engine::kUring, FileSystem::real());
    EXPECT_EQ(open_io_queue(strict.options, {}).status().code(), Code::kUnsupported);
  });
  EXPECT_EQ(statuses, std::vector<int>{0});
}

}  // namespace
}  // namespace taco::zerocache
