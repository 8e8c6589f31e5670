// Measures what the mover of pages costs, and how near it comes to the memory's and the disk's own
// speed.
//
//   mover_bench [--kib N] [--pages N] [--rounds N] [--directory PATH] [--json]
//
// First a use whose pages are all there: begin() and end() in microseconds, by the pages that it
// has and by the thread's having anything to do meanwhile. Then pages by each way, a use for each
// page in turn, while memory holds a quarter of them: beside memcpy() of as many pages on one
// thread, or beside an I/O queue of the same depth that is given the same reads and writes and
// nothing else (no checksums). The best round counts; the program and its bare counterpart take
// turns.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "device/host_device.h"
#include "rounds.h"
#include "zerocache/disk/disk_format.h"
#include "zerocache/disk/file_system.h"
#include "zerocache/disk/io_queue.h"
#include "zerocache/disk/slab.h"
#include "zerocache/mover/mover.h"

namespace {

using namespace taco::zerocache;  // NOLINT(google-build-using-namespace)
using taco::Duration;
using taco::kNever;
using taco::monotonic_now;
using taco::Result;
using taco::Status;
using taco::Time;

struct Options {
  std::size_t kib = 4096;
  std::uint32_t pages = 64;
  int rounds = 5;
  std::string directory = ".";
  bool json = false;
};

template <class T>
T must(Result<T> result) {
  if (result.ok()) return std::move(result).value();
  std::fprintf(stderr, "%s\n", result.status().message().c_str());
  std::exit(1);
}

void must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}

struct Store {
  Store(const Options& options, const Capacities& room) : bytes(options.kib << 10) {
    layout = std::make_unique<Layout>(
        must(Layout::make({{"all", std::size_t{options.pages} * bytes}}, bytes)));
    MoverOptions mover_options;
    mover_options.capacities = room;
    mover_options.max_pages = options.pages;
    if (room.device > 0) {
      taco::device::HostOptions host;
      host.memory.frame_bytes = bytes;
      host.memory.max_frames = room.device;
      mover_options.device = must(taco::device::make_host_device(host));
      mover_options.range = must(mover_options.device->reserve(options.pages * bytes));
    }
    if (room.disk > 0) {
      mover_options.disk = {{options.directory, page_place(room.disk, bytes)}};
      mover_options.store = 0xbe1c4;
    }
    mover = must(Mover::open(FileSystem::real(), mover_options, *layout));
    const Tier tier = room.host > 2 ? Tier::kHost : Tier::kDevice;
    for (PageId page = 0; page < options.pages; ++page) {
      const Access whole = {page, tier, false, true};
      use(page, whole, [&](std::byte* memory) { std::memset(memory, page + 1, bytes); });
    }
  }
  void use(OperatorKey key, const Access& access, const std::function<void(std::byte*)>& work) {
    must(mover->begin(key, {&access, 1}));
    if (work) work(mover->address(access.page, access.tier));
    mover->end(key);
  }

  const std::size_t bytes;
  std::unique_ptr<Layout> layout;
  std::unique_ptr<Mover> mover;
};

// Microseconds that begin() and end() take: the median of many.
void time_of_a_use(const Options& options) {
  Options small = options;
  small.kib = 64;
  Store store(small, {options.pages, options.pages + 2, 0});
  constexpr int kUses = 400;
  for (const std::uint32_t pages : {1u, 4u, 16u}) {
    std::vector<Duration> begins, ends;
    for (int round = 0; round < options.rounds + 2; ++round) {
      store.mover->begin_run("uses of " + std::to_string(pages));
      for (OperatorKey key = 0; key < kUses; ++key) {
        std::vector<Access> accesses;
        for (std::uint32_t i = 0; i < pages; ++i) {
          accesses.push_back({static_cast<PageId>((key * 7 + i) % options.pages)});
        }
        const Time start = monotonic_now();
        must(store.mover->begin(key, accesses));
        const Time middle = monotonic_now();
        store.mover->end(key);
        const Time end = monotonic_now();
        if (round < 2) continue;  // pages come, the trace is learned
        begins.push_back(middle - start);
        ends.push_back(end - middle);
      }
      store.mover->end_run();
    }
    const auto median_us = [](std::vector<Duration>& times) {
      const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
      std::nth_element(times.begin(), middle, times.end());
      return static_cast<double>(*middle) / 1e3;
    };
    const double begin = median_us(begins), end = median_us(ends);
    if (options.json) {
      std::printf("{\"use_of_pages\": %u, \"begin_us\": %.2f, \"end_us\": %.2f}\n", pages, begin,
                  end);
    } else {
      std::printf("a use of %2u pages that are there: begin %5.2f us, end %5.2f us\n", pages, begin,
                  end);
    }
  }
}

