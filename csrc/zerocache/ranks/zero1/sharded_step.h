// A step of an optimizer whose state is dealt out among ranks: each steps the pages that it owns,
// while the pages that were stepped before travel to the others. All ranks have the same parameters
// and gradients, and have the same parameters afterwards, bit for bit, as one rank alone would
// have. Adafactor's moments are kept by all of them: a number for each row and each column.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "zerocache/pages/layout.h"
#include "zerocache/pages/page.h"
#include "zerocache/pages/page_uses.h"
#include "zerocache/ranks/collectives.h"
#include "zerocache/ranks/exchange.h"
#include "zerocache/ranks/shards.h"
#include "zerocache/steps/optimizer_stream.h"

namespace taco::zerocache {

// Before anything is changed. OK on all ranks if `own` is, what this rank's stream says of the
// updates, and if all ranks are about to do the same; the gradients' values are not compared. Else
// a failure on all: kMismatch names a parameter, two ranks, and what they would do.
Status agree_on_step(Collectives& ranks, const Layout& layout, std::span<const Update> updates,
                     const Status& own);

// Digest of a step's kind and constants, which have to be alike on all ranks.
std::uint64_t digest_of(const StepConstants& step);

class ShardedStep {
 public:
  // All outlive it. The tier is that which the stream steps parameters in, if it is one.
  ShardedStep(Collectives& ranks, PageUses& pages, const Layout& layout, const Shards& shards,
              OptimizerStream& stream, std::optional<Tier> parameter_tier)
      : ranks_(ranks),
        pages_(pages),
        layout_(layout),
        shards_(shards),
        stream_(stream),
        tier_(parameter_tier) {}

  // Takes the step that agree_on_step() has found to be alike. OK on all ranks or a failure on all;
  // after a failure parameters may be of two steps.
  Status run(std::span<const Update> updates);
  // The rest of that, where each rank has stepped its own pages already (backward_steps.h), or has
  // failed to: they travel to the others. As run().
  // Pages that `sent` says have been sent by then are left out; null: none has.
  Status share(std::span<const Update> updates, const Status& own,
               const std::function<bool(PageId)>& sent = nullptr);

  // One page of these: where of its bytes something is stepped, of these tensors on it, by rising
  // place; what is sent of it; and what another rank takes from that, `from` bytes behind its
  // beginning.
  std::pair<std::uint64_t, std::uint64_t> bounds(PageId page,
                                                 std::span<const std::uint32_t> tensors) const;
  Status pack(PageId page, std::span<const std::uint32_t> tensors, std::span<std::byte> to);
  Status unpack(PageId page, std::span<const std::uint32_t> tensors, std::size_t from,
                std::span<const std::byte> bytes);

 private:
  // A page of parameters with the updates that touch it, and their tensors.
  struct Stepped {
    PageId page = 0;
    std::span<const Update> updates;
    std::vector<std::uint32_t> tensors;
  };

  std::vector<Update> sorted(std::span<const Update> updates) const;
  std::vector<Stepped> pages_of(std::span<const Update> sorted) const;
  Status send(std::span<const Update> sorted, bool steps,
              const std::function<bool(PageId)>& sent = nullptr);
  Status step(const Stepped& stepped);

  Collectives& ranks_;
  PageUses& pages_;
  const Layout& layout_;
  const Shards& shards_;
  OptimizerStream& stream_;
  const std::optional<Tier> tier_;
};

}  // namespace taco::zerocache
