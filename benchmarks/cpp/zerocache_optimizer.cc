// A step of AdamW over parameters and state that are larger than the memory they may take, through
// the page store, beside the loop that does without one: read a group of pages, step it, write it
// back, then the next. Same bytes, same file system, O_DIRECT, the same requests at a time, the
// same threads and arithmetic; the loop computes no checksums. Both by turns in every round, so
// that what else the machine does falls on both; medians over the rounds.
//
//   zerocache_optimizer [--directory DIR] [--millions N] [--page-bytes N] [--depth N]
//                       [--threads N] [--group N] [--rounds N] [--resident PERCENT] [--json]
//
// Parameters are float32; they and their two moments, 12 bytes a parameter, are on disk but for the
// share that host memory has room for, and as many pages more as pass through: as many as the loop
// has in memory. Gradients are in memory. --group: pages of each that the loop reads at once. A row
// for each of 0, 50, 75 and 100% resident, or for --resident alone.
#include <fcntl.h>
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
#include "zerocache/disk/file_system.h"
#include "zerocache/disk/io_queue.h"
#include "zerocache/mover/mover.h"
#include "zerocache/mover/tensor_bytes.h"
#include "zerocache/steps/optimizer_stream.h"
#include "zerocache/steps/workers.h"

namespace {

using namespace taco::zerocache;  // NOLINT(google-build-using-namespace)
using taco::Status;
using taco::Time;
using taco::kernels::adam_step;
using taco::kernels::AdamStep;

struct Options {
  std::string directory = ".";
  std::size_t millions = 64;
  std::size_t page_bytes = kPageBytes;
  unsigned depth = 16, threads = 2;
  std::uint32_t group = 16;
  int rounds = 5;
  std::vector<int> resident = {0, 50, 75, 100};
  bool json = false;

  std::size_t parameters() const { return millions << 20; }
  // Pages of the parameters; each moment has as many.
  std::uint32_t pages() const { return static_cast<std::uint32_t>(4 * parameters() / page_bytes); }
  std::uint32_t passing() const { return 3 * group; }
};

[[noreturn]] void die(const std::string& message) {
  std::fprintf(stderr, "zerocache_optimizer: %s\n", message.c_str());
  std::exit(1);
}

void check(const Status& status) {
  if (!status.ok()) die(status.message());
}
template <class T>
T checked(taco::Result<T> result) {
  check(result.status());
  return std::move(result).value();
}

taco::Arena memory_of(const char* name, std::size_t bytes) {
  return checked(taco::Arena::create(name, bytes, taco::Arena::Sharing::kPrivate));
}

AdamStep step_of(int t) { return adam_step({.lr = 1e-6, .weight_decay = 0.01}, t); }

// Read, step, write.
class Loop {
 public:
  Loop(const Options& options, const float* gradient)
      : options_(options),
        gradient_(gradient),
        memory_(memory_of("loop", std::size_t{3} * options.group * options.page_bytes)),
        workers_(checked(Workers::start(options.threads, "loop"))) {
    FileSystem& files = FileSystem::real();
    const std::string path = options.directory + "/zerocache-optimizer-loop.data";
    check(files.remove(path));
    file_ = checked(files.open(path, OpenMode::kCreate, Caching::kDirect));
    check(file_->reserve(std::uint64_t{3} * options.pages() * options.page_bytes));
    IoOptions io;
    io.depth = options.depth;
    for (std::uint32_t i = 0; i < 3 * options.group; ++i) {
      io.buffers.push_back({memory_.data() + i * options.page_bytes, options.page_bytes});
    }
    queue_ = checked(open_io_queue(io, {file_.get()}));
    // The first writes to a file's blocks are slower; no round counts them.
    std::memset(memory_.data(), 0, memory_.size());
    for (std::uint32_t first = 0; first < options.pages(); first += options.group) {
      move(IoRequest::Kind::kWrite, first);
    }
  }
  ~Loop() {
    queue_.reset();
    check(FileSystem::real().remove(file_->path()));
  }

  void step(int t) {
    const AdamStep step = step_of(t);
    for (std::uint32_t first = 0; first < options_.pages(); first += options_.group) {
      move(IoRequest::Kind::kRead, first);
      compute(step, first);
      move(IoRequest::Kind::kWrite, first);
    }
  }

