// Reads and writes of a store as a whole: tensors, steps of the optimizer, checkpoints.
#include <ATen/ops/empty_strided.h>

#include <algorithm>

#include "edge/without_gil.h"
#include "zerocache/mover/tensor_bytes.h"
#include "zerocache/steps/adafactor_state.h"
#include "zerocache/torch/store.h"

namespace taco::zerocache {
namespace {

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

std::span<const std::byte> const_bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

bool only_zeros(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(),
                     [](std::byte byte) { return byte == std::byte{}; });
}

Status check_has_bytes(const at::Tensor& tensor) {
  return has_bytes(tensor)
             ? Status()
             : invalid(
                   "a tensor without bytes in the host's memory, as torch makes them inside "
                   "FakeTensorMode: leave that mode first");
}

// Whether bytes of one are bytes of the other, element by element.
Status check_alike(const at::Tensor& parameter, const at::Tensor& other, at::ScalarType type) {
  TACO_RETURN_IF_ERROR(check_has_bytes(other));
  if (other.scalar_type() == type && other.sizes() == parameter.sizes() &&
      other.strides() == parameter.strides()) {
    return Status();
  }
  return invalid("a tensor of another dtype, size or strides than the parameter's");
}

}  // namespace

Status Store::read(const at::Tensor& tensor, const at::Tensor& to) {
  auto entry = placed(tensor);
  if (!entry.ok()) return entry.status();
  TACO_RETURN_IF_ERROR(check_alike(tensor, to, tensor.scalar_type()));
  wait_for_steps();
  const PlacedTensor& place = layout_.tensors()[(*entry)->tensor];
  const std::span<std::byte> into = bytes_of(to);
  if (spread_) return read_spread(place, into);
  const WithoutGil others_run;
  return read_bytes(*mover_, page_bytes(), place, Tier::kDevice, 0, into);
}

Status Store::write(const at::Tensor& tensor, const at::Tensor& values) {
  auto entry = placed(tensor);
  if (!entry.ok()) return entry.status();
  TACO_RETURN_IF_ERROR(check_alike(tensor, values, tensor.scalar_type()));
  wait_for_steps();
  if (spread_) TACO_RETURN_IF_ERROR(barrier_before_write((*entry)->storage->described()));
  (*entry)->storage->note_write();
  return write_whole(layout_.tensors()[(*entry)->tensor], Tier::kDevice, values);
}

Status Store::write_whole(const PlacedTensor& tensor, Tier tier, const at::Tensor& values) {
  const std::span<const std::byte> from = const_bytes_of(values);
  bool spoilt = false;
  Status status;
  {
    const WithoutGil others_run;
    status = write_kept(tensor, tier, 0, from, &spoilt);
  }
  if (spoilt) {
    broken_ = status.with_prefix("writing '" + tensor.name +
                                 "' failed in the middle, so it is of two kinds; load a checkpoint "
                                 "to go on. What failed: ");
    return broken_;
  }
  return status;
}

Status Store::add_state(const std::vector<Stateful>& parameters, std::span<const StateKind> kinds) {
  TACO_RETURN_IF_ERROR(usable());
  if (stream_) return invalid("this cache has an optimizer already");
  std::vector<std::uint32_t> tensors;
  std::vector<AdafactorParameter> factored;
  for (const Stateful& parameter : parameters) {
    auto entry = named(parameter.name);
    if (!entry.ok()) return entry.status();
    tensors.push_back((*entry)->tensor);
    if (parameter.moments) factored.push_back({tensors.back(), *parameter.moments});
  }
  Result<StateLayout> state = StateLayout();
  Status appended;
  const auto tensors_here = [this] { return static_cast<std::uint32_t>(layout_.tensors().size()); };
  mover_->change_layout([&] {
    first_moments_ = tensors_here();
    appended = append_adafactor_state(layout_, factored);
    after_moments_ = tensors_here();
    state = StateLayout::append_to(layout_, tensors, kinds);
  });
  TACO_RETURN_IF_ERROR(appended);
  if (!state.ok()) return state.status();
  TACO_RETURN_IF_ERROR(check_numbers());
  state_ = std::move(*state);
  auto stream = OptimizerStream::make(
      *mover_, layout_, state_, {.threads = options_.threads, .parameter_tier = std::nullopt});
  if (!stream.ok()) return stream.status();
  stream_ = std::move(*stream);
  stateful_ = std::move(tensors);
  return Status();
}

