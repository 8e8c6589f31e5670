// Parameters that are spread over ranks, there where they are used: before a use begins, the
// stripes (stripes.h) that it needs are gathered from all ranks, and once neither a use nor the
// next ones need it, what other ranks own of a stripe is given up again.
//
//   begin_run(name)      a pass over the model begins
//   begin(key, pages)    returns when these parameters are here, and they stay until
//   end(key)
//   end_run()            nothing of what others own is here any more
//
// All ranks make the same calls; a rank that does not is found out (lockstep.h). What a program
// has used in earlier runs of that name is gathered ahead, while what is before it computes
// (gather_order.h). The pages lie where a PageUses has them: an owner's page is read from there,
// and a page that was gathered is one that was written whole and is not needed after its use, so it
// takes a frame and never travels to another tier. Where the pages of a stripe follow one another
// in memory, they are received in place.
//
// Checkpoints. What a rank holds are the pages that it owns, of parameters and of state
// (Shards::striped()), so a save is CheckpointSource::ranks with `holds` for these alone: each rank
// writes its pages, and the checkpoint is the same as one of a single rank. Tensors are found in it
// by name and length, whatever stripes and pages were. So any number of ranks loads it: each reads
// it, and takes what lies on its own pages, by write_own_bytes().
//
// One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "zerocache/pages/layout.h"
#include "zerocache/pages/page_uses.h"
#include "zerocache/ranks/collectives.h"
#include "zerocache/ranks/lockstep.h"
#include "zerocache/ranks/stripes.h"
#include "zerocache/ranks/zero3/gather_order.h"
#include "zerocache/steps/optimizer_stream.h"

namespace taco::zerocache {

struct GatherOptions {
  // Held at a time, the same on all ranks: those in use, however many they are, and beside them
  // what is gathered ahead. There has to be room for them in `tier`.
  std::size_t max_stripes = 4;
  Tier tier = Tier::kDevice;  // where parameters are used
};

struct GatherStats {
  std::uint64_t gathered = 0;  // stripes
  std::uint64_t ahead = 0;     // of these, before they were needed
  std::uint64_t in_place = 0;
  Duration waited = 0;  // for others, by uses that began
};

class GatheredPages {
 public:
  // The others outlive it.
  GatheredPages(Collectives& ranks, Lockstep& lockstep, PageUses& pages, const Layout& layout,
                const Stripes& stripes, const GatherOptions& options)
      : ranks_(ranks),
        lockstep_(lockstep),
        pages_(pages),
        layout_(layout),
        stripes_(stripes),
        options_(options),
        order_(options.max_stripes) {}
  // Waits for what is under way.
  ~GatheredPages() { end_run(); }
  GatheredPages(const GatheredPages&) = delete;
  GatheredPages& operator=(const GatheredPages&) = delete;

  // Ends the run that is open. Fails where the group has.
  Status begin_run(const std::string& name);
  void end_run();

  // Pages of parameters; others are not looked at. A failure is one on all ranks, and begins
  // nothing: what PageUses::begin() says on one of them, that ranks have parted, or that the group
  // has failed.
  Status begin(OperatorKey key, std::span<const PageId> pages);
  // Ends the open use of that key that began last; does nothing if there is none.
  void end(OperatorKey key);

  // Owners are about to change parameters. Copies of them are given up, and for the rest of the
  // run none is gathered before it is needed.
  void release();
  // Releases this stripe alone. A use that is open goes on with what it has.
  void release(StripeId stripe);

  std::size_t held() const { return held_.size(); }  // stripes
  const GatherStats& stats() const { return stats_; }

 private:
  enum class Stage : unsigned char { kAnnounced, kUnderWay, kHere };
  struct Held {
    Stage stage = Stage::kAnnounced;
    bool stale = false;
    Time started = 0;                 // to arrive
    std::vector<std::byte> received;  // unless it is received in place
    std::unique_ptr<Collectives::Work> work;
  };

  Status have(std::span<const StripeId> needed);
  void look_ahead();
  void announce(const std::vector<StripeId>& stripes);
  Status take(StripeId stripe);
  Status start(StripeId stripe);
  Status arrive(StripeId stripe);
  void unpack(StripeId stripe, std::span<const std::byte> received);
  void drop_unwanted();
  void drop(StripeId stripe);
  bool lies_in_a_row(StripeId stripe) const;

  Collectives& ranks_;
  Lockstep& lockstep_;
  PageUses& pages_;
  const Layout& layout_;
  const Stripes& stripes_;
  const GatherOptions options_;
  GatherOrder order_;
  bool ahead_ = false;  // whether to look ahead
  std::uint64_t endings_ = 0;
  std::map<StripeId, Held> held_;
  GatherStats stats_;
};

}  // namespace taco::zerocache
