// A step of an optimizer whose state is dealt out among ranks: each steps the pages that it owns,
// while the pages that were stepped before travel to the others. All ranks have the same parameters
// and gradients, and have the same parameters afterwards, bit for bit, as one rank alone would
// have. Adafactor's moments are kept by all of them: a number for each row and each column.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "zerocache/collectives.h"
#include "zerocache/exchange.h"
#include "zerocache/layout.h"
#include "zerocache/optimizer_stream.h"
#include "zerocache/page_uses.h"
#include "zerocache/shards.h"

namespace taco::zerocache {

// Before anything is changed. OK on all ranks if `own` is, what this rank's stream says of the
// updates, and if all ranks are about to do the same; the gradients' values are not compared. Else
// a failure on all: kMismatch names a parameter, two ranks, and what they would do.
Status agree_on_step(Collectives& ranks, const Layout& layout, std::span<const Update> updates,
                     const Status& own);

// Of a step's kind and constants, which have to be alike on all ranks.
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

  // What agree_on_step() has found to be alike. OK on all ranks or a failure on all; then
  // parameters may be of two steps.
  Status run(std::span<const Update> updates);
  // The rest of that, where each rank has stepped its own pages already (backward_steps.h), or has
  // failed to: they travel to the others. As run().
  Status share(std::span<const Update> updates, const Status& own);

 private:
  // A page of parameters with the updates that touch it.
  struct Stepped {
    PageId page = 0;
    std::span<const Update> updates;
    std::uint64_t begin = 0, end = 0;  // bytes of the range, from the first that is stepped on
    bool whole = false;                // every tensor on it is stepped
  };

  std::vector<Update> sorted(std::span<const Update> updates) const;
  std::vector<Stepped> pages_of(std::span<const Update> sorted) const;
  Status send(std::span<const Update> sorted, bool steps);
  Status step(const Stepped& stepped);
  Status pack(const Stepped& stepped, std::span<std::byte> to);
  Status unpack(const Stepped& stepped, std::size_t from, std::span<const std::byte> bytes);

  Collectives& ranks_;
  PageUses& pages_;
  const Layout& layout_;
  const Shards& shards_;
  OptimizerStream& stream_;
  const std::optional<Tier> tier_;
};

}  // namespace taco::zerocache