// Gradients are taken in the order in which the parameter's elements lie in memory; a copy that is
// needed for that is added to `copies`.
Result<Update> Store::update_of(const Step& step, std::vector<at::Tensor>& copies) const {
  const Entry* entry = find(step.parameter);
  if (entry == nullptr) return invalid("a parameter of the optimizer is not in the cache");
  at::Tensor gradient = step.gradient;
  if (!gradient.defined()) return Update{entry->tensor, nullptr, false, step.constants};
  if (gradient.layout() != at::kStrided) {
    return Status(Code::kUnsupported, entry->storage->described() +
                                          " has a sparse gradient: the cache steps dense ones "
                                          "(Embedding(sparse=False))");
  }
  const at::ScalarType type = gradient.scalar_type();
  if ((type != at::kFloat && type != at::kBFloat16) || !has_bytes(gradient) ||
      gradient.sizes() != step.parameter.sizes()) {
    return invalid(entry->storage->described() +
                   " has a gradient of another dtype, device or size than its own");
  }
  if (gradient.strides() != step.parameter.strides()) {
    at::Tensor copy =
        at::empty_strided(step.parameter.sizes(), step.parameter.strides(), gradient.options());
    copy.copy_(gradient);
    gradient = copies.emplace_back(std::move(copy));
  }
  return Update{entry->tensor, gradient.const_data_ptr(), type == at::kBFloat16, step.constants};
}

// Refuses here what would be refused later, before anything has changed.
Result<std::vector<Update>> Store::updates_of(const std::vector<Step>& steps,
                                              std::vector<at::Tensor>& copies) const {
  TACO_RETURN_IF_ERROR(usable());
  if (!stream_) return invalid("this cache has no optimizer");
  std::vector<Update> updates;
  updates.reserve(steps.size());
  for (const Step& step : steps) {
    auto update = update_of(step, copies);
    if (!update.ok()) return update.status();
    updates.push_back(*update);
  }
  TACO_RETURN_IF_ERROR(stream_->check(updates));
  return updates;
}

Status Store::step(const std::vector<Step>& steps) {
  if (spread_) return step_spread(steps);
  if (ranks_) return step_together(steps);
  if (backward_) {
    TACO_RETURN_IF_ERROR(usable());
    for (const Step& step : steps) TACO_RETURN_IF_ERROR(step_early(step));
    return finish_steps();
  }
  std::vector<at::Tensor> copies;
  const auto updates = updates_of(steps, copies);
  if (!updates.ok()) return updates.status();
  for (const Step& step : steps) find(step.parameter)->storage->note_write();
  Status status;
  const std::uint64_t changes = stream_->changes();
  {
    const WithoutGil others_run;
    status = stream_->step(updates.value());
    if (!status.ok() && stream_->changes() == changes) return status;
    if (status.ok() && gradient_pages_) status = gradient_pages_->drop(*mover_);
  }
  return failed_step(status);
}

Status Store::failed_step(const Status& status) {
  if (!status.ok()) {
    broken_ = status.with_prefix(
        "a step of the optimizer failed in the middle, so the parameters are of two steps; load a "
        "checkpoint to go on. What failed: ");
  }
  return broken_;
}

// Finds the state of a parameter for another tensor that is to have as many bytes.
Result<const PlacedTensor*> Store::state_of(const at::Tensor& parameter, const std::string& kind,
                                            const at::Tensor& other) const {
  auto entry = placed(parameter);
  if (!entry.ok()) return entry.status();
  const std::string& name = layout_.tensors()[(*entry)->tensor].name;
  const PlacedTensor* found = layout_.find(state_name(name, kind));
  if (found == nullptr) return invalid("parameter '" + name + "' has no " + kind);
  TACO_RETURN_IF_ERROR(check_has_bytes(other));
  if (other.scalar_type() != at::kFloat || !other.is_non_overlapping_and_dense() ||
      other.nbytes() != found->bytes) {
    return invalid(kind + " of parameter '" + name + "' is float32, of " +
                   std::to_string(found->bytes) + " bytes");
  }
  return found;
}

Status Store::read_state(const at::Tensor& parameter, const std::string& kind,
                         const at::Tensor& to) {
  wait_for_steps();
  auto tensor = state_of(parameter, kind, to);
  TACO_RETURN_IF_ERROR(together(tensor.status()));
  const std::span<std::byte> into = bytes_of(to);
  const WithoutGil others_run;
  if (ranks_) return read_together(**tensor, into);
  return read_bytes(*mover_, page_bytes(), **tensor, tier_of(page_of(**tensor)), 0, into);
}

