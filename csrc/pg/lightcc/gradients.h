// The residuals that one rank owes of one model's gradients: for each bucket in which they are
// reduced, the codec and the residual of the shard that this rank sends to other hosts. Knows no
// torch: the DDP hook (pg/c10d/ddp_hook.h) tells it of steps and buckets, and asks for residuals by
// parameter.
//
// Residuals belong to parameters, not to buckets: DDP arranges its buckets anew after the first
// step, and another job may arrange them otherwise. So a bucket is compressed only once it looks as
// it did the step before, and when its layout changes, what is owed becomes pending (pending.h) and
// goes out with the next gradients. A checkpoint, changed settings and flush() are the same. Under
// FSDP2 a bucket holds the shards of those parameters of a group that have gradients, as they come.
//
// A pass is not a step. What was sent of a parameter's gradient has been used only when an
// optimizer has applied it, and that is decided parameter by parameter. Where somebody will tell
// (tell_of()), passes stay undecided until decide(): several of them are used, or taken back,
// together. All others are taken to be used.
//
// Residuals are in units of the sum over the ranks, times the loss scale of the newest step.
//
// All ranks call the same functions in the same order, and so all come to the same codec. Any
// thread; but residuals must not be asked for or changed while a bucket is being reduced.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "pg/codec.h"
#include "pg/codecs/feedback.h"
#include "pg/lightcc/pending.h"
#include "pg/lightcc/settings.h"

namespace taco::pg::lightcc {

struct Parameter {
  std::string name;
  std::uint64_t elements = 0;
};

// A run of elements.
struct Part {
  std::uint64_t from = 0;
  std::uint64_t elements = 0;
  bool operator==(const Part&) const = default;
};

// A bucket: the parameters that lie in it one after the other, as indices into the model's.
using Layout = std::vector<int>;

// The state that a rank keeps of one bucket, to go on exactly where it was; at loss scale 1. Or the
// pending residual of one parameter, which the layout then names twice, as no bucket does.
struct Saved {
  Layout layout;
  Part part;
  std::vector<float> residual, momentum;
};

// The fate of gradients. Their passes are taken back, and with them what was sent, where nobody has
// used them: kSkipped, by a GradScaler, so that what was added up is still owed (but for what
// travelled whole, as without compression); kDropped, by the program, which wants none of it.
enum class Fate : std::uint8_t { kUsed, kSkipped, kDropped };

// One bucket in one backward pass.
struct Pass {
  std::size_t index = 0;
  const Layout& layout;
  std::span<float> gradient;
  // Which of its parameters this rank has used, by their places in the layout; empty: all ranks
  // have used all of them. What is pending of others waits.
  std::span<const std::uint8_t> used = {};
  bool at_once = false;  // a new layout is compressed too
  // The result is added to what earlier passes have left there (FSDP2). Else the gradient that goes
  // in has that in it already, and what comes out takes its place.
  bool adds = false;
  bool whole = false;  // nothing of it is left out
  // Some rank has no gradients of its own any more (join()), and is not told what becomes of those
  // of others: it travels whole, and all that is owed waits.
  bool uneven = false;
};

class Gradients {
 public:
  // Which elements of a bucket of so many this rank sends to other hosts.
  using PartOf = std::function<Part(std::uint64_t elements)>;

  // `settings` have been checked.
  Gradients(std::vector<Parameter> parameters, const Settings& settings, int rank, int world,
            PartOf part_of);

  // A backward pass begins.
  void begin_step();
  // Sets the factor that the loss is multiplied by from now on.
  Status rescale(double scale);
  // Sets the factor that it has been multiplied by all the time.
  void assume_scale(double scale);

  struct Plan {
    std::shared_ptr<const Codec> codec;  // null: as it is
    std::shared_ptr<Feedback> feedback;
    // A bit of what has been decided until now: where ranks have decided otherwise, it differs in
    // half of the passes.
    bool fates = false;
  };
  // Bucket `index` is about to be reduced. Adds to the gradient what is pending of its parameters.
  Result<Plan> plan(const Pass& pass);

  // From the next pass on, somebody tells what becomes of these parameters' gradients.
  void tell_of(std::span<const int> parameters);
  // An optimizer has just got them. What is owed to those that nobody has told of, while others
  // were told of, is forgotten: they have not been trained until now.
  void forget_untrained(std::span<const int> parameters);
  // Says what has become of all their undecided gradients.
  void decide(std::span<const int> parameters, Fate fate);
  // The first decision on each parameter since the last pass that was not uneven: 0 for none, or 1
  // more than the Fate.
  std::vector<std::uint8_t> decided() const;
  // Has a rank without gradients of its own decide what others have, and go on at their `scale`.
  // Called by all ranks.
  Status catch_up(std::span<const std::uint8_t> decided, double scale);
  // Other ranks have used these in the newest pass, while its Pass said that this one has not.
  // `carried`: what was in the gradient before, and has not been in the pass, is owed.
  void used_elsewhere(int parameter, std::vector<float> carried);
  // Some ranks have used it in the newest pass, and others have not: all are told so, and after
  // used_elsewhere().
  void used_in_part(int parameter);
  // Has one of them undecided gradients?
  bool is_undecided(std::span<const int> parameters) const;
  // Those whose newest pass has been dropped, and nothing has been said of them since: nobody
  // should apply what it has computed.
  std::vector<int> dropped(std::span<const int> parameters) const;

