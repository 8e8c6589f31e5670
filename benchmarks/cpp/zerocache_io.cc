// How fast pages move between memory and disk through the page store, with their checksums, beside
// the limit: a bare io_uring loop that makes the same requests, to a file in the same directory,
// and looks at nothing. Both by turns in every round, so that what else the machine does falls on
// both; medians over the rounds.
//
//   zerocache_io [--directory DIR] [--pages N] [--page-bytes N] [--depth N] [--rounds N]
//                [--engine auto|uring|threads] [--json]
//
// Same size, same depth at the kernel, O_DIRECT, registered files and buffers, every page once a
// round in one order. The store has twice as many frames as that depth, as its users have: while it
// computes a checksum, the next requests already wait in its queue.
#include <fcntl.h>
#include <liburing.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/arena.h"
#include "base/clock.h"
#include "zerocache/disk/disk_format.h"
#include "zerocache/disk/disk_tier.h"
#include "zerocache/disk/file_system.h"

namespace {

using namespace taco::zerocache;  // NOLINT(google-build-using-namespace)
using taco::Status;
using taco::Time;
using Kind = IoRequest::Kind;

struct Options {
  std::string directory = ".";
  std::uint32_t pages = 128;
  std::size_t page_bytes = kPageBytes;
  unsigned depth = 8;
  int rounds = 7;
  std::string engine = "auto";
  bool json = false;
};

[[noreturn]] void die(const std::string& message) {
  std::fprintf(stderr, "zerocache_io: %s\n", message.c_str());
  std::exit(1);
}

void check(const Status& status) {
  if (!status.ok()) die(status.message());
}

// On the largest pages that the host gives, for both sides: of how many pieces a request consists
// in physical memory decides how fast it is.
taco::Arena frame_memory(std::size_t bytes) {
  auto arena = taco::Arena::create("frames", bytes, taco::Arena::Sharing::kPrivate);
  check(arena.status());
  return std::move(arena).value();
}

std::vector<std::span<std::byte>> frames_of(const taco::Arena& memory, std::size_t page_bytes) {
  std::vector<std::span<std::byte>> frames;
  for (std::size_t at = 0; at + page_bytes <= memory.size(); at += page_bytes) {
    frames.push_back({memory.data() + at, page_bytes});
  }
  return frames;
}

void fill(std::span<std::byte> memory, std::uint64_t state) {
  for (std::size_t i = 0; i + 8 <= memory.size(); i += 8) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    std::memcpy(memory.data() + i, &state, 8);
  }
}

// The limit: requests and nothing else.
class BareLoop {
 public:
  explicit BareLoop(const Options& options)
      : options_(options),
        path_(options.directory + "/zerocache-io-bare.data"),
        memory_(frame_memory(options.depth * options.page_bytes)) {
    fd_ = open(path_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_DIRECT | O_CLOEXEC, 0600);
    if (fd_ < 0) die("cannot make " + path_ + ": " + std::strerror(errno));
    if (fallocate(fd_, 0, 0, static_cast<off_t>(page_place(options.pages, options.page_bytes)))) {
      die("no room for " + path_ + ": " + std::strerror(errno));
    }
    fill({memory_.data(), memory_.size()}, 1);
    std::vector<iovec> vectors;
    for (const auto frame : frames_of(memory_, options.page_bytes)) {
      vectors.push_back({frame.data(), frame.size()});
    }
    if (io_uring_queue_init(options.depth, &ring_, 0) < 0 ||
        io_uring_register_files(&ring_, &fd_, 1) < 0 ||
        io_uring_register_buffers(&ring_, vectors.data(), options.depth) < 0) {
      die("io_uring is refused here");
    }
  }
  ~BareLoop() {
    io_uring_queue_exit(&ring_);
    close(fd_);
    unlink(path_.c_str());
  }

