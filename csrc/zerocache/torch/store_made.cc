// Parameters of a model that is being built: they are here before they have a name, and some of
// them are gone again before the model is whole, or belong to something else.
#include <algorithm>
#include <utility>

#include "edge/without_gil.h"
#include "zerocache/torch/store.h"

namespace taco::zerocache {

Status Store::make(const std::string& what, const at::Tensor& tensor) {
  TACO_RETURN_IF_ERROR(usable());
  for (const auto& entry : entries_) entry->storage->leave(tensor);
  if (const Entry* entry = find(tensor)) {
    entry->storage->add(tensor, entry->made_as);
    return Status();
  }
  if (is_placed(tensor)) return check_placeable(tensor, what);
  if (!check_placeable(tensor, what).ok()) return Status();
  TACO_RETURN_IF_ERROR(making_ ? agree_to_make(what, tensor) : forget_gone());
  const std::string name = what + " (number " + std::to_string(++made_) + " in init())";
  TACO_RETURN_IF_ERROR(place(name, tensor));
  Entry& entry = *entries_.back();
  entry.made_as = name;
  entry.named = false;
  entry.differs_on = differs_on_;
  entry.made_version = entry.storage->version();
  return Status();
}

void Store::forget(Entry& entry) {
  const Run run = layout_.pages_of(layout_.tensors()[entry.tensor]);
  std::vector<PageId> alone;
  for (PageId page = run.first; page < run.first + run.count; ++page) {
    if (layout_.tensors_on(page).size() > 1) continue;
    if (making_) {
      spread_->gathered.release(spread_->stripes.stripe_of(page));
      spread_->stripes.uncover(page);
    }
    if (mover_->has_content(page)) alone.push_back(page);
  }
  mover_->discard(alone);
  mover_->change_layout([&] { layout_.remove(entry.tensor); });
  std::erase_if(by_name_, [&](const auto& named) { return named.second == &entry; });
  std::erase_if(by_storage_, [&](const auto& known) { return known.second == &entry; });
  entry.gone = true;
}

Status Store::forget_gone() {
  if (making_) return forget_agreed();
  for (const auto& entry : entries_) {
    if (!entry->gone && !entry->storage->alive()) forget(*entry);
  }
  return {};
}

Result<bool> Store::name_made(const std::vector<std::pair<std::string, at::Tensor>>& names) {
  TACO_RETURN_IF_ERROR(usable());
  uses_.end_all();
  TACO_RETURN_IF_ERROR(forget_gone());
  by_name_.clear();
  Status status;
  mover_->change_layout([&] {
    // None of these can be the name of a parameter in a model, so all of those are free then.
    for (const auto& entry : entries_) {
      if (entry->gone || !status.ok()) continue;
      entry->named = false;
      entry->storage->rename(entry->made_as);
      by_name_[entry->made_as] = entry.get();
      status = layout_.rename(entry->tensor, entry->made_as);
    }
    for (const auto& [name, tensor] : names) {
      Entry* entry = find(tensor);
      if (entry == nullptr || !status.ok()) continue;
      if (!entry->named) {
        entry->storage->rename(name);
        status = layout_.rename(entry->tensor, name);
        by_name_.erase(entry->made_as);
      }
      entry->storage->add(tensor, name);
      entry->named = true;
      by_name_[name] = entry;
    }
  });
  TACO_RETURN_IF_ERROR(status);
  TACO_RETURN_IF_ERROR(check_made_alike());
  // For errors to call them so.
  for (const auto& entry : entries_) {
    if (!entry->gone) entry->storage->set_absent(PlacedStorage::kNotInUse);
  }
  return std::all_of(entries_.begin(), entries_.end(),
                     [](const auto& entry) { return entry->gone || entry->named; });
}

Status Store::give_back_unnamed(const Status& refusal) {
  TACO_RETURN_IF_ERROR(usable());
  if (making_) {
    const WithoutGil others_run;
    TACO_RETURN_IF_ERROR(barrier("give back what the model does not have", refusal));
  }
  TACO_RETURN_IF_ERROR(refusal);
  Status status;
  for (const auto& entry : entries_) {
    if (entry->gone || entry->named) continue;
    Status given = making_ ? give_back_together(*entry)
                           : (entry->storage->alive() ? restore(*entry) : Status());
    if (status.ok()) status = std::move(given);
    if (!status.ok() && !making_) return status;
  }
  TACO_RETURN_IF_ERROR(forget_gone());
  return status;
}

}  // namespace taco::zerocache
