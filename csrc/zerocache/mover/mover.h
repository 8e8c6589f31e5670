// Has pages where they are needed, while others are written, read and evicted beside that: what the
// scheduler decides, carried out on a device, in host memory and on disks.
//
//   begin(key, accesses)   blocks until all of these pages are where they have to be; they stay
//   end(key)               until then
//
// Uses that are open at once may overlap and nest: a module inside another, a part of the
// optimizer's step beside a backward pass. Each change of what is open is an operator to the
// scheduler (open_uses.h); so the same program has the same operators in every run, however its
// uses nest.
//
// One thread, "taco-pages", carries out all decisions, in their order. The thread that begins or
// ends a use takes the decision itself, under the lock, and wakes that one only where there is
// something to do.
//
// A copy that fails is tried again while somebody waits for it; then begin() fails with it, and
// everything else stays as it was. A page whose last copy cannot be written stays in memory.
//
// Any thread. In a forked child begin() fails and all else does nothing; its end harms nobody.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "device/device.h"
#include "zerocache/disk/file_system.h"
#include "zerocache/disk/io_queue.h"
#include "zerocache/disk/slab.h"
#include "zerocache/pages/layout.h"
#include "zerocache/pages/page.h"
#include "zerocache/pages/page_uses.h"
#include "zerocache/schedule/cost.h"
#include "zerocache/schedule/residency.h"
#include "zerocache/schedule/run_record.h"
#include "zerocache/schedule/trace.h"

namespace taco::zerocache {

struct MoverOptions {
  // The device: its frames are as long as pages, and its cap is capacities.device. Null: there is
  // no device tier, and capacities.device is 0.
  std::shared_ptr<device::Device> device;
  // Reserved on the device for max_pages pages: page p lies at range + p * page_bytes while it is
  // there.
  std::byte* range = nullptr;
  // Capacities in pages. The disk's is what its directories have room for, whatever is said here.
  Capacities capacities;
  std::uint32_t max_pages = 0;      // the layout may grow up to so many
  Costs costs;                      // a first guess; measured from then on
  std::vector<SlabDirectory> disk;  // empty: there is no disk tier
  IoOptions io;                     // its buffers are the mover's
  StoreId store = 0;
  bool poison = false;  // for tests: host frames that are given up are full of 0xFF
};

struct TierStats {
  std::uint32_t capacity = 0, resident = 0;  // pages; what is on its way counts where it goes
};
struct WayStats {
  std::uint64_t copies = 0, failed = 0;
  std::uint64_t bytes = 0;      // of those that arrived
  Duration busy = 0;            // at least one copy was under way
  Duration stalled = 0;         // begin() waited, for a copy of this way last
  double bytes_per_second = 0;  // as the scheduler believes it now
};
struct MoverStats {
  std::array<TierStats, kTiers> tiers;  // by index_of(tier)
  std::array<WayStats, kWays> ways;     // by way
  std::uint64_t hits = 0, misses = 0;   // as in SchedulerStats
  std::uint64_t uses = 0;               // begun
  Duration stalled = 0;                 // of all begin() together
};

class Mover : public PageUses {
 public:
  // The layout must outlive it. kInvalidArgument names the option that cannot be, and what
  // Slab::create() and open_io_queue() refuse; kResource: no memory, no thread.
  static Result<std::unique_ptr<Mover>> open(FileSystem& files, const MoverOptions& options,
                                             const Layout& layout);
  // Waits for copies under way. No use may be waiting.
  ~Mover() override;
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  // A run is what is repeated: a training step, an evaluation. Runs of a name are expected to use
  // the same pages in the same order. What happens outside any run belongs to one without a name.
  void begin_run(const std::string& name);  // ends the open run if there is one
  void end_run();

  // The key's highest bit is not the caller's. A page that has no content yet and is not written
  // whole first (reads = false) has arbitrary bytes. kInvalidArgument where pages and capacities do
  // not allow it: names what is too small; else what failed on the way: names the page, its tensors
  // and the file. Then nothing is begun; pages that would have been written whole hold nothing.
  Status begin(OperatorKey key, std::span<const Access> accesses) override;
  // Ends the open use of that key that began last. There must be one.
  void end(OperatorKey key) override;

  // kDevice: always the same for a page. kHost: its frame, while a use has the page there. Both may
  // be touched only while a use has the page there.
  std::byte* address(PageId page, Tier tier) const override;
  Tier tier_of(PageId page) const override;
  // Whether it has been written and not been given up since; no page beyond max_pages has.
  bool has_content(PageId page) const override;

  // Nobody needs what these pages hold, and no use has them: their frames and slots are free, and
  // no copy is made for that.
  void discard(std::span<const PageId> pages);

  // Changes the layout that was given to open() (which only grows, up to max_pages): nobody here
  // reads it meanwhile. `change` may not call the mover.
  void change_layout(const std::function<void()>& change);

  // The last run of that name that has ended; of number 0 where there is none.
  RunRecord last_run(const std::string& name) const;
  std::size_t page_bytes() const;
  Capacities capacities() const;  // with what the disk's directories have room for
  Costs costs() const;            // as measured so far
  MoverStats stats() const;

 private:
  struct State;
  explicit Mover(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace taco::zerocache
