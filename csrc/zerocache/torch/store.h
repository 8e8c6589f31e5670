// The memory of one cache, as torch's tensors see it: parameters that were placed here, which parts
// of a model use them, the state of their optimizer, and both in checkpoints.
//
//   place(name, tensor)            the tensor's bytes are pages from now on
//   make(what, tensor)             likewise, before it has a name
//   add_part(names)                what a module needs at once
//   uses().begin(part, pass), end  in between it is there, otherwise it is absent
//   add_state(names, kinds)        once; then step(), read_state(), write_state()
//   share(ranks)                   once, where several ranks hold the same parameters
//   spread(ranks), place(...), start_gathering()   where each rank keeps a part of them
//   save(), load()
//   close()                        everything becomes ordinary memory of torch's again
//
// A step or a load that fails in the middle leaves parameters of two kinds behind. From then on
// every use fails and says so, until a load has succeeded.
//
// One thread at a time, with the GIL, which is let go while pages are waited for. In a forked child
// everything fails, and the end harms nobody.
#pragma once

#include <ATen/core/Tensor.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/fault_note.h"
#include "base/status.h"
#include "kernels/adafactor.h"
#include "zerocache/checkpoint/checkpoint.h"
#include "zerocache/mover/mover.h"
#include "zerocache/pages/state_layout.h"
#include "zerocache/ranks/collectives.h"
#include "zerocache/ranks/shards.h"
#include "zerocache/ranks/zero1/backward_share.h"
#include "zerocache/steps/backward_steps.h"
#include "zerocache/steps/gradient_pages.h"
#include "zerocache/steps/optimizer_stream.h"
#include "zerocache/torch/gradient_buffers.h"
#include "zerocache/torch/operand_parts.h"
#include "zerocache/torch/spread.h"
#include "zerocache/torch/storage.h"
#include "zerocache/torch/uses.h"

namespace taco::zerocache {

// Pages that come and go at the same time, as check_capacities() has them.
inline constexpr std::size_t kPassing = 2;

struct StoreOptions {
  std::size_t page_bytes = kPageBytes;
  std::uint64_t device_bytes = 0;
  std::uint64_t host_bytes = 0;
  std::vector<SlabDirectory> disk;
  IoOptions io;
  unsigned threads = 1;  // of the optimizer
  bool poison = false;   // for tests: what has left reads as NaN
};

// A parameter that is to be placed.
struct PlannedParameter {
  std::string name;
  std::size_t bytes = 0;
  std::uint32_t element_bytes = 4;
  bool trained = false;  // gets state
  bool moments = false;  // it is no parameter, but moments of one (adafactor_state.h)
};

// How final gradients are used.
enum class FinalGradients : unsigned char {
  kStayInMemory,
  kAreStepped,     // there has to be room for a page that is stepped beside a pass
  kAreKeptOnPages  // there has to be room for them, too
};

// Whether place() would take it: kUnsupported names the tensor and says why not.
Status check_placeable(const at::Tensor& tensor, const std::string& name);

class Store : public Pager {
 public:
  // kInvalidArgument and kResource as Mover::open().
  static Result<std::unique_ptr<Store>> open(const StoreOptions& options);
  ~Store() override;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // Whether these fit, with `kinds` of state, where each group of `needed` (indices) is used at
  // once; those that have been placed, by name, lie where they lie. Where `ranks` share the state,
  // or everything (`spread`), for the largest share. kInvalidArgument names what has to be larger,
  // and how large.
  Status check_room(const std::vector<PlannedParameter>& parameters,
                    std::span<const StateKind> kinds,
                    const std::vector<std::vector<std::uint32_t>>& needed, FinalGradients gradients,
                    int ranks, bool spread);

  // A tensor on a storage that is here already becomes another name of that; else its storage's
  // bytes move here and it is absent. What check_placeable() refuses.
  Status place(const std::string& name, const at::Tensor& tensor);