struct Row {
  const char* name;
  Way way;
  Capacities room;
  Access access;  // of each page in turn
};

// Seconds that the mover takes for a run over all pages, and copies by the row's way in it.
double run_of(Store& store, const Options& options, const Row& row, std::uint64_t* copies) {
  const auto count = [&] {
    return store.mover->stats().ways[static_cast<std::size_t>(row.way)].copies;
  };
  const std::uint64_t before = count();
  const Time start = monotonic_now();
  store.mover->begin_run(row.name);
  for (PageId page = 0; page < options.pages; ++page) {
    Access access = row.access;
    access.page = page;
    store.use(page, access, nullptr);
  }
  store.mover->end_run();
  const double seconds = static_cast<double>(monotonic_now() - start) / 1e9;
  *copies = count() - before;
  return seconds;
}

// Seconds that so many pages take one after the other by memcpy().
double bare_copies(std::size_t bytes, std::uint64_t copies) {
  constexpr std::size_t kSpread = 16;  // pages, so that no cache holds them
  static const auto from = taco::bench::allocate(kSpread * bytes, 1);
  static const auto to = taco::bench::allocate(kSpread * bytes, 2);
  const Time start = monotonic_now();
  for (std::uint64_t i = 0; i < copies; ++i) {
    std::memcpy(to.get() + i % kSpread * bytes, from.get() + i % kSpread * bytes, bytes);
  }
  return static_cast<double>(monotonic_now() - start) / 1e9;
}

// Reads and writes of whole pages with nothing around them.
class BareDisk {
 public:
  BareDisk(const Options& options, std::uint32_t slots)
      : bytes_(options.kib << 10), frames_(kDepth * bytes_) {
    directory_ = options.directory + "/bare";
    std::filesystem::create_directory(directory_);
    slab_ = must(
        Slab::create(FileSystem::real(), {{directory_, page_place(slots, bytes_)}}, 1, bytes_));
    IoOptions io;
    io.depth = kDepth;
    for (std::size_t i = 0; i < kDepth; ++i) io.buffers.push_back({frame(i), bytes_});
    queue_ = must(open_io_queue(io, slab_->files()));
    for (std::uint32_t i = 0; i < slots; ++i) slots_.push_back(slab_->take());
    transfer(IoRequest::Kind::kWrite, slots);
  }
  ~BareDisk() {
    queue_.reset();
    slab_.reset();
    std::filesystem::remove_all(directory_);
  }
  double transfer(IoRequest::Kind kind, std::uint64_t pages) {
    std::vector<IoCompletion> done;
    const Time start = monotonic_now();
    for (std::uint64_t i = 0, ended = 0; ended < pages; ended += done.size()) {
      for (std::size_t frame = 0; i < pages && (i < kDepth || frame < done.size()); ++i, ++frame) {
        submit(kind, i, i < kDepth ? i : done[frame].tag);
      }
      done.clear();
      queue_->complete(kNever, &done);
      for (const IoCompletion& each : done) must(each.status);
    }
    return static_cast<double>(monotonic_now() - start) / 1e9;
  }

