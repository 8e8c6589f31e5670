// Steps of the optimizer in the middle of a backward pass.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "edge/without_gil.h"
#include "zerocache/torch/store.h"

namespace taco::zerocache {
namespace {

// Pages that are being stepped may have this share of the memory at most: the rest is for those
// that come and go.
constexpr std::uint32_t kShareOfDevice = 8, kShareOfHost = 4;

}  // namespace

Status Store::step_in_backward(std::size_t points) {
  TACO_RETURN_IF_ERROR(usable());
  if (!stream_ || backward_) return invalid("this cache has no optimizer, or steps it already");
  if (spread_ && !spread_->backward) {
    const StripedStep step(*ranks_, spread_->lockstep, layout_, spread_->stripes, *stream_);
    spread_->backward.emplace(step, layout_, spread_->stripes, *stream_, spread_->gradients,
                              spread_->gathered);
    return Status();
  }
  const MoverStats room = mover_->stats();
  const std::size_t device = room.tiers[0].capacity, host = room.tiers[1].capacity;
  const std::size_t each = std::max<std::size_t>(1, state_.kinds().size());
  const std::size_t most = std::min(device / kShareOfDevice,
                                    (std::max(host, kPassing) - kPassing) / each / kShareOfHost);
  BackwardOptions options{.points = points, .max_at_once = most};
  if (ranks_) options.own = [this](PageId page) { return shards_.owns(page); };
  auto steps = BackwardSteps::make(*stream_, layout_, stateful_, options);
  if (!steps.ok()) return steps.status();
  backward_ = std::move(steps).value();
  if (ranks_) {
    const ShardedStep step(*ranks_, *mover_, layout_, shards_, *stream_, std::nullopt);
    sharing_ =
        std::make_unique<BackwardShare>(*ranks_, step, layout_, shards_, *backward_, stateful_);
  }
  return Status();
}

Status Store::step_early(const Step& given) {
  TACO_RETURN_IF_ERROR(usable());
  // A tensor of its own, so that the memory shows who else has it.
  Step step = given;
  if (step.gradient.defined()) step.gradient = step.gradient.detach();
  leaving_.let_go();
  if (spread_ && spread_->backward) return average(step, true);
  if (!backward_) return invalid("this cache does not step in backward passes");
  // A user of it may still read it by an alias that has no version (w.data).
  if (const Entry* entry = find(step.parameter);
      !sharing_ && entry != nullptr && uses_.is_in_use(entry->parameter)) {
    std::vector<at::Tensor> copies;
    const auto update = update_of(step, copies);
    if (!update.ok()) return update.status();
    TACO_RETURN_IF_ERROR(stream_->check({&update.value(), 1}));
    waiting_.push_back(step);
    return advance();
  }
  TACO_RETURN_IF_ERROR(add_to_backward(step));
  return advance();
}

Status Store::add_to_backward(const Step& step) {
  std::vector<at::Tensor> copies;
  auto update = update_of(step, copies);
  if (!update.ok()) return update.status();
  TACO_RETURN_IF_ERROR(backward_->add(*update));
  gradients_[update->tensor] = copies.empty() ? step.gradient : copies.front();
  uses_.note_step(find(step.parameter)->parameter);
  return Status();
}

// Gives updates that wait to the steps, where no use of their parameters is open any more.
Status Store::add_waiting() {
  std::vector<Step> still;
  for (Step& step : std::exchange(waiting_, {})) {
    const Entry* const entry = find(step.parameter);
    if (entry != nullptr && uses_.is_in_use(entry->parameter)) {
      still.push_back(std::move(step));
    } else {
      TACO_RETURN_IF_ERROR(add_to_backward(step));
    }
  }
  waiting_ = std::move(still);
  return Status();
}

Status Store::advance() {
  TACO_RETURN_IF_ERROR(add_waiting());
  if (!backward_ || !backward_->begun()) return Status();
  Status status;
  {
    const WithoutGil others_run;
    status = backward_->advance();
  }
  for (const std::uint32_t tensor : backward_->take_done()) {
    if (auto gradient = gradients_.extract(tensor)) leaving_.add(std::move(gradient.mapped()));
  }
  buffers_.give_back(gradients_);
  return failed_step(status);
}

// Forgets gradients that nobody reads any more.
void Store::forget_gradients() {
  static_cast<void>(backward_->take_done());
  leaving_.let_go();
  for (auto& [tensor, gradient] : std::exchange(gradients_, {})) leaving_.add(std::move(gradient));
  leaving_.let_go();
  buffers_.give_back(gradients_);
}

// Ends what others compute: afterwards nobody computes on pages beside the caller.
void Store::wait_for_steps() {
  if (!backward_) return;
  const WithoutGil others_run;
  backward_->wait_for_chunks();
}

Status Store::finish_steps() {
  for (const Step& step : std::exchange(waiting_, {})) TACO_RETURN_IF_ERROR(add_to_backward(step));
  Status status;
  {
    const WithoutGil others_run;
    status = backward_->finish();
  }
  forget_gradients();
  return failed_step(status);
}

Result<std::vector<std::string>> Store::drop_steps() {
  TACO_RETURN_IF_ERROR(usable());
  if (spread_ && spread_->backward) return finish_dropped();
  if (!backward_) return std::vector<std::string>();
  waiting_.clear();
  Result<std::vector<std::uint32_t>> stepped = std::vector<std::uint32_t>();
  if (ranks_) {
    stepped = std::exchange(sent_, {});
  } else {
    const WithoutGil others_run;
    stepped = backward_->drop();
  }
  forget_gradients();
  TACO_RETURN_IF_ERROR(failed_step(stepped.status()));
  std::vector<std::string> names;
  for (const std::uint32_t tensor : *stepped) names.push_back(layout_.tensors()[tensor].name);
  return names;
}

void Store::forget_steps() {
  waiting_.clear();
  if (!backward_) return;
  {
    const WithoutGil others_run;
    backward_->forget();
    if (sharing_) sharing_->forget();
  }
  forget_gradients();
  sent_.clear();
}

}  // namespace taco::zerocache