  // Used while a model is being built (store_made.cc): like place(), for a tensor whose name is not
  // known yet; until name_made() texts of errors call it `what` and a number. A tensor that cannot
  // be placed is left alone. kInvalidArgument for a parameter of another cache.
  Status make(const std::string& what, const at::Tensor& tensor);
  bool holds(const at::Tensor& tensor) const { return find(tensor) != nullptr; }
  // The part that consists of this tensor alone; nothing where the tensor is not of this store.
  std::optional<Uses::Part> part_of(const at::Tensor& tensor);
  // The part of all that a function of torch is given, of this store's parameters and of views of
  // them: whole, or for one that touches nothing else the pages that they lie on.
  Uses::Part part_of_operands(const std::vector<at::Tensor>& operands, bool whole);
  // Notes, as note_write() does, that this tensor was changed.
  void note_change(const at::Tensor& tensor);
  // Says why a tensor is absent to those that look at its data until it is there again.
  void say_why(const at::Tensor& tensor, const std::string& reason);
  // Names all that was made, the first name of each being its own; false if some get none. They may
  // be named anew until state is added.
  Result<bool> name_made(const std::vector<std::pair<std::string, at::Tensor>>& names);
  // Makes tensors without a name ordinary memory again. Where ranks build it together, one of them
  // may refuse, and all fail.
  Status give_back_unnamed(const Status& refusal = {});
  // Called once, before anything is made: these ranks are about to build the same model, and each
  // keeps its part from the first on (store_made_spread.cc). spread() follows from it.
  Status make_spread(std::unique_ptr<Collectives> ranks);
  // Raises what one of the ranks has raised while it was building.
  Status end_making();

  // kInvalidArgument for a name that was not placed.
  Result<Uses::Part> add_part(const std::vector<std::string>& names);
  // These are changed through p.data or the like, while they are in use.
  Status note_write(const std::vector<std::string>& names);
  Uses& uses() { return uses_; }
  Status begin(std::uint64_t key, std::span<const Run> pages) override;
  void end(std::uint64_t key, std::span<const Run> pages) override;
  void wrote(std::span<const Run> pages) override;

  // A run that is open already goes on; one of another name ends.
  void begin_run(const std::string& name);
  void end_run();
  const std::string& run() const { return run_; }  // empty: none

  // All of a placed tensor, copied out, or replaced. The other tensor has its dtype, size and
  // strides.
  Status read(const at::Tensor& tensor, const at::Tensor& to);
  Status write(const at::Tensor& tensor, const at::Tensor& values);

  // The parameters that have state, by name: its kinds, and Adafactor's moments where their shape
  // allows that. Set once.
  struct Stateful {
    std::string name;
    std::optional<kernels::AdafactorShape> moments;
  };
  Status add_state(const std::vector<Stateful>& parameters, std::span<const StateKind> kinds);
  struct Step {
    at::Tensor parameter, gradient;  // undefined: keep_gradient() has it
    StepConstants constants;
  };
  // Takes a step; with step_in_backward() what is left of it, these updates included.
  Status step(const std::vector<Step>& steps);

  // Has pages stepped from now on as soon as all their gradients are final (backward_steps.h), of
  // which step_early() tells; a backward pass is expected to tell this many `points`, uses that
  // begin in it and final gradients. Once, after add_state(). Where parameters are spread, after
  // start_gathering(): all ranks step the pages of a stripe when their means are there
  // (backward_stripes.h). Where only the state is shared, gradients are means already, and each
  // rank steps its own pages; share_final() and finish_gradients() send them to the others.
  Status step_in_backward(std::size_t points);
  Status step_early(const Step& step);
  // Gradients of these lie in memory that is lent: the system has it as soon as they are used.
  void forget_when_used(const at::Tensor& lent) { buffers_.add(lent, gradients_); }
  // There, and before the first of a step: whether all ranks are about to take these; their
  // gradients are not looked at.
  Status agree_on_steps(const std::vector<Step>& steps);
  // There: the gradients of these are final on all ranks, which come here alike; step_early() has
  // been told of those that this rank has. Pages that are stepped travel to the others from now on.
  Status share_final(const std::vector<at::Tensor>& parameters);
  // Instead of step(): parameters that were stepped in part are stepped whole, and their names are
  // returned; the others are not stepped at all. Where only the state is shared, finish_gradients()
  // comes before, with which ranks have stepped all that they had been given.
  Result<std::vector<std::string>> drop_steps();
  // Parameters that passes have stepped whole, since the last step(), where they are spread.
  std::vector<std::string> stepped_early() const;

