#include "zerocache/ranks/zero3/gathered_pages.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/timeline.h"

namespace taco::zerocache {

Status GatheredPages::begin_run(const std::string& name) {
  end_run();
  TACO_RETURN_IF_ERROR(lockstep_.begin_run(name));
  if (endings_ != lockstep_.endings()) {
    // Ranks have not seen the same of the run that ended.
    endings_ = lockstep_.endings();
    order_.forget();
    drop_unwanted();
  }
  order_.begin_run(name);
  ahead_ = true;
  look_ahead();
  return {};
}

void GatheredPages::end_run() {
  order_.end_run();
  static_cast<void>(lockstep_.wait());
  drop_unwanted();
  ahead_ = false;
}

Status GatheredPages::begin(OperatorKey key, std::span<const PageId> pages) {
  TACO_RETURN_IF_ERROR(lockstep_.ended());
  std::vector<StripeId> needed;
  for (const PageId page : pages) {
    if (!stripes_.covers(page)) continue;
    const StripeId stripe = stripes_.stripe_of(page);
    if (std::find(needed.begin(), needed.end(), stripe) == needed.end()) needed.push_back(stripe);
  }
  lockstep_.note(key);
  order_.begin(key, needed);
  drop_unwanted();
  Status status = have(needed);
  if (!status.ok()) end(key);
  return status;
}

void GatheredPages::end(OperatorKey key) {
  if (order_.end(key)) drop_unwanted();
}

// Announces the stripes that come next before it waits for any.
Status GatheredPages::have(std::span<const StripeId> needed) {
  static_cast<void>(lockstep_.wait());
  TACO_RETURN_IF_ERROR(lockstep_.ended());
  drop_unwanted();  // what has begun only now may be that, and in the way
  std::vector<StripeId> missing;
  std::copy_if(needed.begin(), needed.end(), std::back_inserter(missing),
               [this](StripeId stripe) { return !held_.contains(stripe); });
  const Time started = monotonic_now();
  if (!missing.empty()) {
    announce(missing);
    TACO_RETURN_IF_ERROR(lockstep_.wait());
  }
  const Duration announcing = monotonic_now() - started;
  look_ahead();
  const Time waiting = monotonic_now();
  for (const StripeId stripe : needed) TACO_RETURN_IF_ERROR(arrive(stripe));
  stats_.waited += announcing + (monotonic_now() - waiting);
  return {};
}

void GatheredPages::look_ahead() {
  if (!ahead_) return;
  const std::vector<StripeId> due =
      order_.due([this](StripeId stripe) { return held_.contains(stripe); });
  if (due.empty()) return;
  stats_.ahead += due.size();
  announce(due);
}

void GatheredPages::announce(const std::vector<StripeId>& stripes) {
  Intent intent;
  Digest digest;
  for (const StripeId stripe : stripes) {
    digest.add_value(stripe);
    if (intent.own.ok()) intent.own = take(stripe);
  }
  intent.what = "gather " + layout_.describe(stripes_.first_page(stripes.front()));
  intent.digest = digest.value();
  intent.start = [this, stripes]() -> Status {
    for (const StripeId stripe : stripes) TACO_RETURN_IF_ERROR(start(stripe));
    return {};
  };
  // A gather that failed once for one rank may well fail again, and all would wait for that.
  intent.drop = [this, stripes](const Status&) {
    for (const StripeId stripe : stripes) drop(stripe);
    ahead_ = false;
  };
  lockstep_.announce(std::move(intent));
}

// Room for a stripe, and the page of this rank in it.
Status GatheredPages::take(StripeId stripe) {
  std::vector<Access> accesses;
  for (int rank = 0; rank < stripes_.ranks(); ++rank) {
    const PageId page = stripes_.page_of(stripe, rank);
    if (page == kNoPage) continue;
    Access access{.page = page, .tier = options_.tier};
    if (rank != stripes_.rank()) {
      access.reads = false;
      access.writes = access.last = true;
    }
    accesses.push_back(access);
  }
  TACO_RETURN_IF_ERROR(pages_.begin(kStripeKeys + stripe, accesses));
  held_[stripe];
  return {};
}

bool GatheredPages::lies_in_a_row(StripeId stripe) const {
  const std::byte* next = nullptr;
  for (int rank = 0; rank < stripes_.ranks(); ++rank) {
    const PageId page = stripes_.page_of(stripe, rank);
    if (page == kNoPage) return false;
    const std::byte* const at = pages_.address(page, options_.tier);
    if (next != nullptr && at != next) return false;
    next = at + layout_.page_bytes();
  }
  return true;
}

Status GatheredPages::start(StripeId stripe) {
  Held& held = held_.at(stripe);
  const std::size_t bytes = layout_.page_bytes();
  const std::size_t all_bytes = bytes * static_cast<std::size_t>(stripes_.ranks());
  const std::size_t place = bytes * static_cast<std::size_t>(stripes_.rank());
  std::span<std::byte> all;
  if (lies_in_a_row(stripe)) {
    all = {pages_.address(stripes_.page_of(stripe, 0), options_.tier), all_bytes};
    ++stats_.in_place;
  } else {
    held.received.resize(all_bytes);
    all = held.received;
    const PageId own = stripes_.page_of(stripe, stripes_.rank());
    if (own != kNoPage) {
      std::memcpy(all.data() + place, pages_.address(own, options_.tier), bytes);
    }
  }
  auto work = ranks_.all_gather(all.subspan(place, bytes), all);
  if (!work.ok()) return work.status();
  held.work = std::move(work).value();
  held.stage = Stage::kUnderWay;
  held.started = monotonic_now();
  ++stats_.gathered;
  return {};
}

Status GatheredPages::arrive(StripeId stripe) {
  Held& held = held_.at(stripe);
  if (held.stage == Stage::kHere) return {};
  Status arrived = std::exchange(held.work, nullptr)->wait();
  held.stage = Stage::kHere;
  if (!arrived.ok()) {
    lockstep_.fail(arrived);
    return arrived;
  }
  unpack(stripe, std::exchange(held.received, {}));
  if (!timeline::enabled()) return {};
  timeline::add({.name = layout_.describe(stripes_.first_page(stripe)),
                 .track = "ranks, gather",
                 .started = held.started,
                 .ended = monotonic_now()});
  return {};
}

void GatheredPages::unpack(StripeId stripe, std::span<const std::byte> received) {
  if (received.empty()) return;
  const std::size_t bytes = layout_.page_bytes();
  for (int rank = 0; rank < stripes_.ranks(); ++rank) {
    const PageId page = stripes_.page_of(stripe, rank);
    if (page == kNoPage || rank == stripes_.rank()) continue;
    std::memcpy(pages_.address(page, options_.tier),
                received.data() + bytes * static_cast<std::size_t>(rank), bytes);
  }
}

void GatheredPages::release() {
  ahead_ = false;
  static_cast<void>(lockstep_.wait());
  for (auto& [stripe, held] : held_) held.stale = true;
  drop_unwanted();
}

void GatheredPages::release(StripeId stripe) {
  const auto found = held_.find(stripe);
  if (found == held_.end()) return;
  found->second.stale = true;
  drop_unwanted();
}

// A stripe that was announced has to begin first.
void GatheredPages::drop_unwanted() {
  std::vector<StripeId> unwanted;
  for (const auto& [stripe, held] : held_) {
    if (held.stage == Stage::kAnnounced) continue;
    if (held.stale ? !order_.uses(stripe) : !order_.wants(stripe)) unwanted.push_back(stripe);
  }
  for (const StripeId stripe : unwanted) drop(stripe);
}

void GatheredPages::drop(StripeId stripe) {
  const auto found = held_.find(stripe);
  if (found == held_.end()) return;
  if (found->second.work != nullptr) {
    const Status arrived = found->second.work->wait();
    if (!arrived.ok()) lockstep_.fail(arrived);
  }
  held_.erase(found);
  pages_.end(kStripeKeys + stripe);
}

}  // namespace taco::zerocache