  // Anew with other settings; what is owed becomes pending.
  void change(const Settings& settings);
  // Under Compression::kAuto, from the next plan() on: how buckets are sent, by index; exact where
  // it says nothing. What is owed to those that are no longer sent by TopK becomes pending.
  void choose(std::map<std::size_t, Way> ways);
  // The ranks, or this one's place among them, are others now: averages have another divisor.
  void move(int rank, int world, PartOf part_of);

  // Parameters `first` to `last` - 1 one after the other: what this rank owes of them if
  // undecided gradients are used, or, `as_saved`, if they are dropped.
  std::vector<float> owed(std::size_t first, std::size_t last, bool as_saved = false) const;
  // Forgets what they owe if undecided gradients are used: it has been added to these.
  void forget(std::size_t first, std::size_t last);

  std::vector<Saved> save() const;  // as if undecided gradients were dropped
  // Forgets everything and goes on at `step`. Buckets that turn out to look as in `saved` take
  // their residuals from there. All others: add_average() says what is owed to their parameters.
  Status load(std::vector<Saved> saved, std::int64_t step);
  // After load(): all ranks owe `average`, over the ranks and at loss scale 1, of a parameter. Each
  // takes a part of it.
  Status add_average(std::size_t parameter, std::span<const float> average);

  const std::vector<Parameter>& parameters() const { return parameters_; }
  std::uint64_t elements_of(const Layout& layout) const;
  Settings settings() const;
  std::int64_t step() const;
  double scale() const;
  int world() const;
  // Euclidean, of what this rank owes, in units of the average at loss scale 1.
  double norm() const;

 private:
  // A parameter's part of a bucket's shard.
  struct Range {
    int parameter = 0;
    std::uint64_t from = 0;   // element of the parameter
    std::uint64_t place = 0;  // element of the shard
    std::uint64_t elements = 0;
    Extent run() const { return {place, elements}; }
  };
  struct Bucket {
    Layout layout;
    Part part;
    std::vector<Range> ranges;           // ascending
    std::shared_ptr<Feedback> feedback;  // null: none yet
  };
  // The state of a parameter; the same on all ranks.
  struct State {
    bool is_told = false;    // somebody tells what becomes of its gradients
    bool untrained = false;  // there were passes while that was so of others only
    bool dropped = false;    // its newest pass was
    int passes = 0;          // undecided ones that were coded
    bool newest = false;     // the newest pass was coded, and is undecided if anybody has used it
    bool carries = false;    // results take the place of what went in
    bool may_pend = false;   // something may be pending on some rank
    bool took = false;       // an undecided pass has taken that along
    bool mixed = false;      // and it was coded
  };

  Settings settings_of(std::size_t index) const;
  std::vector<Range> ranges_of(const Layout& layout, const Part& part) const;
  Bucket& bucket_of(const Pass& pass, bool& seen);
  void prepare(Bucket& bucket);
  void open(const Pass& pass, bool coded);
  void add_pending(const Pass& pass, bool coded);
  static bool is_used(const Pass& pass, std::size_t place) {
    return !pass.uneven && (pass.used.empty() || pass.used[place] != 0);
  }
  Status rescale_all(double scale);
  void decide_all(std::span<const int> parameters, Fate fate);
  static void note_taken(State& state, bool coded, bool adds);
  bool is_rewound(const State& state, Fate fate) const;
  void note(int parameter, const State& state, Fate fate);
  const float* owed_of(const Bucket& bucket, const Range& range, bool as_saved) const;
  void move_out(Bucket& bucket, const Range& range);
  void add_to_pending(const Saved& saved);
  void retire(Bucket& bucket);
  void retire_all_of(const Layout& layout);
  void retire_all();
  void give(Bucket& bucket, const Settings& settings) const;
  bool adopt(Bucket& bucket);
  void drop_saved_of(const Layout& layout);

  const std::vector<Parameter> parameters_;
  mutable std::mutex mutex_;  // guards what follows
  Settings settings_;
  int rank_, world_;
  PartOf part_of_;
  std::int64_t step_ = -1;  // of the newest pass
  double scale_ = 1;
  std::map<std::size_t, Bucket> buckets_;
  std::map<std::size_t, Way> ways_;    // by choose()
  std::vector<State> states_;          // by parameter
  std::uint64_t fates_ = 0;            // a sum over all decisions, in whatever order
  std::vector<std::uint8_t> decided_;  // as decided() has it
  Pending pending_;
  std::vector<Saved> saved_;  // loaded, and their buckets not seen yet
};

}  // namespace taco::pg::lightcc