  // Lets gradients be kept on pages until they are stepped, or dropped. Called once, after
  // add_state(), and not with step_in_backward().
  Status keep_gradients();
  // Has the parameter's dtype; its giver may let go of it.
  Status keep_gradient(const at::Tensor& parameter, const at::Tensor& gradient);
  // One that was kept, copied into a tensor of the parameter's dtype, size and strides.
  Status read_gradient(const at::Tensor& parameter, const at::Tensor& to);
  Status drop_gradients();

  // State by torch's name for it. The other tensor is float32 and has its bytes in the order of the
  // state's. What was never stepped reads as zeros. Where ranks share the state, all of them read
  // it at once, and each writes what it keeps of the values.
  Status read_state(const at::Tensor& parameter, const std::string& kind, const at::Tensor& to);
  Status write_state(const at::Tensor& parameter, const std::string& kind,
                     const at::Tensor& values);

  // These ranks hold the same, in the same order, and each keeps a part of the state (shards.h).
  // From now on all of them call step(), read_state(), save() and load() at once, and come to the
  // same end. Once, after add_state() and before the first step.
  Status share(std::unique_ptr<Collectives> ranks);

  // Each of these ranks is about to place the same parameters, and keeps a part of them, of their
  // gradients and of their state (stripes.h). From now on all ranks make the same calls at once:
  // uses, reads, step(), save(), load(). Once, before anything else than make(); start_gathering()
  // once everything is placed and has its state, and before the first use.
  Status spread(std::unique_ptr<Collectives> ranks);
  Status start_gathering();
  bool is_spread() const { return is_spread_; }
  // There: a gradient of this rank is final. Its giver may let go of it. Gradients of several
  // backward passes add up, each of which is ended by finish_gradients() or, the last, by step().
  Status average_gradient(const at::Tensor& parameter, const at::Tensor& gradient);
  // `failure`, where only the state is shared: why this rank has not given all of them.
  Status finish_gradients(const std::string& failure = {});
  // The norm of all gradients of all ranks, averaged; finishes them. The order may be infinite.
  Result<double> gradient_norm(double order);
  // This rank cannot go on with the run that is open; the others are told why, when they need it.
  void leave_run(const std::string& reason);
  // Raises what one of the ranks has raised in a forward pass.
  Status end_forward();
  Status multiply_gradients(double factor);  // what is finished of them
  // All of them, of all ranks, and finishes them: whether one is infinite or NaN.
  Result<bool> unscale_gradients(double factor);
  // How often gradients were dropped since a run had ended on all ranks, by an exception on one.
  std::uint64_t gradients_lost() const { return gradients_lost_; }
  // The program is about to use the group of ranks for something else, as all of them.
  void sync_ranks();
  GatherStats gathers() const { return spread_ ? spread_->gathered.stats() : GatherStats(); }

  // Instead of a step(): this rank has none to take, for this reason, which all ranks get.
  Status refuse_step(const std::string& reason);

  // As checkpoint.h says it. `note` is whatever else belongs to the checkpoint.
  Result<std::uint64_t> save(const std::string& directory, const std::string& note);
  // `agree` sees the note before anything is changed, and may refuse.
  using Agree = std::function<Status(const std::string& note)>;
  Status load(const std::string& directory, const Agree& agree);

  // Progress of the save or load under way; any thread. Zero of zero where there is none.
  struct Progress {
    std::uint64_t done = 0, bytes = 0;
  };
  Progress progress() const { return {done_bytes_, all_bytes_}; }

  // Gives everything back. Parameters get memory of torch's own first if `restore`, else they stay
  // absent, as those always do that are spread over ranks. Where that fails, those that have not
  // been restored are as they were. Bytes that cannot be read (kResource) may be read later; the
  // second time that they cannot, the store is closed, and what they are of stays absent.
  Status close(bool restore);
  bool closed() const { return mover_ == nullptr; }

