#include "zerocache/ranks/zero1/sharded_step.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>
#include <variant>

#include "base/assert.h"
#include "base/digest.h"
#include "zerocache/pages/touched_pages.h"
#include "zerocache/ranks/adafactor_ranks.h"
#include "zerocache/ranks/agreement.h"

namespace taco::zerocache {
namespace {

void add_step(Digest& digest, const kernels::AdamStep& step) {
  for (const float value :
       {step.gradient_factor, step.shrink, step.weight_decay, step.first_weight, step.second_weight,
        step.beta2, step.inverse_correction, step.minus_step_size, step.eps}) {
    digest.add_value(value);
  }
}

void add_step(Digest& digest, const kernels::SgdStep& step) {
  for (const float value :
       {step.gradient_factor, step.weight_decay, step.momentum, step.weight, step.minus_lr}) {
    digest.add_value(value);
  }
  digest.add_value(step.first);
  digest.add_value(step.nesterov);
}

void add_step(Digest& digest, const kernels::LionStep& step) {
  for (const float value : {step.gradient_factor, step.shrink, step.beta1, step.weight1, step.beta2,
                            step.weight2, step.minus_lr}) {
    digest.add_value(value);
  }
}

void add_step(Digest& digest, const kernels::AdafactorStep& step) {
  for (const float value : {step.gradient_factor, step.shrink, step.share}) digest.add_value(value);
  for (const double value : {step.rho, step.eps1, step.eps2, step.clip}) digest.add_value(value);
}

// The step that a rank is about to take of one parameter.
struct StepIntent {
  std::uint64_t tensor = 0;
  std::uint64_t step = 0;  // digest of its kind and constants
  bool operator==(const StepIntent&) const = default;
};

std::vector<StepIntent> intents_of(std::span<const Update> updates) {
  std::vector<StepIntent> intents;
  for (const Update& update : updates) intents.push_back({update.tensor, digest_of(update.step)});
  std::sort(intents.begin(), intents.end(),
            [](const StepIntent& a, const StepIntent& b) { return a.tensor < b.tensor; });
  return intents;
}

Status mismatch(const Layout& layout, std::span<const StepIntent> first,
                std::span<const StepIntent> other, std::size_t rank) {
  const auto place = std::mismatch(first.begin(), first.end(), other.begin(), other.end());
  const bool in_first = place.first != first.end(), in_other = place.second != other.end();
  const std::string here = "rank " + std::to_string(rank);
  if (in_first && in_other && place.first->tensor == place.second->tensor) {
    return Status(Code::kMismatch,
                  "parameter '" + layout.tensors()[place.first->tensor].name +
                      "' would be stepped otherwise on rank 0 than on " + here +
                      ": its learning rate, another option of its group, or the number of its "
                      "steps differs");
  }
  const bool missing_in_other =
      in_first && (!in_other || place.first->tensor < place.second->tensor);
  const StepIntent& alone = missing_in_other ? *place.first : *place.second;
  return Status(Code::kMismatch,
                "parameter '" + layout.tensors()[alone.tensor].name + "' has a gradient on " +
                    (missing_in_other ? "rank 0" : here) + " and none on " +
                    (missing_in_other ? here : "rank 0") +
                    ": all ranks have to step the same parameters (were the gradients averaged, "
                    "outside no_sync()?)");
}

}  // namespace

std::uint64_t digest_of(const StepConstants& constants) {
  Digest digest;
  digest.add_value(constants.index());
  std::visit([&](const auto& step) { add_step(digest, step); }, constants);
  return digest.value();
}

Status agree_on_step(Collectives& ranks, const Layout& layout, std::span<const Update> updates,
                     const Status& own) {
  TACO_RETURN_IF_ERROR(agree(ranks, own));
  const std::vector<StepIntent> intents = intents_of(updates);
  Digest digest;
  for (const StepIntent& intent : intents) {
    digest.add_value(intent.tensor);
    digest.add_value(intent.step);
  }
  auto all = gather_values(ranks, digest.value());
  TACO_RETURN_IF_ERROR(all.status());
  const std::uint32_t other = first_other(*all);
  if (other == 0) return {};
  const auto details = gather(ranks, std::as_bytes(std::span(intents)));
  if (!details.ok()) return details.status();
  const auto given_by = [&](std::size_t rank) {
    const std::vector<std::byte>& bytes = details.value()[rank];
    std::vector<StepIntent> given(bytes.size() / sizeof(StepIntent));
    if (!given.empty()) std::memcpy(given.data(), bytes.data(), bytes.size());
    return given;
  };
  return mismatch(layout, given_by(0), given_by(other), other);
}

// `sorted` by rising offset, without tensors that are empty.
std::vector<ShardedStep::Stepped> ShardedStep::pages_of(std::span<const Update> sorted) const {
  std::vector<Stepped> found;
  const auto tensor_of = [](const Update& update) { return update.tensor; };
  const auto note = [&](PageId page, std::span<const Update> updates) -> Status {
    Stepped stepped{page, updates, {}};
    for (const Update& update : updates) stepped.tensors.push_back(update.tensor);
    found.push_back(std::move(stepped));
    return {};
  };
  const Status noted = for_each_touched_page(layout_, sorted, tensor_of, note);
  TACO_ASSERT(noted.ok());
  return found;
}

// Bytes of the range, from the first that is stepped on.
std::pair<std::uint64_t, std::uint64_t> ShardedStep::bounds(
    PageId page, std::span<const std::uint32_t> tensors) const {
  const PlacedTensor& lowest = layout_.tensors()[tensors.front()];
  const PlacedTensor& highest = layout_.tensors()[tensors.back()];
  const std::uint64_t start = std::uint64_t{page} * layout_.page_bytes();
  return {std::max(start, lowest.offset),
          std::min(start + layout_.page_bytes(), highest.offset + highest.bytes)};
}

// The updates by their places, without those of empty tensors.
std::vector<Update> ShardedStep::sorted(std::span<const Update> updates) const {
  std::vector<Update> found;
  for (const Update& update : updates) {
    if (layout_.tensors()[update.tensor].bytes > 0) found.push_back(update);
  }
  sort_by_place(layout_, found);
  return found;
}

Status ShardedStep::run(std::span<const Update> updates) {
  std::vector<Update> all = sorted(updates);
  AdafactorMeasures measures;
  if (has_adafactor(all)) {
    auto measured = measure_in_turns(ranks_, layout_, stream_, all);
    if (!measured.ok()) return measured.status();
    measures = std::move(measured).value();
    TACO_RETURN_IF_ERROR(agree(ranks_, begin_measured(stream_, measures, all)));
  }
  return send(all, true);
}

Status ShardedStep::share(std::span<const Update> updates, const Status& own,
                          const std::function<bool(PageId)>& sent) {
  TACO_RETURN_IF_ERROR(agree(ranks_, own));
  return send(sorted(updates), false, sent);
}

// Each page by its owner; `steps`: as soon as that has stepped it.
Status ShardedStep::send(std::span<const Update> sorted, bool steps,
                         const std::function<bool(PageId)>& sent) {
  std::vector<Stepped> stepped = pages_of(sorted);
  if (sent != nullptr) {
    std::erase_if(stepped, [&](const Stepped& each) { return sent(each.page); });
  }
  std::vector<Parcel> parcels;
  parcels.reserve(stepped.size());
  for (const Stepped& each : stepped) {
    const auto [begin, end] = bounds(each.page, each.tensors);
    parcels.push_back({shards_.owner(each.page), end - begin});
  }
  const ExchangeCalls calls = {
      .pack = [&](std::size_t parcel, std::span<std::byte> to) -> Status {
        const Stepped& each = stepped[parcel];
        if (steps) TACO_RETURN_IF_ERROR(step(each));
        return pack(each.page, each.tensors, to);
      },
      .unpack =
          [&](std::size_t parcel, std::size_t from, std::span<const std::byte> bytes) {
            const Stepped& each = stepped[parcel];
            return unpack(each.page, each.tensors, from, bytes);
          },
  };
  return exchange(ranks_, parcels, calls);
}

Status ShardedStep::step(const Stepped& stepped) {
  return stream_.step_page(stepped.page, stepped.updates)
      .with_prefix("the optimizer's step ended before " + layout_.describe(stepped.page) + ": ");
}

Status ShardedStep::pack(PageId id, std::span<const std::uint32_t> tensors,
                         std::span<std::byte> to) {
  const OperatorKey key = kSendKeys + id;
  const Access access = access_in(tier_, id, true, false);
  TACO_RETURN_IF_ERROR(pages_.begin(key, {&access, 1}));
  const std::byte* const page = pages_.address(id, pages_.tier_of(id));
  std::memcpy(to.data(), page + bounds(id, tensors).first % layout_.page_bytes(), to.size());
  pages_.end(key);
  return {};
}

// Bytes between the tensors are not taken: they belong to this rank.
Status ShardedStep::unpack(PageId id, std::span<const std::uint32_t> tensors, std::size_t from,
                           std::span<const std::byte> bytes) {
  const auto [first_of_all, end_of_all] = bounds(id, tensors);
  const std::uint64_t begin = first_of_all + from, end = begin + bytes.size();
  const bool whole = layout_.tensors_on(id).size() == tensors.size();  // each on it is stepped
  const bool all_of_it = whole && begin == first_of_all && end == end_of_all;
  const OperatorKey key = kReceiveKeys + id;
  const Access access = access_in(tier_, id, !all_of_it, true);
  TACO_RETURN_IF_ERROR(pages_.begin(key, {&access, 1}));
  std::byte* const page = pages_.address(id, pages_.tier_of(id));
  for (const std::uint32_t index : tensors) {
    const PlacedTensor& tensor = layout_.tensors()[index];
    const std::uint64_t first = std::max(begin, tensor.offset);
    const std::uint64_t last = std::min(end, tensor.offset + tensor.bytes);
    if (first >= last) continue;
    std::memcpy(page + first % layout_.page_bytes(), bytes.data() + (first - begin), last - first);
  }
  pages_.end(key);
  return {};
}

}  // namespace taco::zerocache
