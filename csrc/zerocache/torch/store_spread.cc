// A store whose parameters are spread over ranks: each keeps the pages that it owns, and gathers
// those of a part of the model while that is used.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "edge/without_gil.h"
#include "zerocache/ranks/agreement.h"
#include "zerocache/ranks/zero1/sharded_step.h"
#include "zerocache/ranks/zero3/striped_step.h"
#include "zerocache/torch/store.h"

namespace taco::zerocache {
Status Store::spread(std::unique_ptr<Collectives> ranks) {
  TACO_RETURN_IF_ERROR(usable());
  if (ranks_ || stream_) return invalid("this cache has ranks or an optimizer already");
  TACO_RETURN_IF_ERROR(open_numbers(ranks->size()));
  ranks_ = std::move(ranks);
  is_spread_ = true;
  std::vector<PageId> others;
  for (PageId page = 0; page < layout_.pages(); ++page) {
    if (!is_placed_here(page) && mover_->has_content(page)) others.push_back(page);
  }
  mover_->discard(others);
  return {};
}

Status Store::start_gathering() {
  TACO_RETURN_IF_ERROR(usable());
  if (!is_spread_ || (spread_ && !making_))
    return invalid("this cache is not spread over ranks, or gathers already");
  if (making_) {
    const WithoutGil others_run;
    spread_->gathered.end_run();
    spread_.reset();
    making_ = false;
  }
  std::vector<std::uint32_t> parameters;
  for (const auto& entry : entries_) {
    if (!entry->gone) parameters.push_back(entry->tensor);
  }
  const Stripes stripes(layout_, parameters, ranks_->rank(), ranks_->size());
  shards_ = Shards::striped(layout_, state_, stateful_, stripes);
  const std::uint64_t own = stripes_with_room();
  auto all = [&] {
    const WithoutGil others_run;
    return gather_values(*ranks_, own);
  }();
  TACO_RETURN_IF_ERROR(all.status());
  spread_ = std::make_unique<Spread>(*ranks_, *mover_, layout_, stripes, stateful_,
                                     *std::min_element(all->begin(), all->end()));
  return {};
}

// The stripes that this rank can hold at a time. Each takes a page of every rank on the device,
// where one more is for reads and steps of parameters meanwhile; and the others' pages have to fit
// in beside all that it keeps. check_room() has seen to it that what is used at once does.
std::size_t Store::stripes_with_room() const {
  const Capacities room = mover_->capacities();
  const std::size_t total = std::size_t{room.device} + room.host + room.disk;
  std::size_t kept = kPassing;
  for (PageId page = 0; page < layout_.pages(); ++page) {
    kept += !layout_.tensors_on(page).empty() && (has_moments(page) || keeps(page));
  }
  const auto size = static_cast<std::size_t>(ranks_->size());
  const std::size_t by_frames = (std::max<std::size_t>(room.device, 1) - 1) / size;
  const std::size_t by_pages = (std::max(total, kept) - kept) / (size - 1);
  return std::max<std::size_t>(1, std::min(by_frames, by_pages));
}

void Store::leave_run(const std::string& reason) {
  if (!spread_ || !alone().ok()) return;
  left_run_ = true;
  const WithoutGil others_run;
  spread_->lockstep.give_up(Status(Code::kAborted, reason));
}

// Begins what was announced, so that the group is free for something else.
void Store::sync_ranks() {
  if (!spread_ || !alone().ok()) return;
  const WithoutGil others_run;
  static_cast<void>(spread_->lockstep.wait());
}

// All ranks are about to use the group for this, between runs too.
Status Store::barrier(const std::string& what, const Status& own) {
  if (run_is_over()) {
    // The next pass begins anew, without gradients of this one.
    lose_gradients();
    left_run_ = false;
    mover_->end_run();
    run_.clear();
  }
  if (run_.empty()) {
    spread_->gathered.end_run();
    TACO_RETURN_IF_ERROR(spread_->lockstep.begin_run(what));
  }
  return spread_->lockstep.barrier(what, own.ok() ? broken_ : own);
}

Status Store::gather(OperatorKey key, std::span<const Run> runs) {
  std::vector<PageId> pages;
  for (const Run& run : runs) {
    for (std::uint32_t i = 0; i < run.count; ++i) pages.push_back(run.first + i);
  }
  const WithoutGil others_run;
  return spread_->gathered.begin(key, pages);
}

Status Store::average_gradient(const at::Tensor& parameter, const at::Tensor& gradient) {
  TACO_RETURN_IF_ERROR(usable());
  if (!spread_) return invalid("this cache is not spread over ranks");
  return average({parameter, gradient, {}}, false);
}

// Early: it is stepped with its mean as soon as that is there.
Status Store::average(const Step& step, bool early) {
  std::vector<at::Tensor> copies;
  auto update = update_of(step, copies);
  if (!update.ok()) {
    leave_run(update.status().message());
    return update.status();
  }
  // If a gradient is there already, add() reports the second.
  gradients_.try_emplace(update->tensor, copies.empty() ? step.gradient : copies.front());
  if (early) uses_.note_step(find(step.parameter)->parameter);
  const FinalGradient given = {update->tensor, update->gradient, update->bf16_gradient};
  Status status;
  {
    const WithoutGil others_run;
    status = early ? spread_->backward->add(given, step.constants) : spread_->gradients.add(given);
  }
  for (const std::uint32_t tensor : spread_->gradients.take_done()) gradients_.erase(tensor);
  if (!status.ok()) {
    leave_run(status.message());
    lose_gradients();
  }
  return status;
}

Status Store::finish_gradients(const std::string& failure) {
  leaving_.let_go();
  if (ranks_ && !spread_ && backward_) {
    return finish_together(failure.empty() ? Status() : Status(Code::kAborted, failure));
  }
  TACO_RETURN_IF_ERROR(usable());
  if (!spread_) return {};
  Status status;
  {
    const WithoutGil others_run;
    status = spread_->backward ? spread_->backward->finish() : spread_->gradients.finish();
  }
  static_cast<void>(spread_->gradients.take_done());
  gradients_.clear();
  if (!status.ok()) {
    leave_run(status.message());
    lose_gradients();
  }
  return status;
}

// Drops gradients that were given for a step that nobody will take. Where some of it has been
// taken, all ranks know so.
void Store::lose_gradients() {
  const bool begun = spread_->backward && spread_->backward->begun();
  {
    const WithoutGil others_run;
    if (spread_->backward) spread_->backward->drop();
    spread_->gradients.clear();
  }
  gradients_.clear();
  ++gradients_lost_;
  if (begun && broken_.ok()) {
    broken_ = Status(Code::kAborted,
                     "ranks have parted in the middle of a step that a backward pass had begun, so "
                     "the parameters are of two steps; load a checkpoint to go on");
  }
}

Status Store::multiply_gradients(double factor) {
  TACO_RETURN_IF_ERROR(usable());
  if (spread_) spread_->gradients.multiply(static_cast<float>(factor));
  return {};
}

Result<bool> Store::unscale_gradients(double factor) {
  TACO_RETURN_IF_ERROR(finish_gradients());
  if (!spread_) return invalid("this cache is not spread over ranks");
  const WithoutGil others_run;
  return spread_->gradients.unscale(static_cast<float>(factor));
}

// All ranks are at the end of a forward pass. So what one of them raises in it, all do there.
Status Store::end_forward() {
  if (!spread_) return {};
  TACO_RETURN_IF_ERROR(usable());
  const WithoutGil others_run;
  return spread_->lockstep.barrier("end a forward pass", {});
}

Result<double> Store::gradient_norm(double order) {
  TACO_RETURN_IF_ERROR(finish_gradients());
  if (!spread_) return invalid("this cache is not spread over ranks");
  const WithoutGil others_run;
  return spread_->gradients.norm(order);
}

void Store::clear_averaged() {
  {
    const WithoutGil others_run;
    if (spread_->backward) spread_->backward->forget();
    spread_->gradients.clear();
  }
  gradients_.clear();
}

// The rest of a step that a backward pass has begun: `steps` of what passes have left in memory.
Status Store::finish_spread_steps(const std::vector<Step>& steps) {
  TACO_RETURN_IF_ERROR(alone());
  Status own = usable();
  for (const Step& step : steps) {
    if (own.ok()) own = step_early(step);
  }
  if (own.ok()) own = out_of_use("optimizer.step()");
  if (own.ok()) own = finish_gradients();
  {
    const WithoutGil others_run;
    TACO_RETURN_IF_ERROR(spread_->lockstep.barrier("step", own));
    spread_->gathered.release();
  }
  clear_averaged();
  return {};
}

std::vector<std::string> Store::stepped_early() const {
  std::vector<std::string> names;
  if (!spread_ || !spread_->backward) return names;
  for (const std::uint32_t tensor : spread_->backward->stepped()) {
    names.push_back(layout_.tensors()[tensor].name);
  }
  return names;
}

// Instead: what has a gradient has been stepped, or is now. All ranks do so at once.
Result<std::vector<std::string>> Store::finish_dropped() {
  if (run_is_over()) {
    lose_gradients();
    TACO_RETURN_IF_ERROR(broken_);
  }
  TACO_RETURN_IF_ERROR(finish_gradients());
  std::vector<std::string> names = stepped_early();
  {
    const WithoutGil others_run;
    spread_->gathered.release();
  }
  clear_averaged();
  return names;
}

Status Store::step_spread(const std::vector<Step>& steps) {
  if (spread_->backward) return finish_spread_steps(steps);
  TACO_RETURN_IF_ERROR(alone());
  std::vector<StripedUpdate> updates;
  Status own = stream_ ? usable() : invalid("this cache has no optimizer");
  for (const Step& step : steps) {
    const Entry* const entry = find(step.parameter);
    if (entry == nullptr) {
      own = invalid("a parameter of the optimizer is not in the cache");
    } else {
      updates.push_back({entry->tensor, step.constants});
    }
  }
  if (own.ok()) own = out_of_use("optimizer.step()");
  if (own.ok()) own = finish_gradients();
  StripedStep step(*ranks_, spread_->lockstep, layout_, spread_->stripes, *stream_);
  Status status;
  {
    const WithoutGil others_run;
    status = step.agree_on(updates, spread_->gradients, own);
  }
  TACO_RETURN_IF_ERROR(status);
  for (const Step& each : steps) find(each.parameter)->storage->note_write();
  {
    const WithoutGil others_run;
    spread_->gathered.release();
    status = step.run(updates, spread_->gradients);
  }
  clear_averaged();
  return failed_step(status);
}

Status Store::refuse_spread_step(const Status& own) {
  static_cast<void>(finish_gradients());
  const WithoutGil others_run;
  if (spread_->backward) return spread_->lockstep.barrier("step", own);
  TACO_RETURN_IF_ERROR(spread_->lockstep.barrier("step", {}));
  return agree_on_step(*ranks_, layout_, {}, own);
}

// Copies that are in use would not change with what their owners have.
Status Store::out_of_use(const std::string& before) const {
  if (uses_.open() == 0) return {};
  return invalid(
      "parameters are in use, and their owners are about to change them: leave "
      "'with cache.use()', and end forward and backward passes, before " +
      before);
}

// All ranks are about to write what they own of it; nobody has copies afterwards.
Status Store::barrier_before_write(const std::string& what) {
  const Status own = out_of_use("ZeroCache.full(parameter, value)");
  const WithoutGil others_run;
  TACO_RETURN_IF_ERROR(barrier("write " + what, own));
  spread_->gathered.release();
  return {};
}

// All ranks read it at once.
Status Store::read_spread(const PlacedTensor& tensor, std::span<std::byte> to) {
  const WithoutGil others_run;
  TACO_RETURN_IF_ERROR(barrier("read '" + tensor.name + "'", broken_));
  return read_together(tensor, to);
}

}  // namespace taco::zerocache
