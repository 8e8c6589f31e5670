// The mover of pages, as seen by code that computes on them.
#pragma once

#include <cstddef>
#include <span>

#include "base/status.h"
#include "zerocache/pages/access.h"
#include "zerocache/pages/operator_keys.h"
#include "zerocache/pages/page.h"

namespace taco::zerocache {

class PageUses {
 public:
  virtual ~PageUses() = default;
  // Returns once all pages are where the accesses say, or, of those that may be anywhere, in
  // tier_of(page); there they stay until end(). `key` names the use, the same in every run. A page
  // that holds nothing has arbitrary bytes. A failure begins nothing.
  virtual Status begin(OperatorKey key, std::span<const Access> accesses) = 0;
  // Ends the use of that key which was begun last.
  virtual void end(OperatorKey key) = 0;
  // Where a page lies in `tier` while a use holds it there.
  virtual std::byte* address(PageId page, Tier tier) const = 0;
  // The memory that a use holds the page in; kDevice if uses hold it in both.
  virtual Tier tier_of(PageId page) const = 0;
  // Whether a page has been written and not been given up since.
  virtual bool has_content(PageId page) const = 0;
};

}  // namespace taco::zerocache