  void run(Kind kind) {
    std::uint32_t begun = 0, done = 0;
    for (; begun < std::min(options_.depth, options_.pages); ++begun) call(kind, begun, begun);
    while (done < options_.pages) {
      io_uring_submit_and_wait(&ring_, 1);
      io_uring_cqe* cqe = nullptr;
      while (io_uring_peek_cqe(&ring_, &cqe) == 0) {
        if (cqe->res != static_cast<int>(options_.page_bytes)) die("the bare loop fell short");
        const auto frame = static_cast<unsigned>(io_uring_cqe_get_data64(cqe));
        io_uring_cqe_seen(&ring_, cqe);
        ++done;
        if (begun < options_.pages) call(kind, begun++, frame);
      }
    }
  }

 private:
  void call(Kind kind, std::uint32_t page, unsigned frame) {
    io_uring_sqe* const sqe = io_uring_get_sqe(&ring_);
    std::byte* const memory = memory_.data() + frame * options_.page_bytes;
    const auto bytes = static_cast<unsigned>(options_.page_bytes);
    const std::uint64_t place = page_place(page, options_.page_bytes);
    if (kind == Kind::kRead) {
      io_uring_prep_read_fixed(sqe, 0, memory, bytes, place, static_cast<int>(frame));
    } else {
      io_uring_prep_write_fixed(sqe, 0, memory, bytes, place, static_cast<int>(frame));
    }
    io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
    io_uring_sqe_set_data64(sqe, frame);
  }

  const Options& options_;
  const std::string path_;
  const taco::Arena memory_;
  int fd_ = -1;
  io_uring ring_ = {};
};

class Store {
 public:
  explicit Store(const Options& options)
      : options_(options),
        memory_(frame_memory(2 * options.depth * options.page_bytes)),
        frames_(frames_of(memory_, options.page_bytes)) {
    DiskTierOptions tier;
    tier.directories = {{options.directory, page_place(options.pages, options.page_bytes)}};
    tier.store = 1;
    tier.page_bytes = options.page_bytes;
    tier.pages = options.pages;
    tier.describe = [](PageId page) { return "page " + std::to_string(page); };
    tier.io.depth = options.depth;
    tier.io.buffers = frames_;
    using Engine = IoOptions::Engine;
    if (options.engine == "uring") tier.io.engine = Engine::kUring;
    if (options.engine == "threads") tier.io.engine = Engine::kThreads;
    auto opened = DiskTier::open(FileSystem::real(), tier);
    check(opened.status());
    tier_ = std::move(opened).value();
    fill({memory_.data(), memory_.size()}, 2);
  }
  std::string engine() const { return std::string(tier_->engine()); }

  void run(Kind kind) {
    std::vector<std::size_t> free;
    for (std::size_t i = frames_.size(); i > 0; --i) free.push_back(i - 1);
    std::vector<std::size_t> frame_of(options_.pages);
    std::vector<DiskTier::Done> done;
    std::uint32_t begun = 0, ended = 0;
    while (ended < options_.pages) {
      while (begun < options_.pages && !free.empty()) {
        frame_of[begun] = free.back();
        free.pop_back();
        begin(kind, begun, frame_of[begun]);
        ++begun;
      }
      done.clear();
      tier_->complete(taco::kNever, &done);
      for (const DiskTier::Done& each : done) {
        check(each.status);
        free.push_back(frame_of[each.page]);
        ++ended;
      }
    }
  }

 private:
  void begin(Kind kind, PageId page, std::size_t frame) {
    std::byte* const memory = frames_[frame].data();
    const auto buffer = static_cast<std::int32_t>(frame);
    if (kind == Kind::kRead) {
      tier_->read(page, memory, buffer);
    } else {
      tier_->drop(page);  // what it holds is out of date
      check(tier_->write(page, memory, buffer));
    }
  }

  const Options& options_;
  const taco::Arena memory_;
  const std::vector<std::span<std::byte>> frames_;
  std::unique_ptr<DiskTier> tier_;
};

double processor_seconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// The samples of one side of one row.
struct Samples {
  std::vector<double> rate;       // GB/s
  std::vector<double> processor;  // seconds a GB
};

