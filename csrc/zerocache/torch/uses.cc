#include "zerocache/torch/uses.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/timeline.h"

namespace taco::zerocache {
namespace {

Status not_known(Uses::Part part) {
  return Status(Code::kInvalidArgument, "there is no part " + std::to_string(part));
}

}  // namespace

Uses::Parameter Uses::add(PlacedStorage& storage, Run pages) {
  storage.set_absent(PlacedStorage::kNotInUse);
  parameters_.push_back({&storage, pages});
  return static_cast<Parameter>(parameters_.size() - 1);
}

Uses::Part Uses::add_part(std::vector<Parameter> parameters) {
  std::vector<Run> pages;
  pages.reserve(parameters.size());
  for (const Parameter parameter : parameters) pages.push_back(parameters_[parameter].pages);
  return add_part(std::move(parameters), std::move(pages));
}

Uses::Part Uses::add_part(std::vector<Parameter> parameters, std::vector<Run> pages) {
  if (free_.empty()) {
    free_.push_back(static_cast<Part>(parts_.size()));
    parts_.emplace_back();
  }
  const Part part = free_.back();
  free_.pop_back();
  parts_[part] = {std::move(parameters), std::move(pages)};
  return part;
}

bool Uses::forget_part(Part part) {
  const auto is_its = [part](const Use& use) { return use.part == part; };
  if (std::any_of(open_.begin(), open_.end(), is_its)) return false;
  parts_[part] = {};
  free_.push_back(part);
  return true;
}

Status Uses::begin(Part part, Pass pass) {
  return begin_use(part, pass, pass == Pass::kForward ? GivesWay::kBackward : GivesWay::kNone);
}

Status Uses::begin_alone(Part part) { return begin_use(part, Pass::kForward, GivesWay::kAll); }

Status Uses::begin_use(Part part, Pass pass, GivesWay others) {
  if (part >= parts_.size()) return not_known(part);
  const Needs& needs = parts_[part];
  for (const Parameter parameter : needs.parameters)
    TACO_RETURN_IF_ERROR(parameters_[parameter].storage->check());
  Use use{.part = part, .pass = pass, .number = ++begun_};
  Status taken = take(use);
  const bool no_room = taken.code() == Code::kInvalidArgument;
  if (no_room && others != GivesWay::kNone) taken = take_alone(use, others, taken);
  TACO_RETURN_IF_ERROR(taken);
  use.began = monotonic_now();
  open_.push_back(use);
  return Status();
}

Status Uses::take(const Use& use) {
  const Needs& needs = parts_[use.part];
  TACO_RETURN_IF_ERROR(pager_.begin(key_of(use), needs.pages));
  for (const Parameter parameter : needs.parameters) {
    Held& held = parameters_[parameter];
    if (held.uses++ > 0) continue;
    held.storage->set_present();
    held.version = held.storage->version();
  }
  return Status();
}

void Uses::let_go(const Use& use) {
  const Needs& needs = parts_[use.part];
  // Marked before the pager may take the bytes away.
  std::vector<Run> written;
  for (std::size_t i = 0; i < needs.parameters.size(); ++i) {
    Held& held = parameters_[needs.parameters[i]];
    if (--held.uses > 0) continue;
    if (held.version != held.storage->version()) written.push_back(needs.pages[i]);
    held.storage->set_absent(PlacedStorage::kNotInUse);
  }
  if (!written.empty()) pager_.wrote(written);
  pager_.end(key_of(use), needs.pages);
}

// Other uses give way to this one.
Status Uses::take_alone(const Use& use, GivesWay others, const Status& no_room) {
  bool room = false;
  for (Use& other : open_) {
    const bool gives_way = others == GivesWay::kAll || other.pass == Pass::kBackward;
    if (!gives_way || other.gave_way_to != 0) continue;
    other.gave_way_to = use.number;
    let_go(other);
    room = true;
  }
  if (!room) return no_room;
  Status taken = take(use);
  if (!taken.ok()) static_cast<void>(take_again(use.number));
  return taken;
}

Status Uses::take_again(std::uint64_t gave_way_to) {
  for (Use& use : open_) {
    if (use.gave_way_to != gave_way_to) continue;
    TACO_RETURN_IF_ERROR(take(use));
    use.gave_way_to = 0;
  }
  return Status();
}

// Uses of one pass nest, or one begins where another ends: a row for each pass.
void Uses::show(const Use& use) const {
  const std::vector<Parameter>& parameters = parts_[use.part].parameters;
  if (!timeline::enabled() || parameters.empty()) return;
  std::string name = parameters_[parameters.front()].storage->described();
  if (parameters.size() > 1) name += " and " + std::to_string(parameters.size() - 1) + " more";
  timeline::add({.name = std::move(name),
                 .track = use.pass == Pass::kForward ? "model, forward" : "model, backward",
                 .started = use.began,
                 .ended = monotonic_now()});
}

void Uses::close(std::size_t index) {
  const Use use = open_[index];
  show(use);
  open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(index));
  if (use.gave_way_to == 0) let_go(use);
}

Status Uses::end(Part part, Pass pass) {
  if (part >= parts_.size()) return not_known(part);
  const auto latest = std::find_if(open_.rbegin(), open_.rend(),
                                   [&](const Use& use) { return use.same(part, pass); });
  if (latest == open_.rend()) {
    return Status(Code::kInvalidArgument, "part " + std::to_string(part) + " ends its " +
                                              (pass == Pass::kForward ? "forward" : "backward") +
                                              " pass, which has not begun");
  }
  const std::uint64_t number = latest->number;
  close(static_cast<std::size_t>(open_.rend() - latest) - 1);
  return take_again(number);
}

void Uses::note_write(Parameter parameter) {
  Held& held = parameters_[parameter];
  held.version = held.storage->version() - 1;
}

void Uses::note_step(Parameter parameter) {
  Held& held = parameters_[parameter];
  const bool unchanged = held.version == held.storage->version();
  held.storage->note_write();
  if (unchanged) held.version = held.storage->version();
}

void Uses::end_all() {
  while (!open_.empty()) close(open_.size() - 1);
}

}  // namespace taco::zerocache
