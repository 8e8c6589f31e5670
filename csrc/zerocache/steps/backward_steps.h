// The optimizer's step, taken while a backward pass goes on: a page of parameters is stepped as
// soon as the gradients of all that lies on it are final.
//
//   add(update)   the gradient of one tensor is final
//   advance()     a point that every run of the program comes to: chunks that have been computed
//                 are given up, and some that are due begin
//   finish()      the end of the step: what is left of it
//
// Uses of pages begin and end at these calls alone, never whenever a thread is done: so every run
// has the same uses in the same order, and they can be prefetched. In between a thread of its own,
// "taco-backward", does the arithmetic. What is due waits its turn, and turns come evenly: a
// layer's pages, which are due all at once, are stepped while the next layers compute.
//
// Adafactor steps whole tensors: it goes over their pages twice. One that is due is stepped at the
// next advance(), by its caller.
//
// Where ranks share the step, each of them is given the same updates, and steps its own pages
// alone; of Adafactor all of them find the same moments. The pages travel meanwhile
// (backward_share.h), and what is left of them afterwards (ShardedStep::share()).
//
// Bits are those of OptimizerStream::step() with the same updates. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "zerocache/pages/layout.h"
#include "zerocache/steps/background.h"
#include "zerocache/steps/optimizer_stream.h"

namespace taco::zerocache {

struct BackwardOptions {
  std::size_t points = 1;       // calls of advance() that are expected in a backward pass
  std::size_t max_at_once = 1;  // chunks that are in use at a time
  OwnPages own = nullptr;       // that are stepped here; null: all
};

class BackwardSteps {
 public:
  // `tensors` are indices in the layout: a page waits for all of these that lie on it. The others
  // outlive it. kResource if the thread cannot be made.
  static Result<std::unique_ptr<BackwardSteps>> make(OptimizerStream& stream, const Layout& layout,
                                                     std::span<const std::uint32_t> tensors,
                                                     const BackwardOptions& options);
  // Nothing may be in use: wait_for_chunks() or forget() comes before.
  ~BackwardSteps() = default;
  BackwardSteps(const BackwardSteps&) = delete;
  BackwardSteps& operator=(const BackwardSteps&) = delete;

  // The gradient stays where it is until take_done() names the tensor. kInvalidArgument, and
  // nothing has changed, for a second one in a step, and for what OptimizerStream::check() refuses.
  Status add(const Update& update);
  // Where memory has no room for another chunk beside what is in use, none begins now. Fails where
  // a page cannot be had, and the message says which.
  Status advance();
  // Ends all chunks: nothing is in use afterwards.
  void wait_for_chunks();
  // A page whose gradients are all final, before whatever else is due, and tensors on it that are
  // stepped whole; nothing of what is not stepped here, or has been. There has to be room for a
  // chunk.
  Status step_now(PageId page);
  // Steps all that was added, pages on which other tensors have no gradient too. The next add()
  // belongs to the next step. A failure leaves tensors behind that are stepped in part.
  Status finish();
  // Instead of finish(): tensors of which a page has been stepped are stepped whole and returned,
  // the others are not stepped at all.
  Result<std::vector<std::uint32_t>> drop();
  // Everything that was added, whatever has become of it.
  void forget();

  // The updates added since the last finish(), by rising tensor.
  std::vector<Update> added() const;
  // Whether something was.
  bool begun() const { return !updates_.empty(); }
  // Tensors that have been stepped whole, each once.
  std::vector<std::uint32_t> take_done();
  // Chunks that all tensors have together, and how many of them an advance() begins at most.
  std::size_t chunks() const { return chunks_; }
  std::size_t at_once() const { return at_once_; }

 private:
  struct Page {
    std::vector<std::uint32_t> tensors;
    std::uint32_t parts = 1;
    std::size_t missing = 0;  // gradients
    bool queued = false;
  };
  struct Pending {
    Update update;
    std::size_t pages_left = 0;
    bool stepped = false;  // a page of it, or about to be
  };
  struct Due {
    PageId page;
    std::uint32_t part;
  };

  BackwardSteps(OptimizerStream& stream, const Layout& layout, OwnPages own,
                std::unique_ptr<Background> background)
      : stream_(stream),
        layout_(layout),
        own_(std::move(own)),
        background_(std::move(background)) {}
  void queue(PageId page);
  Status begin(const Due& due);
  Status begin_some();
  Status step_whole();
  bool waits(PageId page) const;
  void page_is_done(PageId page);
  Status drain();

  OptimizerStream& stream_;
  const Layout& layout_;
  const OwnPages own_;
  const std::unique_ptr<Background> background_;
  std::size_t chunks_ = 0, at_once_ = 1;
  std::map<PageId, Page> pages_;  // that are stepped here

  std::map<std::uint32_t, Pending> updates_;  // by tensor: of this step
  std::deque<std::uint32_t> due_whole_;       // tensors
  std::deque<Due> due_;
  std::vector<std::pair<Due, std::shared_ptr<OptimizerStream::OpenChunk>>> open_;
  std::vector<std::uint32_t> done_;
};

}  // namespace taco::zerocache
