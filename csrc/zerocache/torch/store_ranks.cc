// A store whose parameters other ranks hold as well: each keeps a part of the state.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/digest.h"
#include "edge/without_gil.h"
#include "zerocache/mover/tensor_bytes.h"
#include "zerocache/ranks/agreement.h"
#include "zerocache/ranks/exchange.h"
#include "zerocache/ranks/own_bytes.h"
#include "zerocache/ranks/zero1/sharded_step.h"
#include "zerocache/torch/store.h"

namespace taco::zerocache {
namespace {

// The part of a tensor that lies on one page.
struct Place {
  PageId page = 0;
  std::uint64_t from = 0, bytes = 0;  // of the tensor
};

std::vector<Place> places_of(const PlacedTensor& tensor, std::uint64_t bytes,
                             std::size_t page_bytes) {
  std::vector<Place> places;
  for (std::uint64_t done = 0; done < bytes;) {
    const std::uint64_t at = tensor.offset + done;
    const std::uint64_t part = std::min(bytes - done, page_bytes - at % page_bytes);
    places.push_back({static_cast<PageId>(at / page_bytes), done, part});
    done += part;
  }
  return places;
}

}  // namespace

// Why this process cannot take part in anything with others; OK if it can.
Status Store::alone() const {
  if (closed()) return invalid("this cache is closed");
  if (getpid() != process_) {
    return invalid("this process was forked: it cannot use the cache of process " +
                   std::to_string(process_));
  }
  return {};
}

Status Store::together(const Status& own) {
  if (!ranks_) return own;
  const WithoutGil others_run;
  if (spread_) static_cast<void>(spread_->lockstep.wait());
  return agree(*ranks_, own);
}

Status Store::share(std::unique_ptr<Collectives> ranks) {
  TACO_RETURN_IF_ERROR(usable());
  if (ranks_ || backward_) return invalid("this cache has ranks already, or steps by itself");
  shards_ = Shards::deal(layout_, state_, stateful_, ranks->rank(), ranks->size());
  ranks_ = std::move(ranks);
  return {};
}

Status Store::refuse_step(const std::string& reason) {
  TACO_RETURN_IF_ERROR(alone());
  Status own = invalid(reason);
  if (!ranks_) return own;
  if (spread_) return refuse_spread_step(own);
  const WithoutGil others_run;
  return agree_on_step(*ranks_, layout_, {}, own);
}

Status Store::agree_on_steps(const std::vector<Step>& steps) {
  TACO_RETURN_IF_ERROR(alone());
  if (!ranks_ || spread_ || !backward_) return invalid("no ranks share steps in backward passes");
  static constexpr float kPresent = 0;
  Status own = usable();
  std::vector<at::Tensor> copies;
  std::vector<Update> updates;
  for (const Step& step : steps) {
    auto update = update_of({step.parameter, {}, step.constants}, copies);
    if (!update.ok()) {
      if (own.ok()) own = update.status();
      continue;
    }
    update->gradient = &kPresent;
    updates.push_back(*update);
  }
  if (own.ok()) own = stream_->check(updates);
  const WithoutGil others_run;
  return agree_on_step(*ranks_, layout_, updates, own);
}

Status Store::step_together(const std::vector<Step>& steps) {
  TACO_RETURN_IF_ERROR(alone());
  std::vector<at::Tensor> copies;
  const auto made = updates_of(steps, copies);
  const std::span<const Update> updates =
      made.ok() ? std::span<const Update>(made.value()) : std::span<const Update>();
  Status status;
  {
    const WithoutGil others_run;
    status = agree_on_step(*ranks_, layout_, updates, made.status());
  }
  TACO_RETURN_IF_ERROR(status);
  if (backward_) {
    for (const Step& step : steps) {
      if (status.ok()) status = step_early(step);
    }
    if (!steps.empty()) status = finish_together(status);
    if (status.ok()) sent_.clear();
    return status;
  }
  for (const Step& step : steps) find(step.parameter)->storage->note_write();
  {
    const WithoutGil others_run;
    status = ShardedStep(*ranks_, *mover_, layout_, shards_, *stream_, std::nullopt).run(updates);
    if (status.ok() && gradient_pages_) status = gradient_pages_->drop(*mover_);
  }
  return failed_step(status);
}

Status Store::share_final(const std::vector<at::Tensor>& parameters) {
  TACO_RETURN_IF_ERROR(alone());
  if (!sharing_) return invalid("no ranks share steps in backward passes");
  std::vector<std::uint32_t> tensors;
  for (const at::Tensor& parameter : parameters) {
    const Entry* const entry = find(parameter);
    if (entry == nullptr) return invalid("a parameter of the optimizer is not in the cache");
    tensors.push_back(entry->tensor);
  }
  Status status;
  {
    const WithoutGil others_run;
    status = sharing_->final(tensors);
  }
  for (const std::uint32_t tensor : backward_->take_done()) gradients_.erase(tensor);
  buffers_.give_back(gradients_);
  return status.ok() ? status : failed_step(status);
}

// The rest of what backward passes have begun: all ranks have been given the same gradients, and
// have stepped their own pages, or do so now; then these travel.
Status Store::finish_together(const Status& before) {
  TACO_RETURN_IF_ERROR(alone());
  const std::vector<Update> added = backward_->added();
  const bool was_broken = !broken_.ok();
  Status status;
  {
    const WithoutGil others_run;
    Status own = was_broken ? broken_ : before;
    if (own.ok()) own = backward_->finish();
    const Status arrived = sharing_->wait();
    if (own.ok()) own = arrived;
    backward_->forget();
    status = ShardedStep(*ranks_, *mover_, layout_, shards_, *stream_, std::nullopt)
                 .share(added, own, [this](PageId page) { return sharing_->sent(page); });
    sharing_->forget();
  }
  forget_gradients();
  for (const Update& update : added) sent_.push_back(update.tensor);
  return was_broken ? broken_ : failed_step(status);
}

// Without the GIL. The keys of these uses are those of who reads alone: nobody else does meanwhile.
Status Store::read_together(const PlacedTensor& tensor, std::span<std::byte> to) {
  const std::vector<Place> places = places_of(tensor, to.size(), page_bytes());
  std::vector<Parcel> parcels;
  parcels.reserve(places.size());
  for (const Place& place : places) parcels.push_back({shards_.owner(place.page), place.bytes});
  const ExchangeCalls calls = {
      .pack =
          [&](std::size_t parcel, std::span<std::byte> into) {
            const std::uint64_t from = places[parcel].from;
            Status read =
                read_bytes(*mover_, page_bytes(), tensor, tier_of(page_of(tensor)), from, into);
            std::memcpy(to.data() + from, into.data(), into.size());
            return read;
          },
      .unpack =
          [&](std::size_t parcel, std::size_t from, std::span<const std::byte> bytes) {
            std::memcpy(to.data() + places[parcel].from + from, bytes.data(), bytes.size());
            return Status();
          },
  };
  return exchange(*ranks_, parcels, calls);
}

bool Store::keeps_of(const PlacedTensor& tensor, std::size_t offset, std::size_t bytes) const {
  const PageId page = page_of(tensor);
  if (!is_dealt_out(page)) return true;
  const std::uint64_t begin = tensor.offset + offset;
  for (std::uint64_t each = begin / page_bytes(); each <= (begin + bytes - 1) / page_bytes();
       ++each) {
    if (shards_.owns(static_cast<PageId>(each))) return true;
  }
  return false;
}

// Writes the part that this rank keeps.
Status Store::write_kept(const PlacedTensor& tensor, Tier tier, std::uint64_t from,
                         std::span<const std::byte> bytes, bool* spoilt) {
  if (bytes.empty()) return {};
  const PageId page = page_of(tensor);
  if (!is_dealt_out(page)) {
    return write_bytes(*mover_, page_bytes(), tensor, tier, from, bytes, spoilt);
  }
  return write_own_bytes(*mover_, page_bytes(), shards_, tensor, tier, from, bytes, spoilt);
}

// Whether all ranks are about to load one checkpoint.
// Two checkpoints of one store in two directories differ only in their pages.
Status Store::check_same(const Manifest& manifest) {
  if (!ranks_) return {};
  const WithoutGil others_run;
  Digest digest;
  digest.add(encode_manifest(manifest));
  auto all = gather_values(*ranks_, digest.value());
  TACO_RETURN_IF_ERROR(all.status());
  const std::uint32_t other = first_other(*all);
  if (other == 0) return {};
  return Status(Code::kMismatch, "the checkpoint that rank " + std::to_string(other) +
                                     " is about to load is not that of rank 0: give all ranks "
                                     "one directory, that all of them see");
}

}  // namespace taco::zerocache