  std::uint64_t parameter_bytes() const;
  std::uint64_t state_bytes() const;
  // Bytes of state or of parameters that this rank keeps.
  std::uint64_t own_bytes(bool state) const;
  std::size_t page_bytes() const { return options_.page_bytes; }
  MoverStats stats() const { return closed() ? MoverStats() : mover_->stats(); }
  // The record of the last run of that name, which could be run again (plan.h).
  RunRecord last_run(const std::string& name) const {
    return closed() ? RunRecord() : mover_->last_run(name);
  }
  Capacities capacities() const { return closed() ? Capacities() : mover_->capacities(); }
  Costs costs() const { return closed() ? Costs() : mover_->costs(); }
  // "parameters", "gradients", or the name of a kind of state; Adafactor's are all "moments".
  std::string_view kind_of(PageId page) const;

 private:
  struct Reservation;
  struct Entry {
    std::unique_ptr<PlacedStorage> storage;
    std::uint32_t tensor = 0;  // in the layout
    Uses::Parameter parameter = 0;
    std::string made_as;  // by make(); else empty
    bool named = true;    // not only by that
    bool gone = false;    // as is its tensor from the layout
    // If ranks build it together: a rank that has made it with other values; 0: none.
    std::uint32_t differs_on = 0;
    std::uint64_t made_version = 0;
    std::optional<Uses::Part> alone;  // if it was asked for
  };
  Store(const StoreOptions& options, Layout layout)
      : options_(options), layout_(std::move(layout)) {}
  Status usable() const;
  Entry* find(const at::Tensor& tensor) const;
  Result<Entry*> placed(const at::Tensor& tensor) const;
  Result<Entry*> named(const std::string& name) const;
  Result<const PlacedTensor*> state_of(const at::Tensor& parameter, const std::string& kind,
                                       const at::Tensor& other) const;
  // store_backward.cc
  Status advance();
  Status add_to_backward(const Step& step);
  Status add_waiting();
  void wait_for_steps();
  Status failed_step(const Status& status);
  Status finish_steps();
  void forget_steps();
  void forget_gradients();

  // store_ranks.cc
  Status alone() const;
  Status together(const Status& own);
  Status step_together(const std::vector<Step>& steps);
  Status finish_together(const Status& before);
  Status read_together(const PlacedTensor& tensor, std::span<std::byte> to);
  Status check_same(const Manifest& manifest);
  // Whether ranks have parts of it; otherwise this one has all of it.
  bool is_dealt_out(PageId page) const {
    return ranks_ && !has_moments(page) && (spread_ || state_.is_state(page));
  }
  // Whether this rank has any of these bytes.
  bool keeps_of(const PlacedTensor& tensor, std::size_t offset, std::size_t bytes) const;
  // Whether this rank keeps the page: it is dealt out to this rank, or, where all ranks have it,
  // this rank saves it.
  bool keeps(PageId page) const { return !ranks_ || shards_.owns(page); }
  // Whether a page has Adafactor's moments; all ranks have these.
  bool has_moments(PageId page) const;
  Status write_kept(const PlacedTensor& tensor, Tier tier, std::uint64_t from,
                    std::span<const std::byte> bytes, bool* spoilt);

  // store_spread.cc
  Status barrier(const std::string& what, const Status& own);
  Status gather(OperatorKey key, std::span<const Run> runs);
  Status step_spread(const std::vector<Step>& steps);
  Status average(const Step& step, bool early);
  Status finish_spread_steps(const std::vector<Step>& steps);
  Result<std::vector<std::string>> finish_dropped();
  Status refuse_spread_step(const Status& own);
  Status read_spread(const PlacedTensor& tensor, std::span<std::byte> to);
  void clear_averaged();
  void lose_gradients();
  bool run_is_over() const { return spread_ && (left_run_ || !spread_->lockstep.ended().ok()); }
  std::size_t stripes_with_room() const;
  Status out_of_use(const std::string& before) const;
  Status barrier_before_write(const std::string& what);
  // Whether a page of parameters is this rank's, also before it is known which pages have state.
  bool is_placed_here(PageId page) const {
    return !is_spread_ ||
           page % static_cast<PageId>(ranks_->size()) == static_cast<PageId>(ranks_->rank());
  }

