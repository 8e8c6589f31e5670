// An access says where an operator needs a page to lie, and what becomes of its bytes.
#pragma once

#include <optional>

#include "zerocache/pages/page.h"

namespace taco::zerocache {

struct Access {
  PageId page = kNoPage;
  Tier tier = Tier::kDevice;  // where the page has to be: kDevice or kHost
  bool reads = true;          // false: all of it is written first, so nothing need be fetched
  bool writes = false;
  bool last = false;  // what it holds is not needed afterwards: a gradient that was consumed
  // Either memory will do, and `tier` is what has been chosen: arithmetic on the host that reaches
  // the device's memory, too.
  bool anywhere = false;
  bool operator==(const Access&) const = default;
};

// An access to a page in that tier; in either memory if none is given.
inline Access access_in(std::optional<Tier> tier, PageId page, bool reads, bool writes) {
  return {.page = page,
          .tier = tier.value_or(Tier::kDevice),
          .reads = reads,
          .writes = writes,
          .anywhere = !tier.has_value()};
}

}  // namespace taco::zerocache
