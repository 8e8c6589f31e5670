#include "zerocache/ranks/zero1/backward_share.h"

#include <algorithm>

namespace taco::zerocache {

BackwardShare::BackwardShare(Collectives& ranks, const ShardedStep& step, const Layout& layout,
                             const Shards& shards, BackwardSteps& steps,
                             std::span<const std::uint32_t> trained)
    : ranks_(ranks),
      step_(step),
      layout_(layout),
      shards_(shards),
      steps_(steps),
      ready_(static_cast<std::size_t>(ranks.size())) {
  std::vector<std::uint32_t> by_place(trained.begin(), trained.end());
  std::sort(by_place.begin(), by_place.end(), [&](std::uint32_t a, std::uint32_t b) {
    return layout.tensors()[a].offset < layout.tensors()[b].offset;
  });
  for (const std::uint32_t tensor : by_place) {
    const Run run = layout.pages_of(layout.tensors()[tensor]);
    for (PageId page = run.first; page < run.first + run.count; ++page) {
      pages_[page].push_back(tensor);
    }
  }
}

Status BackwardShare::final(std::span<const std::uint32_t> tensors) {
  for (const PageId page : next_) {
    ready_[static_cast<std::size_t>(shards_.owner(page))].push_back(page);
  }
  next_.clear();
  for (const std::uint32_t tensor : tensors) {
    if (!final_.insert(tensor).second) continue;
    const Run run = layout_.pages_of(layout_.tensors()[tensor]);
    for (PageId page = run.first; page < run.first + run.count; ++page) {
      const auto found = pages_.find(page);
      if (found == pages_.end()) continue;
      const bool ready = std::all_of(found->second.begin(), found->second.end(),
                                     [&](std::uint32_t each) { return final_.contains(each); });
      if (ready) next_.push_back(page);
    }
  }
  return begin_rounds();
}

Status BackwardShare::begin_rounds() {
  const auto has_page = [](const std::deque<PageId>& each) { return !each.empty(); };
  while (std::all_of(ready_.begin(), ready_.end(), has_page)) {
    if (exchange_ == nullptr) {
      ExchangeCalls calls = {
          .pack = [this](std::size_t parcel,
                         std::span<std::byte> to) { return pack(parcels_[parcel], to); },
          .unpack =
              [this](std::size_t parcel, std::size_t from, std::span<const std::byte> bytes) {
                return unpack(parcels_[parcel], from, bytes);
              },
      };
      exchange_ = std::make_unique<Exchange>(ranks_, std::move(calls), layout_.page_bytes());
    }
    std::vector<Parcel> round;
    for (std::size_t rank = 0; rank < ready_.size(); ++rank) {
      const PageId page = ready_[rank].front();
      ready_[rank].pop_front();
      const auto [begin, end] = step_.bounds(page, pages_.at(page));
      round.push_back({static_cast<int>(rank), end - begin});
      parcels_.push_back(page);
      sent_.insert(page);
    }
    TACO_RETURN_IF_ERROR(exchange_->send(round));
  }
  return {};
}

template <typename Use>
Status BackwardShare::with_room(const Use& use) {
  Status status = use();
  if (status.code() != Code::kInvalidArgument) return status;
  steps_.wait_for_chunks();
  return use();
}

Status BackwardShare::pack(PageId page, std::span<std::byte> to) {
  TACO_RETURN_IF_ERROR(steps_.step_now(page));
  return with_room([&] { return step_.pack(page, pages_.at(page), to); });
}

// A tensor that is stepped whole is looked at before pages of it change.
Status BackwardShare::unpack(PageId page, std::size_t from, std::span<const std::byte> bytes) {
  TACO_RETURN_IF_ERROR(steps_.step_now(page));
  return with_room([&] { return step_.unpack(page, pages_.at(page), from, bytes); });
}

Status BackwardShare::wait() {
  if (exchange_ == nullptr) return {};
  TACO_RETURN_IF_ERROR(exchange_->wait());
  return exchange_->own();
}

void BackwardShare::forget() {
  exchange_.reset();
  final_.clear();
  next_.clear();
  for (std::deque<PageId>& each : ready_) each.clear();
  parcels_.clear();
  sent_.clear();
}

}  // namespace taco::zerocache