 private:
  std::uint32_t count_from(std::uint32_t first) const {
    return std::min(options_.group, options_.pages() - first);
  }
  void move(IoRequest::Kind kind, std::uint32_t first) {
    const std::uint32_t count = count_from(first);
    for (std::uint32_t array = 0; array < 3; ++array) {
      for (std::uint32_t i = 0; i < count; ++i) {
        IoRequest request;
        request.kind = kind;
        request.offset =
            (std::uint64_t{array} * options_.pages() + first + i) * options_.page_bytes;
        request.bytes = static_cast<std::uint32_t>(options_.page_bytes);
        request.buffer = static_cast<std::int32_t>(array * options_.group + i);
        request.memory =
            memory_.data() + static_cast<std::size_t>(request.buffer) * options_.page_bytes;
        queue_->submit(request);
      }
    }
    std::vector<IoCompletion> done;
    while (queue_->open() > 0) queue_->complete(taco::kNever, &done);
    for (const IoCompletion& each : done) check(each.status);
  }
  void compute(const AdamStep& step, std::uint32_t first) {
    const std::size_t page = options_.page_bytes / sizeof(float);
    const std::size_t elements = count_from(first) * page, stride = options_.group * page;
    auto* const base = reinterpret_cast<float*>(memory_.data());
    workers_->run([&](unsigned worker) {
      const std::size_t from = elements / 64 * worker / workers_->count() * 64;
      const std::size_t to = elements / 64 * (worker + 1) / workers_->count() * 64;
      taco::kernels::adam(
          step, {.count = to - from, .parameter = base + from, .gradient = gradient_ + from},
          base + stride + from, base + 2 * stride + from);
    });
  }

  const Options& options_;
  const float* const gradient_;
  const taco::Arena memory_;
  const std::unique_ptr<Workers> workers_;
  std::unique_ptr<File> file_;
  std::unique_ptr<IoQueue> queue_;
};

class Store {
 public:
  Store(const Options& options, int resident, const float* gradient)
      : options_(options), layout_(checked(Layout::make({}, options.page_bytes))) {
    const std::size_t group_bytes = options.group * options.page_bytes;
    std::vector<std::uint32_t> tensors;
    for (std::size_t at = 0, all = 4 * options.parameters(); at < all; at += group_bytes) {
      const std::string name = "weight" + std::to_string(tensors.size());
      tensors.push_back(checked(layout_.append({name, std::min(group_bytes, all - at), 4})));
      updates_.push_back({tensors.back(), gradient, false, {}});
    }
    const StateKind kinds[] = {StateKind::kExpAvg, StateKind::kExpAvgSq};
    state_ = checked(StateLayout::append_to(layout_, tensors, kinds));
    const std::uint32_t pages = 3 * options.pages();
    MoverOptions mover;
    mover.max_pages = layout_.pages();
    mover.capacities.host = pages * static_cast<std::uint32_t>(resident) / 100 + options.passing();
    mover.disk = {{options.directory, page_place(pages + 4, options.page_bytes)}};
    mover.io.depth = 2 * options.depth;
    mover.store = 1;
    for (const Way way : {Way::kRead, Way::kWrite}) {
      mover.costs.ways[static_cast<int>(way)].depth = options.depth;
    }
    mover_ = checked(Mover::open(FileSystem::real(), mover, layout_));
    stream_ =
        checked(OptimizerStream::make(*mover_, layout_, state_, {options.threads, Tier::kHost}));
    const std::vector<std::byte> zeros(options.page_bytes);
    for (const std::uint32_t index : tensors) {
      const PlacedTensor tensor = layout_.tensors()[index];
      for (std::size_t at = 0; at < tensor.bytes; at += zeros.size()) {
        check(write_bytes(*mover_, options.page_bytes, tensor, Tier::kHost, at, zeros));
      }
    }
  }

  void step(int t) {
    for (Update& update : updates_) update.step = step_of(t);
    mover_->begin_run("train");
    check(stream_->step(updates_));
    mover_->end_run();
  }
  MoverStats stats() const { return mover_->stats(); }