template <class Side>
void measure(Side& side, Kind kind, double gigabytes, Samples* samples) {
  const double processor = processor_seconds();
  const Time start = taco::monotonic_now();
  side.run(kind);
  const double seconds = static_cast<double>(taco::monotonic_now() - start) * 1e-9;
  if (samples == nullptr) return;
  samples->rate.push_back(gigabytes / seconds);
  samples->processor.push_back((processor_seconds() - processor) / gigabytes);
}

void report(const Options& options, const std::string& engine, const char* what,
            const Samples& store, const Samples& bare, bool first) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < store.rate.size(); ++i) {
    ratios.push_back(store.rate[i] / bare.rate[i]);
  }
  if (options.json) {
    std::printf(
        "%s{\"what\": \"page %s\", \"engine\": \"%s\", \"page_bytes\": %zu, \"depth\": %u, "
        "\"store_gb_s\": %.3f, \"bare_gb_s\": %.3f, \"ratio\": %.3f, \"store_cpu_s_gb\": %.3f, "
        "\"bare_cpu_s_gb\": %.3f}%s",
        first ? "[\n" : "", what, engine.c_str(), options.page_bytes, options.depth,
        median(store.rate), median(bare.rate), median(ratios), median(store.processor),
        median(bare.processor), first ? ",\n" : "\n]\n");
    return;
  }
  if (first) {
    std::printf("%u pages of %zu bytes, depth %u, store by %s, median of %d rounds\n",
                options.pages, options.page_bytes, options.depth, engine.c_str(), options.rounds);
    std::puts("          store GB/s   bare GB/s   ratio (least, most)   processor s/GB, both");
  }
  std::printf("page %-5s %9.3f %11.3f %7.3f (%.3f, %.3f) %11.3f %.3f\n", what, median(store.rate),
              median(bare.rate), median(ratios), *std::min_element(ratios.begin(), ratios.end()),
              *std::max_element(ratios.begin(), ratios.end()), median(store.processor),
              median(bare.processor));
}

void compare(const Options& options) {
  BareLoop bare(options);
  Store store(options);
  const double gigabytes = static_cast<double>(options.pages * options.page_bytes) * 1e-9;
  // The first writes to a file's blocks are slower; no round counts them.
  measure(bare, Kind::kWrite, gigabytes, nullptr);
  measure(store, Kind::kWrite, gigabytes, nullptr);
  bool first = true;
  for (const Kind kind : {Kind::kRead, Kind::kWrite}) {
    Samples of_store, of_bare;
    for (int round = 0; round < options.rounds; ++round) {
      if (round % 2 == 0) measure(bare, kind, gigabytes, &of_bare);
      measure(store, kind, gigabytes, &of_store);
      if (round % 2 == 1) measure(bare, kind, gigabytes, &of_bare);
    }
    report(options, store.engine(), kind == Kind::kRead ? "read" : "write", of_store, of_bare,
           first);
    first = false;
  }
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--json") {
      options.json = true;
      continue;
    }
    if (i + 1 == argc) die("unknown or without a value: " + name);
    const std::string value = argv[++i];
    if (name == "--directory") {
      options.directory = value;
    } else if (name == "--pages") {
      options.pages = static_cast<std::uint32_t>(std::stoul(value));
    } else if (name == "--page-bytes") {
      options.page_bytes = std::stoul(value);
    } else if (name == "--depth") {
      options.depth = static_cast<unsigned>(std::stoul(value));
    } else if (name == "--rounds") {
      options.rounds = std::stoi(value);
    } else if (name == "--engine" && (value == "auto" || value == "uring" || value == "threads")) {
      options.engine = value;
    } else {
      die("unknown: " + name + " " + value);
    }
  }
  if (options.pages == 0 || options.depth == 0 || options.rounds < 1) die("nothing to do");
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  compare(parse(argc, argv));
  return 0;
}
