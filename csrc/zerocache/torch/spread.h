// The members that a store has more where its parameters are spread over ranks: which pages are
// whose, copies of the others' while they are used, and gradients that are averaged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "zerocache/pages/layout.h"
#include "zerocache/pages/page_uses.h"
#include "zerocache/ranks/collectives.h"
#include "zerocache/ranks/lockstep.h"
#include "zerocache/ranks/stripes.h"
#include "zerocache/ranks/zero1/gradient_shards.h"
#include "zerocache/ranks/zero3/backward_stripes.h"
#include "zerocache/ranks/zero3/gathered_pages.h"

namespace taco::zerocache {

struct Spread {
  // The others outlive it. `trained`: by index in the layout.
  Spread(Collectives& ranks, PageUses& pages, const Layout& layout, const Stripes& all,
         std::span<const std::uint32_t> trained, std::size_t max_stripes)
      : lockstep(ranks),
        stripes(all),
        gathered(ranks, lockstep, pages, layout, stripes, {.max_stripes = max_stripes}),
        gradients(ranks, lockstep, layout, stripes, trained) {}

  Lockstep lockstep;
  Stripes stripes;
  GatheredPages gathered;
  GradientShards gradients;
  std::optional<BackwardStripes> backward;  // where steps are taken in backward passes
};

}  // namespace taco::zerocache
