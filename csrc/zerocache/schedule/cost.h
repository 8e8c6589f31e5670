// The cost of moving pages: how fast each way between the tiers is, and what an eviction is worth.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/clock.h"
#include "zerocache/pages/page.h"

namespace taco::zerocache {

// The ways that pages go. Each carries its copies at the same time as the others do theirs.
enum class Way : unsigned char { kUpload, kDownload, kRead, kWrite };
inline constexpr int kWays = 4;

constexpr Way way_of(Tier from, Tier to) {
  if (from == Tier::kDisk) return Way::kRead;
  if (to == Tier::kDisk) return Way::kWrite;
  return to == Tier::kDevice ? Way::kUpload : Way::kDownload;
}

constexpr std::string_view name_of(Way way) {
  switch (way) {
    case Way::kUpload:
      return "host to device";
    case Way::kDownload:
      return "device to host";
    case Way::kRead:
      return "ssd to host";
    case Way::kWrite:
      return "host to ssd";
  }
  return "";
}

struct WaySpeed {
  double bytes_per_second = 10e9;
  Duration latency = 10 * kMicrosecond;
  std::uint32_t depth = 2;  // copies under way at once
};

struct Costs {
  std::size_t page_bytes = kPageBytes;
  // Host to device, device to host; disk to host, host to disk.
  WaySpeed ways[kWays] = {{}, {}, {2e9, 100 * kMicrosecond, 4}, {2e9, 100 * kMicrosecond, 4}};

  const WaySpeed& speed(Way way) const { return ways[static_cast<int>(way)]; }
  // The time of a page's bytes alone.
  Duration transfer_of(Way way) const {
    return static_cast<Duration>(static_cast<double>(page_bytes) / speed(way).bytes_per_second *
                                 1e9);
  }
  // The time of one page with nothing else under way.
  Duration time_of(Way way) const { return transfer_of(way) + speed(way).latency; }
  // The time of one page among many: the latency of one passes while others are under way.
  Duration share_of(Way way) const {
    return transfer_of(way) + speed(way).latency / speed(way).depth;
  }
};

// A page that has to be written back costs twice what one costs that is only fetched again. So it
// is evicted in the other's place where its next use is more than that many times as far.
inline constexpr std::int64_t kDirtyFactor = 2;
// On the device, of one that the host could have changed: as good as never, but for what is used
// no more. That some pages stay for good, and others come and go unchanged, takes no more fetching
// than if all took turns, and none of them has to come down.
inline constexpr std::int64_t kStaysFactor = 1000;

}  // namespace taco::zerocache
