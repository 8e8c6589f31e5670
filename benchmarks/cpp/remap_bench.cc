// Measures what it costs to let a frame of memory appear at an address and vanish from it, beside a
// copy of its bytes, which is what a remapping saves.
//
//   remap_bench [--kib N] [--frames N] [--rounds N] [--busy N] [--json]
//
// Each row is one way to back addresses with memory: moved there, or fresh at every mapping; on
// large pages or not. All rows take their turn with each frame; medians are reported, in
// microseconds. "touch" reads a byte of every 4 KiB once the frame is mapped: what the move has
// left to be faulted in, and misses of address translation. --busy threads compute meanwhile: they
// belong to the process, so that a changed mapping interrupts them.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "device/host_memory.h"

namespace {

using taco::monotonic_now;
using taco::device::FrameId;
using taco::device::HostMemory;

struct Options {
  std::size_t kib = 4096;
  std::size_t frames = 32;
  int rounds = 20;
  int busy = 2;
  bool json = false;
};

template <class T>
T must(taco::Result<T> result) {
  if (result.ok()) return std::move(*result);
  std::fprintf(stderr, "%s\n", result.status().message().c_str());
  std::exit(1);
}

void must(const taco::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}

class Samples {
 public:
  void add(taco::Duration took) { samples_.push_back(took); }
  double median_us() {
    const auto middle = samples_.begin() + static_cast<std::ptrdiff_t>(samples_.size() / 2);
    std::nth_element(samples_.begin(), middle, samples_.end());
    return static_cast<double>(*middle) / 1e3;
  }

 private:
  std::vector<taco::Duration> samples_;
};

// One way, with all its frames, and what it took.
class Way {
 public:
  Way(const Options& options, bool move, bool huge)
      : name_(std::string(move ? "moved" : "fresh") + (huge ? ", large pages" : ", 4 KiB pages")) {
    HostMemory::Options memory;
    memory.frame_bytes = options.kib << 10;
    memory.max_frames = options.frames;
    memory.may_move = move;
    memory.huge_pages = huge;
    memory_ = must(HostMemory::create(memory));
    range_ = must(memory_->reserve(2 * options.frames * memory.frame_bytes));
    for (std::size_t i = 0; i < options.frames; ++i)
      frames_.push_back(must(memory_->create_frame()));
  }

  // Maps frame `index`, touches it, copies from and to `other`, and unmaps it.
  void turn(std::size_t index, std::byte* other) {
    const std::size_t bytes = memory_->frame_bytes();
    std::byte* address = range_ + (index * 7 % (2 * frames_.size())) * bytes;
    const taco::Time start = monotonic_now();
    must(memory_->map(address, frames_[index]));
    const taco::Time mapped = monotonic_now();
    for (std::size_t at = 0; at < bytes; at += 4096)
      static_cast<void>(*static_cast<volatile std::byte*>(address + at));
    const taco::Time touched = monotonic_now();
    std::memcpy(address, other, bytes);
    const taco::Time copied = monotonic_now();
    must(memory_->unmap(address));
    const taco::Time unmapped = monotonic_now();
    map_.add(mapped - start);
    touch_.add(touched - mapped);
    copy_.add(copied - touched);
    unmap_.add(unmapped - copied);
  }

  void print(bool json) {
    const double map = map_.median_us(), touch = touch_.median_us(), copy = copy_.median_us(),
                 unmap = unmap_.median_us();
    std::printf(json ? "{\"what\": \"%s\", \"map_us\": %.1f, \"touch_us\": %.1f, \"unmap_us\": "
                       "%.1f, \"copy_us\": %.1f, \"of_copy\": %.3f}\n"
                     : "%-24s%10.1f%10.1f%10.1f%10.1f%10.3f\n",
                name_.c_str(), map, touch, unmap, copy, (map + touch + unmap) / copy);
  }

 private:
  const std::string name_;
  std::unique_ptr<HostMemory> memory_;
  std::byte* range_ = nullptr;
  std::vector<FrameId> frames_;
  Samples map_, touch_, copy_, unmap_;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--json") {
      options.json = true;
      continue;
    }
    const long value = i + 1 < argc ? std::atol(argv[++i]) : -1;
    if (value < 0) {
      std::fprintf(stderr, "%s: a number is needed\n", name.c_str());
      std::exit(2);
    }
    if (name == "--kib") {
      options.kib = static_cast<std::size_t>(value);
    } else if (name == "--frames") {
      options.frames = static_cast<std::size_t>(value);
    } else if (name == "--rounds") {
      options.rounds = static_cast<int>(value);
    } else if (name == "--busy") {
      options.busy = static_cast<int>(value);
    } else {
      std::fprintf(stderr, "%s: not an option\n", name.c_str());
      std::exit(2);
    }
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  std::atomic<bool> end{false};
  std::vector<std::thread> busy;
  for (int i = 0; i < options.busy; ++i) {
    busy.emplace_back([&end] {
      std::vector<float> values(1 << 18, 1.0f);
      while (!end) {
        for (float& value : values) value = value * 1.0001f + 1e-9f;
      }
    });
  }
  std::vector<std::unique_ptr<Way>> ways;
  for (const bool move : {true, false}) {
    for (const bool huge : {true, false})
      ways.push_back(std::make_unique<Way>(options, move, huge));
  }
  const std::size_t bytes = options.kib << 10;
  std::vector<std::byte> others(options.frames * bytes, std::byte{1});
  for (int round = 0; round < options.rounds; ++round) {
    for (std::size_t i = 0; i < options.frames; ++i) {
      for (const auto& way : ways) way->turn(i, others.data() + i * bytes);
    }
  }
  end = true;
  for (std::thread& thread : busy) thread.join();
  if (!options.json) {
    std::printf("%zu KiB, us%13s%10s%10s%10s%10s\n", options.kib, "map", "touch", "unmap", "copy",
                "of copy");
  }
  for (const auto& way : ways) way->print(options.json);
  return 0;
}