 private:
  const Options& options_;
  Layout layout_;
  StateLayout state_;
  std::vector<Update> updates_;
  std::unique_ptr<Mover> mover_;
  std::unique_ptr<OptimizerStream> stream_;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

template <class Side>
double seconds_of(Side& side, int t) {
  const Time start = taco::monotonic_now();
  side.step(t);
  return static_cast<double>(taco::monotonic_now() - start) * 1e-9;
}

struct Row {
  std::vector<double> store, loop, ratio;
  double read_gigabytes = 0, written_gigabytes = 0;  // a step
};

Row measure(const Options& options, int resident, Loop& loop, const float* gradient) {
  Store store(options, resident, gradient);
  int t = 1;
  for (; t <= 3; ++t) seconds_of(store, t);  // the first is learned from, the second places pages
  Row row;
  const MoverStats before = store.stats();
  for (int round = 0; round < options.rounds; ++round, ++t) {
    if (round % 2 == 0) row.loop.push_back(seconds_of(loop, t));
    row.store.push_back(seconds_of(store, t));
    if (round % 2 == 1) row.loop.push_back(seconds_of(loop, t));
    row.ratio.push_back(row.loop.back() / row.store.back());
  }
  const MoverStats after = store.stats();
  const auto gigabytes = [&](Way way) {
    const auto index = static_cast<std::size_t>(way);
    return static_cast<double>(after.ways[index].bytes - before.ways[index].bytes) * 1e-9 /
           options.rounds;
  };
  row.read_gigabytes = gigabytes(Way::kRead);
  row.written_gigabytes = gigabytes(Way::kWrite);
  return row;
}

void report(const Options& options, int resident, const Row& row, bool first) {
  const auto [least, most] = std::minmax_element(row.ratio.begin(), row.ratio.end());
  if (options.json) {
    std::printf(
        "%s{\"mi_parameters\": %zu, \"threads\": %u, \"page_bytes\": %zu, \"depth\": %u, "
        "\"resident_percent\": %d, \"store_s\": %.4f, \"loop_s\": %.4f, \"ratio\": %.3f, "
        "\"read_gb\": %.3f, \"written_gb\": %.3f}",
        first ? "[\n" : ",\n", options.millions, options.threads, options.page_bytes, options.depth,
        resident, median(row.store), median(row.loop), median(row.ratio), row.read_gigabytes,
        row.written_gigabytes);
    return;
  }
  if (first) {
    std::printf("AdamW, float32, %zu Mi parameters, %u threads, pages of %zu bytes, depth %u\n",
                options.millions, options.threads, options.page_bytes, options.depth);
    std::puts("resident   store s    loop s   ratio (least, most)    GB read, written a step");
  }
  std::printf("%6d %% %9.3f %9.3f %7.3f (%.3f, %.3f) %11.3f %.3f\n", resident, median(row.store),
              median(row.loop), median(row.ratio), *least, *most, row.read_gigabytes,
              row.written_gigabytes);
  std::fflush(stdout);
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
    const auto number = [&] { return static_cast<unsigned>(std::stoul(value)); };
    if (name == "--directory") {
      options.directory = value;
    } else if (name == "--millions") {
      options.millions = number();
    } else if (name == "--page-bytes") {
      options.page_bytes = number();
    } else if (name == "--depth") {
      options.depth = number();
    } else if (name == "--threads") {
      options.threads = number();
    } else if (name == "--group") {
      options.group = number();
    } else if (name == "--rounds") {
      options.rounds = std::stoi(value);
    } else if (name == "--resident") {
      options.resident = {std::stoi(value)};
    } else {
      die("unknown: " + name + " " + value);
    }
  }
  const bool valid = options.millions > 0 && options.depth > 0 && options.threads > 0 &&
                     options.group > 0 && options.rounds > 0 && options.pages() > 0 &&
                     valid_page_bytes(options.page_bytes);
  if (!valid) die("nothing to do");
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  std::vector<float> gradient(options.group * options.page_bytes / sizeof(float));
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    gradient[i] = static_cast<float>(i % 1000) * 1e-4f - 0.05f;
  }
  Loop loop(options, gradient.data());
  bool first = true;
  for (const int resident : options.resident) {
    report(options, resident, measure(options, resident, loop, gradient.data()), first);
    first = false;
  }
  if (options.json) std::puts("\n]");
}
