// Steps over pages that really move: between a device, host memory and a disk.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "device/host_device.h"
#include "support/plain_model.h"
#include "support/temporary_directory.h"
#include "zerocache/disk/disk_format.h"
#include "zerocache/mover/mover.h"
#include "zerocache/mover/tensor_bytes.h"
#include "zerocache/steps/optimizer_stream.h"

namespace taco::zerocache {
namespace {

using testing::Plain;
using testing::PlainModel;
using testing::TemporaryDirectory;

constexpr StateKind kAdam[] = {StateKind::kExpAvg, StateKind::kExpAvgSq};

struct Sizes {
  std::uint32_t device = 4, host = 8;
  std::optional<Tier> parameter_tier;
  unsigned threads = 2;
  std::size_t page_bytes = 4096;
};

class Store {
 public:
  Store(PlainModel& model, const Sizes& sizes, FileSystem& files = FileSystem::real())
      : model_(model),
        sizes_(sizes),
        layout_(std::move(Layout::make(model.specs(), sizes.page_bytes)).value()) {
    std::vector<std::uint32_t> all(model.size());
    std::iota(all.begin(), all.end(), 0);
    state_ = std::move(StateLayout::append_to(layout_, all, kAdam)).value();
    MoverOptions options;
    options.max_pages = layout_.pages();
    options.capacities = {sizes.device, sizes.host, 0};
    options.poison = true;
    if (sizes.device > 0) {
      device::HostOptions host;
      host.memory.frame_bytes = sizes.page_bytes;
      host.memory.max_frames = sizes.device;
      host.memory.poison = true;
      options.device = std::move(device::make_host_device(host)).value();
      options.range = std::move(options.device->reserve(layout_.bytes())).value();
    }
    options.disk = {{directory_.path(), page_place(layout_.pages(), sizes.page_bytes)}};
    auto mover = Mover::open(files, options, layout_);
    EXPECT_TRUE(mover.ok()) << mover.status().message();
    mover_ = std::move(mover).value();
    stream_ = std::move(OptimizerStream::make(*mover_, layout_, state_,
                                              {sizes.threads, sizes.parameter_tier}))
                  .value();
    for (std::size_t i = 0; i < model.size(); ++i) {
      const PlacedTensor& tensor = layout_.tensors()[i];
      const auto* const bytes = static_cast<const std::byte*>(model.bytes_of(i));
      EXPECT_TRUE(
          write_bytes(*mover_, sizes.page_bytes, tensor, Tier::kHost, 0, {bytes, tensor.bytes})
              .ok());
    }
  }

  // The uses of pages in a training step: each parameter is used, then all are stepped.
  Status train(int t) {
    mover_->begin_run("train");
    const Tier tier = sizes_.device > 0 ? Tier::kDevice : Tier::kHost;
    for (PageId page = 0; page < layout_.pages(); ++page) {
      if (!state_.covers(page)) continue;
      const Access access = {page, tier};
      TACO_RETURN_IF_ERROR(mover_->begin(page, {&access, 1}));
      mover_->end(page);
    }
    std::vector<Update> updates;
    const StepConstants step = kernels::adam_step({.weight_decay = 0.1}, t);
    for (std::uint32_t i = 0; i < model_.size(); ++i) updates.push_back(model_.update(i, step));
    const Status stepped = stream_->step(updates);
    mover_->end_run();
    if (stepped.ok()) {
      for (std::uint32_t i = 0; i < model_.size(); ++i) model_[i].step(step);
    }
    return stepped;
  }

  template <class T>
  std::vector<T> read(const std::string& name) {
    const PlacedTensor& tensor = *layout_.find(name);
    std::vector<T> values(tensor.bytes / sizeof(T));
    const Status status = read_bytes(*mover_, sizes_.page_bytes, tensor, Tier::kHost, 0,
                                     std::as_writable_bytes(std::span(values)));
    EXPECT_TRUE(status.ok()) << status.message();
    return values;
  }
  void expect_is_the_model() {
    for (std::size_t i = 0; i < model_.size(); ++i) {
      Plain& plain = model_[i];
      if (plain.size() == 0) continue;
      SCOPED_TRACE(plain.name);
      EXPECT_TRUE(read<float>(plain.name + "/exp_avg") == plain.first);
      EXPECT_TRUE(read<float>(plain.name + "/exp_avg_sq") == plain.second);
      if (plain.half) {
        EXPECT_TRUE(read<std::uint16_t>(plain.name) == plain.halves);
        EXPECT_TRUE(read<float>(plain.name + "/master") == plain.values);
      } else {
        EXPECT_TRUE(read<float>(plain.name) == plain.values);
      }
    }
  }
  Mover& mover() { return *mover_; }
  const Layout& layout() const { return layout_; }

 private:
  PlainModel& model_;
  const Sizes sizes_;
  const TemporaryDirectory directory_;
  Layout layout_;
  StateLayout state_;
  std::unique_ptr<Mover> mover_;
  std::unique_ptr<OptimizerStream> stream_;
};

TEST(OptimizerOverMover, GivesTheSameBitsWhereverThePagesAre) {
  const Sizes all[] = {{.device = 3, .host = 6},
                       {.device = 3, .host = 6, .parameter_tier = Tier::kDevice},
                       {.device = 3, .host = 6, .parameter_tier = Tier::kHost},
                       {.device = 0, .host = 6, .parameter_tier = Tier::kHost},
                       {.device = 200, .host = 2000, .threads = 1},
                       {.device = 2, .host = 40, .threads = 3},
                       {.device = 2, .host = 5, .page_bytes = 65536}};
  for (const Sizes& sizes : all) {
    SCOPED_TRACE("device " + std::to_string(sizes.device) + ", host " + std::to_string(sizes.host) +
                 ", pages of " + std::to_string(sizes.page_bytes));
    PlainModel model(11);
    Store store(model, sizes);
    for (int t = 1; t <= 4; ++t) {
      const Status trained = store.train(t);
      ASSERT_TRUE(trained.ok()) << trained.message();
      model.new_gradients();
    }
    store.expect_is_the_model();
    const MoverStats stats = store.mover().stats();
    EXPECT_LE(stats.tiers[1].resident, sizes.host);
    if (sizes.host < 10) {
      EXPECT_GT(stats.ways[static_cast<int>(Way::kRead)].copies, 0u);
    }
  }
}

TEST(OptimizerOverMover, ChunksThatNeedMoreThanThereIsAreRefusedWithTheNumber) {
  PlainModel model(12);
  Store store(model, {.device = 2, .host = 3});
  const Status trained = store.train(1);
  EXPECT_EQ(trained.code(), Code::kInvalidArgument);
  EXPECT_EQ(trained.message().find("the optimizer's step ended before page "), 0u)
      << trained.message();
  EXPECT_NE(trained.message().find("give it 4 pages"), std::string::npos) << trained.message();
}

}  // namespace
}  // namespace taco::zerocache