Status Store::write_state(const at::Tensor& parameter, const std::string& kind,
                          const at::Tensor& values) {
  wait_for_steps();
  auto tensor = state_of(parameter, kind, values);
  if (!tensor.ok()) return tensor.status();
  return write_whole(**tensor, tier_of(page_of(**tensor)), values);
}

Status Store::read_page(PageId page, std::span<std::byte> to) {
  const PlacedTensor whole{
      .name = "", .bytes = to.size(), .offset = page * std::uint64_t{to.size()}};
  return read_bytes(*mover_, page_bytes(), whole, tier_of(page), 0, to);
}

void Store::begin_progress(std::uint64_t bytes) {
  done_bytes_ = 0;
  all_bytes_ = bytes;
}

// The bytes of the pages that a save writes.
std::uint64_t Store::bytes_held() const {
  std::uint64_t pages = 0;
  for (PageId page = 0; page < layout_.pages(); ++page) {
    pages += !layout_.tensors_on(page).empty() && mover_->has_content(page) && keeps(page);
  }
  return pages * page_bytes();
}

// The forms of all tensors in the layout: state has its parameter's, in float32.
std::vector<TensorForm> Store::forms() const {
  std::vector<TensorForm> found(layout_.tensors().size());
  const auto put = [&](const std::string& name, const TensorForm& form) {
    if (const PlacedTensor* const tensor = layout_.find(name)) {
      found[static_cast<std::size_t>(tensor - layout_.tensors().data())] = form;
    }
  };
  for (const auto& entry : entries_) {
    if (entry->gone) continue;
    TensorForm form = entry->storage->form();
    found[entry->tensor] = form;
    form.dtype = "float32";
    for (const StateKind kind : state_.kinds()) {
      put(state_name(layout_.tensors()[entry->tensor].name, kind), form);
    }
  }
  for (std::uint32_t index = first_moments_; index < after_moments_; ++index) {
    found[index] = {"float32", {layout_.tensors()[index].bytes / sizeof(float)}, {1}};
  }
  return found;
}

Result<std::uint64_t> Store::save(const std::string& directory, const std::string& note) {
  TACO_RETURN_IF_ERROR(alone());
  TACO_RETURN_IF_ERROR(together(broken_));
  wait_for_steps();
  begin_run("save");
  const std::vector<TensorForm> forms = this->forms();
  CheckpointSource source;
  source.layout = &layout_;
  source.forms = forms;
  source.store = id_;
  source.read_page = [this](PageId page, std::span<std::byte> to) {
    Status read = read_page(page, to);
    done_bytes_ += to.size();
    return read;
  };
  source.holds = [this](PageId page) { return mover_->has_content(page) && keeps(page); };
  source.note = note;
  source.ranks = ranks_.get();
  Result<std::uint64_t> serial = Status();
  {
    const WithoutGil others_run;
    begin_progress(bytes_held());
    serial = save_checkpoint(FileSystem::real(), directory, source);
    begin_progress(0);
  }
  end_run();
  return serial;
}

// State that is not in a checkpoint has not begun.
Status Store::forget_state() {
  for (const Run& run : state_.pages()) {
    TACO_RETURN_IF_ERROR(give_up(*mover_, kForgetKeys, run));
  }
  for (std::uint32_t index = first_moments_; index < after_moments_; ++index) {
    const PlacedTensor& moments = layout_.tensors()[index];
    const std::vector<std::byte> zeros(moments.bytes);
    TACO_RETURN_IF_ERROR(write_over({moments, 0, zeros}));
  }
  return Status();
}

// A page whose bytes cannot be read any more is written anew: what else lies on it comes later.
Status Store::write_over(const Checkpoint::Piece& piece) {
  const Tier tier = tier_of(page_of(piece.tensor));
  for (std::size_t done = 0; done < piece.bytes.size();) {
    const std::uint64_t begin = piece.tensor.offset + piece.offset + done;
    const std::size_t count =
        std::min<std::uint64_t>(page_bytes() - begin % page_bytes(), piece.bytes.size() - done);
    const auto write = [&] {
      return write_kept(piece.tensor, tier, piece.offset + done, piece.bytes.subspan(done, count),
                        nullptr);
    };
    Status written = write();
    const auto page = static_cast<PageId>(begin / page_bytes());
    if (written.code() == Code::kResource && mover_->has_content(page)) {
      mover_->discard({&page, 1});
      written = write();
    }
    TACO_RETURN_IF_ERROR(written);
    done += count;
  }
  return Status();
}

