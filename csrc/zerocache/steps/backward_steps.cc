#include "zerocache/steps/backward_steps.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>

#include "zerocache/pages/state_layout.h"

namespace taco::zerocache {
namespace {

bool no_room(const Status& status) { return status.code() == Code::kInvalidArgument; }

bool steps_whole_tensors(const Update& update) {
  return std::holds_alternative<kernels::AdafactorStep>(update.step);
}

}  // namespace

Result<std::unique_ptr<BackwardSteps>> BackwardSteps::make(OptimizerStream& stream,
                                                           const Layout& layout,
                                                           std::span<const std::uint32_t> tensors,
                                                           const BackwardOptions& options) {
  auto background = Background::start("taco-backward");
  if (!background.ok()) return background.status();
  std::unique_ptr<BackwardSteps> steps(
      new BackwardSteps(stream, layout, options.own, std::move(background).value()));
  for (const std::uint32_t index : tensors) {
    const PlacedTensor& tensor = layout.tensors()[index];
    const Run run = layout.pages_of(tensor);
    for (PageId id = run.first; id < run.first + run.count; ++id) {
      if (options.own != nullptr && !options.own(id)) continue;
      Page& page = steps->pages_[id];
      page.tensors.push_back(index);
      page.parts = StateLayout::parts_of(tensor.element_bytes);
      ++page.missing;
    }
  }
  for (const auto& [id, page] : steps->pages_) steps->chunks_ += page.parts;
  const std::size_t points = std::max<std::size_t>(options.points, 1);
  const std::size_t most = std::max<std::size_t>(options.max_at_once, 1);
  steps->at_once_ = std::clamp<std::size_t>((steps->chunks_ + points - 1) / points, 1, most);
  return steps;
}

Status BackwardSteps::add(const Update& update) {
  TACO_RETURN_IF_ERROR(stream_.check({&update, 1}));
  const PlacedTensor& tensor = layout_.tensors()[update.tensor];
  const Run run = layout_.pages_of(tensor);
  if (updates_.contains(update.tensor)) {
    return Status(Code::kInvalidArgument,
                  "parameter '" + tensor.name + "' has two gradients in one step");
  }
  Pending& pending = updates_[update.tensor] = {update};
  if (steps_whole_tensors(update)) {
    due_whole_.push_back(update.tensor);
    return {};
  }
  for (PageId id = run.first; id < run.first + run.count; ++id) {
    const auto page = pages_.find(id);
    if (page == pages_.end()) continue;
    ++pending.pages_left;
    if (--page->second.missing == 0) queue(id);
  }
  if (run.count > 0 && pending.pages_left == 0) done_.push_back(update.tensor);
  return {};
}

void BackwardSteps::queue(PageId id) {
  Page& page = pages_.at(id);
  page.queued = true;
  for (std::uint32_t part = 0; part < page.parts; ++part) due_.push_back({id, part});
}

// `open_` has the chunk afterwards, unless nothing of the updates lies on it.
Status BackwardSteps::begin(const Due& due) {
  std::vector<Update> updates;
  for (const std::uint32_t tensor : pages_.at(due.page).tensors) {
    const auto found = updates_.find(tensor);
    if (found != updates_.end()) updates.push_back(found->second.update);
  }
  auto chunk = stream_.begin_chunk(due.page, due.part, updates);
  if (!chunk.ok()) return chunk.status();
  for (const Update& update : updates) updates_.at(update.tensor).stepped = true;
  open_.emplace_back(due, std::move(chunk).value());
  return {};
}

// Begins as many chunks as may be in use at a time.
Status BackwardSteps::begin_some() {
  Status status;
  while (status.ok() && !due_.empty() && open_.size() < at_once_) {
    status = begin(due_.front());
    if (status.ok()) due_.pop_front();
  }
  if (open_.empty()) return status;
  background_->run([this] {
    for (const auto& [due, chunk] : open_) {
      if (chunk != nullptr) stream_.compute(*chunk);
    }
  });
  return status;
}

// A step that finds no room has changed nothing.
Status BackwardSteps::step_whole() {
  while (!due_whole_.empty()) {
    const std::uint32_t tensor = due_whole_.front();
    Pending& pending = updates_.at(tensor);
    TACO_RETURN_IF_ERROR(stream_.step_adafactor(pending.update, own_));
    pending.stepped = true;
    due_whole_.pop_front();
    done_.push_back(tensor);
  }
  return {};
}

Status BackwardSteps::advance() {
  wait_for_chunks();
  Status status = step_whole();
  if (status.ok()) status = begin_some();
  return no_room(status) ? Status() : status;
}

// Whether something is left to do there, or under way.
bool BackwardSteps::waits(PageId page) const {
  const auto is_there = [&](const Due& due) { return due.page == page; };
  const auto lies_there = [&](std::uint32_t tensor) {
    return layout_.pages_of(layout_.tensors()[tensor]).contains(page);
  };
  return std::any_of(due_.begin(), due_.end(), is_there) ||
         std::any_of(open_.begin(), open_.end(),
                     [&](const auto& each) { return is_there(each.first); }) ||
         std::any_of(due_whole_.begin(), due_whole_.end(), lies_there);
}

Status BackwardSteps::step_now(PageId page) {
  if (!waits(page)) return {};
  wait_for_chunks();
  TACO_RETURN_IF_ERROR(step_whole());
  const auto is_there = [&](const Due& due) { return due.page == page; };
  static_cast<void>(std::stable_partition(due_.begin(), due_.end(), is_there));
  while (waits(page)) {
    Status status = begin_some();
    if (!status.ok() && (open_.empty() || !no_room(status))) return status;
    wait_for_chunks();
  }
  return {};
}

void BackwardSteps::wait_for_chunks() {
  if (open_.empty()) return;
  background_->wait();
  for (const auto& [due, chunk] : open_) {
    if (chunk != nullptr) stream_.end(*chunk);
    if (due.part + 1 == pages_.at(due.page).parts) page_is_done(due.page);
  }
  open_.clear();
}

void BackwardSteps::page_is_done(PageId id) {
  for (const std::uint32_t tensor : pages_.at(id).tensors) {
    const auto found = updates_.find(tensor);
    if (found != updates_.end() && --found->second.pages_left == 0) done_.push_back(tensor);
  }
}

// Begins and ends all chunks that are due. If not even one has room, that is an error.
Status BackwardSteps::drain() {
  while (!due_.empty() || !open_.empty()) {
    wait_for_chunks();
    Status status = begin_some();
    if (!status.ok() && (open_.empty() || !no_room(status))) return status;
  }
  return {};
}

Status BackwardSteps::finish() {
  wait_for_chunks();
  Status status = step_whole();
  std::set<PageId> left;
  for (const auto& [tensor, pending] : updates_) {
    if (steps_whole_tensors(pending.update)) continue;
    const Run run = layout_.pages_of(layout_.tensors()[tensor]);
    for (PageId id = run.first; id < run.first + run.count; ++id) {
      const auto page = pages_.find(id);
      if (page != pages_.end() && !page->second.queued) left.insert(id);
    }
  }
  for (const PageId id : left) queue(id);
  if (status.ok()) status = drain();
  forget();
  return status;
}

Result<std::vector<std::uint32_t>> BackwardSteps::drop() {
  wait_for_chunks();
  std::vector<std::uint32_t> stepped;
  std::erase_if(updates_, [](const auto& each) { return !each.second.stepped; });
  for (const auto& [tensor, pending] : updates_) stepped.push_back(tensor);
  due_whole_.clear();
  TACO_RETURN_IF_ERROR(finish());
  return stepped;
}

void BackwardSteps::forget() {
  wait_for_chunks();
  due_.clear();
  due_whole_.clear();
  updates_.clear();
  for (auto& [id, page] : pages_) {
    page.missing = page.tensors.size();
    page.queued = false;
  }
}

std::vector<Update> BackwardSteps::added() const {
  std::vector<Update> updates;
  for (const auto& [tensor, pending] : updates_) updates.push_back(pending.update);
  return updates;
}

std::vector<std::uint32_t> BackwardSteps::take_done() { return std::exchange(done_, {}); }

}  // namespace taco::zerocache
