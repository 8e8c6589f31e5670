// The pages that some bytes of a tensor lie on, one after the other. Pure; any thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/assert.h"
#include "base/status.h"
#include "zerocache/pages/layout.h"
#include "zerocache/pages/page.h"

namespace taco::zerocache {

// visit(page, place in it, first byte of the span, bytes) for each page that the bytes lie on, as
// long as it succeeds. `from` is in bytes from the tensor's start, and the span ends within it.
template <class Visit>
Status each_page(std::size_t page_bytes, const PlacedTensor& tensor, std::uint64_t from,
                 std::size_t bytes, const Visit& visit) {
  TACO_ASSERT(from <= tensor.bytes && bytes <= tensor.bytes - from);
  for (std::size_t done = 0; done < bytes;) {
    const std::uint64_t at = tensor.offset + from + done;
    const std::size_t place = at % page_bytes;
    const std::size_t part = std::min(bytes - done, page_bytes - place);
    TACO_RETURN_IF_ERROR(visit(static_cast<PageId>(at / page_bytes), place, done, part));
    done += part;
  }
  return {};
}

}  // namespace taco::zerocache