// Zeros of state that was never written need not begin to exist.
Status Store::write_piece(const Checkpoint::Piece& piece) {
  if (piece.bytes.empty()) return Status();
  done_bytes_ += piece.bytes.size();
  const std::uint64_t begin = piece.tensor.offset + piece.offset;
  const std::uint64_t last = begin + piece.bytes.size() - 1;
  bool holds = false;
  for (std::uint64_t page = begin / page_bytes(); page <= last / page_bytes(); ++page)
    holds = holds || mover_->has_content(static_cast<PageId>(page));
  return !holds && only_zeros(piece.bytes) ? Status() : write_over(piece);
}

// Whether a model that is not trained takes a parameter alone of what was saved with its state.
bool Store::is_state_of_others(const std::string& name) const {
  const std::optional<std::string_view> parameter = parameter_of_state(name);
  return stateful_.empty() && parameter && layout_.find(*parameter) != nullptr;
}

void Store::note_writes() {
  for (const auto& entry : entries_) entry->storage->note_write();
}

Status Store::load(const std::string& directory, const Agree& agree) {
  TACO_RETURN_IF_ERROR(alone());
  auto checkpoint = Checkpoint::open(FileSystem::real(), directory);
  Status fits = checkpoint.status();
  const std::vector<TensorForm> forms = this->forms();
  const auto may_stay = [this](const std::string& name) { return is_state_of_others(name); };
  if (fits.ok()) fits = checkpoint->check(layout_, forms, may_stay);
  if (fits.ok()) fits = agree(checkpoint->manifest().note);
  TACO_RETURN_IF_ERROR(together(fits));
  TACO_RETURN_IF_ERROR(check_same(checkpoint->manifest()));
  forget_steps();
  uses_.end_all();
  if (spread_) clear_averaged();
  note_writes();
  begin_run("load");
  Status status;
  {
    const WithoutGil others_run;
    begin_progress(parameter_bytes() + state_bytes());
    if (gradient_pages_) status = gradient_pages_->drop(*mover_);
    if (status.ok()) status = forget_state();
    if (status.ok()) {
      const auto wants = [this](const PlacedTensor& tensor, std::size_t offset, std::size_t bytes) {
        const bool own = keeps_of(tensor, offset, bytes);
        if (!own) done_bytes_ += bytes;
        return own;
      };
      status = checkpoint->load(
          layout_, [this](const Checkpoint::Piece& piece) { return write_piece(piece); }, wants,
          forms, may_stay);
    }
    begin_progress(0);
  }
  status = together(status);
  end_run();
  broken_ = status.with_prefix(
      "loading '" + directory +
      "' failed in the middle, so the parameters are of two kinds; load a checkpoint to go on. "
      "What failed: ");
  return status;
}

std::uint64_t Store::parameter_bytes() const {
  std::uint64_t sum = 0;
  for (const auto& entry : entries_) {
    if (!entry->gone) sum += entry->storage->bytes();
  }
  return sum;
}

std::uint64_t Store::state_bytes() const {
  std::uint64_t sum = 0;
  for (const PlacedTensor& tensor : layout_.tensors()) sum += tensor.bytes;
  return sum - parameter_bytes();
}

std::uint64_t Store::own_bytes(bool state) const {
  if (!ranks_ || !(state || spread_)) return state ? state_bytes() : parameter_bytes();
  std::uint64_t sum = 0;
  for (const PlacedTensor& tensor : layout_.tensors()) {
    if (tensor.bytes == 0) continue;
    const bool moments = has_moments(page_of(tensor));
    if ((moments || state_.is_state(page_of(tensor))) != state) continue;
    const Run run = layout_.pages_of(tensor);
    for (PageId page = run.first; page < run.first + run.count; ++page) {
      const std::uint64_t start = std::uint64_t{page} * page_bytes();
      const std::uint64_t begin = std::max(tensor.offset, start);
      const std::uint64_t end = std::min(tensor.offset + tensor.bytes, start + page_bytes());
      if (moments || keeps(page)) sum += end - begin;
    }
  }
  return sum;
}

bool Store::has_moments(PageId page) const {
  const auto tensors = layout_.tensors_on(page);
  return !tensors.empty() && tensors.front() >= first_moments_ && tensors.front() < after_moments_;
}

std::string_view Store::kind_of(PageId page) const {
  if (state_.is_state(page)) return name_of(state_.kind_of(page));
  if (gradient_pages_ && gradient_pages_->is_gradient(page)) return "gradients";
  return has_moments(page) ? "moments" : "parameters";
}

}  // namespace taco::zerocache