  Status open_mover(std::uint32_t numbers);
  Status open_numbers(int ranks);
  Status check_numbers() const;
  Status place_bytes(const std::string& name, const at::Tensor& tensor, std::uint32_t index);
  Status forget_gone();
  void forget(Entry& entry);
  // store_made_spread.cc
  Status agree_to_make(const std::string& what, const at::Tensor& tensor);
  Status forget_agreed();
  Status check_made_alike() const;
  Status give_back_together(const Entry& entry);
  void make_room_for(const Run& run);
  void compare_written(std::span<const Access> accesses);
  Status hold(OperatorKey key, std::span<const Access> accesses);
  PageId page_of(const PlacedTensor& tensor) const {
    return static_cast<PageId>(tensor.offset / options_.page_bytes);
  }
  // The tier where a page is used by others than a model: the device's memory is the host's.
  Tier tier_of(PageId page) const { return state_.is_state(page) ? Tier::kHost : Tier::kDevice; }
  Result<Update> update_of(const Step& step, std::vector<at::Tensor>& copies) const;
  Result<std::vector<Update>> updates_of(const std::vector<Step>& steps,
                                         std::vector<at::Tensor>& copies) const;
  // A failure that leaves it half written makes the cache unusable.
  Status write_whole(const PlacedTensor& tensor, Tier tier, const at::Tensor& values);
  Status read_page(PageId page, std::span<std::byte> to);
  void begin_progress(std::uint64_t bytes);
  std::uint64_t bytes_held() const;
  Status forget_state();
  Status write_piece(const Checkpoint::Piece& piece);
  Status write_over(const Checkpoint::Piece& piece);
  std::vector<TensorForm> forms() const;
  bool is_state_of_others(const std::string& name) const;
  Status restore(const Entry& entry);
  void let_go();
  void note_writes();

  const pid_t process_ = getpid();
  const StoreOptions options_;
  Layout layout_;
  std::shared_ptr<Reservation> range_;
  std::optional<FaultNote> touches_;  // of what is not there, by pointers that were kept
  std::uint32_t numbers_needed_ = 0;  // of pages, where they are spread; 0: not known yet
  StoreId id_ = 0;
  std::unique_ptr<Mover> mover_;
  StateLayout state_;
  std::uint32_t first_moments_ = 0, after_moments_ = 0;  // Adafactor's, in the layout
  std::optional<GradientPages> gradient_pages_;
  std::unique_ptr<OptimizerStream> stream_;  // goes before the mover
  std::vector<std::uint32_t> stateful_;      // in the layout
  std::unique_ptr<Collectives> ranks_;       // null: this process alone
  Shards shards_;
  bool is_spread_ = false, left_run_ = false, close_failed_ = false;
  bool making_ = false;           // make_spread() was called, and start_gathering() was not
  std::uint32_t differs_on_ = 0;  // of what is about to be made
  std::uint64_t gradients_lost_ = 0;
  std::unique_ptr<Spread> spread_;                           // goes before all that it uses
  std::unique_ptr<BackwardSteps> backward_;                  // goes before the stream
  std::unique_ptr<BackwardShare> sharing_;                   // goes before that; null: nobody else
  std::unordered_map<std::uint32_t, at::Tensor> gradients_;  // that it reads, by tensor
  GradientBuffers buffers_;                                  // that some of these lie in
  LeavingGradients leaving_;                                 // that were read
  std::vector<Step> waiting_;                                // whose parameters the pass has in use
  std::vector<std::uint32_t> sent_;                          // stepped so, since the last step()
  std::vector<std::unique_ptr<Entry>> entries_;
  std::unordered_map<const void*, Entry*> by_storage_;
  std::unordered_map<std::string, Entry*> by_name_;
  std::uint64_t made_ = 0;
  Uses uses_{*this};
  OperandParts parts_of_operands_{uses_};
  std::string run_;  // the open one
  std::atomic<std::uint64_t> done_bytes_{0}, all_bytes_{0};
  Status broken_;  // why nothing can be used until a load
};

}  // namespace taco::zerocache
