// Steps of an optimizer over pages: chunk after chunk of parameters and state is used, each element
// once, while those that come next are fetched and those that were written leave.
//
// The same bits whatever the page size, the number of threads and the places of the pages are: each
// element goes through the same operations (kernels/optimizers.h). Only what has an update is
// touched, and its state begins, from zeros, with its own first step. Bfloat16 parameters are
// rounded from a master copy in float32; where a parameter is not what its master copy rounds to,
// somebody has given it another value, and the master copy becomes that.
//
// One thread at a time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "base/status.h"
#include "kernels/adafactor.h"
#include "kernels/optimizers.h"
#include "zerocache/pages/layout.h"
#include "zerocache/pages/page_uses.h"
#include "zerocache/pages/state_layout.h"
#include "zerocache/steps/gradient_pages.h"
#include "zerocache/steps/workers.h"

namespace taco::zerocache {

using StepConstants =
    std::variant<kernels::AdamStep, kernels::SgdStep, kernels::LionStep, kernels::AdafactorStep>;

class AdafactorMeasure;

struct Update {
  std::uint32_t tensor = 0;  // index in the layout
  // As many elements as the tensor has, contiguous; null: it is on pages (gradient_pages.h).
  const void* gradient = nullptr;
  bool bf16_gradient = false;  // otherwise float32; on pages it is as the tensor
  StepConstants step;
  // The element of the tensor that the gradient begins with; for step_page(), which needs no more
  // than those on the page.
  std::uint64_t first = 0;
  // For Adafactor's step_page(): what measure(), or all ranks together (adafactor_ranks.h), have
  // found about the whole tensor.
  const AdafactorMeasure* measure = nullptr;
};

// By where their tensors lie.
void sort_by_place(const Layout& layout, std::vector<Update>& updates);

struct OptimizerStreamOptions {
  unsigned threads = 1;
  // Where parameters are stepped. None: in the memory that they are in when their turn comes, which
  // is for a device whose memory is the host's.
  std::optional<Tier> parameter_tier;
};

// Whether this rank steps a page of parameters, where several share the step.
using OwnPages = std::function<bool(PageId)>;

class OptimizerStream {
 public:
  // The others outlive it. kResource if a thread cannot be made.
  static Result<std::unique_ptr<OptimizerStream>> make(PageUses& pages, const Layout& layout,
                                                       const StateLayout& state,
                                                       const OptimizerStreamOptions& options);
  // Lets updates have their gradients on these pages from now on. A step ends what pages of
  // gradients hold as soon as it has read them. It outlives the stream.
  void use_gradients(const GradientPages* gradients) { gradients_ = gradients; }

  // One step of all these tensors, by rising page. kInvalidArgument, and nothing is done, for a
  // tensor that is named twice, has no gradient, neither in memory nor on pages, or lacks the state
  // that its step needs. Where a
  // page cannot be had, neither its chunk nor those behind it are stepped: the message says where
  // the step ended.
  Status step(std::span<const Update> updates);
  // How often it has begun to change pages: a step that has failed with the same number as before
  // has changed nothing.
  std::uint64_t changes() const { return changes_; }
  // Fails where step() would before it does anything.
  Status check(std::span<const Update> updates) const;
  // Takes the part of such a step that lies on one page of parameters, once all gradients for that
  // page are final. step() is this for each page; but Adafactor, which needs to have seen the whole
  // gradient of a tensor, is refused here without a measure of that.
  Status step_page(PageId parameters, std::span<const Update> updates);
  // One chunk of that by itself: part `part` of a page of parameters, and what of these
  // updates lies there. Its pages are there from begin_chunk() to end(), and compute(), which may
  // run on another thread, steps them in between. Null where nothing of the updates lies there. Not
  // for Adafactor, which needs to have seen the whole gradient of a tensor and is refused.
  class OpenChunk;
  Result<std::shared_ptr<OpenChunk>> begin_chunk(PageId parameters, std::uint32_t part,
                                                 std::span<const Update> updates);
  void compute(const OpenChunk& chunk);
  void end(const OpenChunk& chunk);

  // A step of one tensor by Adafactor: its moments, and of its pages those that this rank owns;
  // null: all of them.
  Status step_adafactor(const Update& update, const OwnPages& own);
  // The same step in parts, for ranks that share it: finds what has to be known of the whole
  // tensor, and changes nothing. step() is this, write_back() and each of its pages.
  Result<AdafactorMeasure> measure(const Update& update);
  // Before its pages are stepped: the moments are those after the step.
  Status write_back(std::uint32_t tensor, const AdafactorMeasure& measure);
  // For a gradient whose squares have been added up elsewhere: AdafactorMeasure::take_sums().
  Result<AdafactorMeasure> measure(const Update& update, std::span<const double> rows,
                                   std::span<const double> columns);
  // Squares of all elements on some of a tensor's pages, by rising page.
  Result<double> squares_on(const PlacedTensor& tensor, std::span<const PageId> pages);
  // Where the moments are used. Where parameters are stepped anywhere, the device's memory is the
  // host's, and has a page free: host memory need have none but those that pages pass through.
  Tier moments_tier() const { return parameter_tier_.value_or(Tier::kDevice); }
  Workers& workers() { return *workers_; }

 private:
  // An update and where its tensor lies, in elements of the store's range.
  struct Part {
    const Update* update;
    std::uint64_t begin, end;
    // Set under Adafactor, once the whole tensor has been looked at.
    kernels::AdafactorMoments moments = {};
    float factor = 0;
  };
  struct Chunk;

  OptimizerStream(PageUses& pages, const Layout& layout, const StateLayout& state,
                  std::optional<Tier> tier, std::unique_ptr<Workers> workers)
      : pages_(pages),
        layout_(layout),
        state_(state),
        parameter_tier_(tier),
        workers_(std::move(workers)) {}
  Result<std::vector<Part>> sorted(std::span<const Update> updates) const;
  Result<std::vector<Part>> parts_on(PageId page, std::span<const Update> updates) const;
  Status check(const Update& update) const;
  Status check_gradient(const Update& update) const;
  Status step_pages(std::span<const Part> parts);
  Status step_chunks(PageId page, std::span<const Part> parts);
  Chunk make_chunk(PageId page, std::uint32_t part, std::span<const Part> parts) const;
  Status begin(Chunk& chunk);
  void compute(const Chunk& chunk);
  void compute(const Chunk& chunk, unsigned worker) const;
  static void step_elements(const Chunk& chunk, const Part& part, std::uint64_t begin,
                            std::uint64_t end);
  // optimizer_stream_adafactor.cc
  Status step_adafactor(Part part, const OwnPages& own);
  Status step_adafactor_from_pages(const Part& part);
  Result<double> squares_of(const PlacedTensor& tensor);
  Status add_squares(const PlacedTensor& tensor, PageId page, std::vector<kernels::LaneSums>& sums);

  PageUses& pages_;
  const Layout& layout_;
  const StateLayout& state_;
  const GradientPages* gradients_ = nullptr;
  const std::optional<Tier> parameter_tier_;
  const std::unique_ptr<Workers> workers_;
  std::atomic<std::uint64_t> changes_{0};
};

}  // namespace taco::zerocache
