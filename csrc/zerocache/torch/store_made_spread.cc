// A model that several ranks build together, each keeping its part from the first on. All of them
// make the same parameters in the same order. A parameter that is touched later is gathered, as it
// is in training, so all see the same values; each rank writes back what it owns.
//
// Values that ranks draw at random have to be alike, or the parameters would be a mixture: each
// tensor that is made or changed is compared.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "edge/without_gil.h"
#include "zerocache/pages/checksum.h"
#include "zerocache/ranks/agreement.h"
#include "zerocache/torch/store.h"

namespace taco::zerocache {
namespace {

Status differs(const std::string& described, std::uint32_t rank) {
  return Status(Code::kMismatch, described + " was given other values on rank " +
                                     std::to_string(rank) +
                                     " than on rank 0 while the model was built: seed all ranks "
                                     "alike before 'with cache.init(shard_parameters=True)'");
}

}  // namespace

Status Store::make_spread(std::unique_ptr<Collectives> ranks) {
  TACO_RETURN_IF_ERROR(usable());
  if (!entries_.empty()) return invalid("this cache has made parameters that are whole already");
  TACO_RETURN_IF_ERROR(spread(std::move(ranks)));
  const Stripes none(layout_, {}, ranks_->rank(), ranks_->size());
  shards_ = Shards::striped(layout_, state_, {}, none);
  constexpr std::size_t kNothingAhead = 1;
  spread_ = std::make_unique<Spread>(*ranks_, *mover_, layout_, none,
                                     std::span<const std::uint32_t>(), kNothingAhead);
  making_ = true;
  return {};
}

// A tensor that was not initialized yet may have any bytes, so that these differ is no failure by
// itself: it is one if nobody changes them before the model is wrapped.
Status Store::agree_to_make(const std::string& what, const at::Tensor& tensor) {
  const std::string text = "make " + what + " (number " + std::to_string(made_ + 1) +
                           " in init(), of " + std::to_string(tensor.nbytes()) + " bytes)";
  const auto* const bytes = static_cast<const std::byte*>(tensor.const_data_ptr());
  const std::uint64_t own = digest({bytes, tensor.nbytes()});
  {
    const WithoutGil others_run;
    TACO_RETURN_IF_ERROR(barrier(text, {}));
    auto all = gather_values(*ranks_, own);
    TACO_RETURN_IF_ERROR(all.status());
    differs_on_ = first_other(*all);
  }
  return forget_agreed();
}

// Each rank's garbage collector says which tensors are gone. Those that are gone on all ranks are
// forgotten, so that pages are the same everywhere.
Status Store::forget_agreed() {
  std::vector<std::byte> own(entries_.size());
  std::uint64_t count = 0;
  for (std::size_t i = 0; i < own.size(); ++i) {
    const bool gone = !entries_[i]->gone && !entries_[i]->storage->alive();
    own[i] = std::byte{gone};
    count += gone;
  }
  const auto size = static_cast<std::size_t>(ranks_->size());
  std::vector<std::byte> all(size * own.size());
  {
    const WithoutGil others_run;
    static_cast<void>(spread_->lockstep.wait());
    auto counts = gather_values(*ranks_, count);
    TACO_RETURN_IF_ERROR(counts.status());
    if (std::find(counts->begin(), counts->end(), 0u) != counts->end()) return {};
    TACO_RETURN_IF_ERROR(all_gather(*ranks_, own, all));
  }
  for (std::size_t i = 0; i < own.size(); ++i) {
    bool everywhere = true;
    for (std::size_t rank = 0; rank < size; ++rank) {
      everywhere = everywhere && all[rank * own.size() + i] != std::byte{0};
    }
    if (everywhere) forget(*entries_[i]);
  }
  return {};
}

// The same on all ranks.
Status Store::check_made_alike() const {
  for (const auto& entry : entries_) {
    if (entry->gone || !entry->named || entry->differs_on == 0) continue;
    if (entry->storage->version() != entry->made_version) continue;
    return differs(entry->storage->described(), entry->differs_on);
  }
  return {};
}

// Copies of what lies beside it would not have it; and there is room for it once they are gone.
void Store::make_room_for(const Run& run) {
  for (PageId page = run.first; page < run.first + run.count; ++page) {
    spread_->gathered.release(spread_->stripes.stripe_of(page));
  }
}

// Pages that are in use, and on the device.
void Store::compare_written(std::span<const Access> accesses) {
  std::uint64_t own = 0;
  for (const Access& access : accesses) {
    const std::byte* const bytes = mover_->address(access.page, Tier::kDevice);
    own = own * 31 + digest({bytes, page_bytes()});
  }
  const std::string described = layout_.describe(accesses.front().page);
  Status status;
  {
    const WithoutGil others_run;
    // Where ranks have parted, the next use says so.
    if (!spread_->lockstep.barrier("change " + described, {}).ok()) return;
    auto all = gather_values(*ranks_, own);
    status = all.status();
    const std::uint32_t other = all.ok() ? first_other(*all) : 0;
    if (other != 0) status = differs(described, other);
  }
  if (broken_.ok()) broken_ = status;
}

// Gives the tensor back on all ranks, also on one where nobody is left who would have it.
Status Store::give_back_together(const Entry& entry) {
  const Run run = layout_.pages_of(layout_.tensors()[entry.tensor]);
  const OperatorKey key = kGiveBackKeys | run.first;
  TACO_RETURN_IF_ERROR(gather(key, {&run, 1}));
  Status status;
  if (entry.storage->alive()) {
    entry.storage->set_present();
    status = entry.storage->restore();
    if (!status.ok()) entry.storage->set_absent();
  }
  const WithoutGil others_run;
  spread_->gathered.end(key);
  return status;
}

// All ranks are at the end of a block that builds.
Status Store::end_making() {
  if (!making_) return {};
  TACO_RETURN_IF_ERROR(alone());
  const WithoutGil others_run;
  return spread_->lockstep.barrier("leave init()", broken_);
}

}  // namespace taco::zerocache