 private:
  static constexpr std::size_t kDepth = 4;  // as Costs has it
  std::byte* frame(std::size_t i) const { return frames_.data() + i * bytes_; }
  void submit(IoRequest::Kind kind, std::uint64_t page, std::uint64_t frame_index) {
    const Slot slot = slots_[page % slots_.size()];
    IoRequest request;
    request.kind = kind;
    request.file = slot.file;
    request.offset = slab_->place_of(slot);
    request.bytes = static_cast<std::uint32_t>(bytes_);
    request.memory = frame(frame_index);
    request.buffer = static_cast<std::int32_t>(frame_index);
    request.tag = frame_index;
    queue_->submit(request);
  }

  const std::size_t bytes_;
  AlignedMemory frames_;
  std::string directory_;
  std::unique_ptr<Slab> slab_;
  std::vector<Slot> slots_;
  std::unique_ptr<IoQueue> queue_;
};

void measure(const Options& options, const Row& row) {
  Store store(options, row.room);
  std::unique_ptr<BareDisk> disk;
  if (row.room.disk > 0) disk = std::make_unique<BareDisk>(options, options.pages);
  std::uint64_t copies = 0;
  for (int i = 0; i < 2; ++i) run_of(store, options, row, &copies);
  double mover = 0, bare = 0;  // pages a second, of the best round
  for (int i = 0; i < options.rounds; ++i) {
    const double seconds = run_of(store, options, row, &copies);
    mover = std::max(mover, static_cast<double>(copies) / seconds);
    const auto kind = row.way == Way::kRead ? IoRequest::Kind::kRead : IoRequest::Kind::kWrite;
    const double limit = disk != nullptr ? disk->transfer(kind, std::max<std::uint64_t>(copies, 1))
                                         : bare_copies(store.bytes, copies);
    bare = std::max(bare, static_cast<double>(copies) / limit);
  }
  const double gigabytes = static_cast<double>(store.bytes) / 1e9;
  if (options.json) {
    std::printf(
        "{\"row\": \"%s\", \"pages_a_run\": %llu, \"pages_per_s\": %.0f, \"bare_pages_per_s\": "
        "%.0f}\n",
        row.name, static_cast<unsigned long long>(copies), mover, bare);
    return;
  }
  std::printf("%-28s %5.0f pages/s (%5.2f GB/s), bare %5.0f (%5.2f GB/s): %3.0f %%\n", row.name,
              mover, mover * gigabytes, bare, bare * gigabytes, 100 * mover / bare);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const bool has_value = i + 1 < argc;
    if (name == "--json") {
      options.json = true;
    } else if (name == "--kib" && has_value) {
      options.kib = std::strtoul(argv[++i], nullptr, 10);
    } else if (name == "--pages" && has_value) {
      options.pages = static_cast<std::uint32_t>(std::strtoul(argv[++i], nullptr, 10));
    } else if (name == "--rounds" && has_value) {
      options.rounds = static_cast<int>(std::strtol(argv[++i], nullptr, 10));
    } else if (name == "--directory" && has_value) {
      options.directory = argv[++i];
    } else {
      std::fprintf(stderr, "%s: unknown, or without a value\n", name.c_str());
      return 1;
    }
  }
  const std::uint32_t all = options.pages, some = std::max(8u, all / 4);
  time_of_a_use(options);
  const Access reads = {0, Tier::kDevice, true, false}, writes = {0, Tier::kDevice, true, true};
  const Access host_reads = {0, Tier::kHost, true, false};
  const Access host_writes = {0, Tier::kHost, true, true};
  measure(options, {"upload", Way::kUpload, {some, all, 0}, reads});
  measure(options, {"upload, beside download", Way::kUpload, {some, all, 0}, writes});
  measure(options, {"read", Way::kRead, {0, some, all}, host_reads});
  measure(options, {"write, beside read", Way::kWrite, {0, some, all}, host_writes});
  return 0;
}
