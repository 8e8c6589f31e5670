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

class Gradients {
 public:
  // Which elements of a bucket of so many this rank sends to other hosts.
  using PartOf = std::function<Part(std::uint64_t elements)>;

  // `settings` have been checked.
  Gradients(std::vector<Parameter> parameters, const Settings& settings, int rank, int world,
            PartOf part_of);

  // A backward pass begins. `scale`: what the loss is multiplied by. `skipped`: nobody uses the
  // result of the pass before, so what was sent is owed again.
  Status begin_step(double scale, bool skipped);
  // Says the same of the newest pass, for a caller that cannot wait for the next one to begin: one
  // that saves what is owed, or changes something. May be called again.
  void end_step(bool skipped);
  // From the next step on, what was sent can be taken back.
  void expect_skips(bool expected);

  struct Plan {
    std::shared_ptr<const Codec> codec;  // null: as it is
    std::shared_ptr<Feedback> feedback;
  };
  // Bucket `index` is about to be reduced. Adds to `gradient` what is pending of its parameters,
  // unless the codec is to send a part that may be taken back.
  // `at_once`: a new layout is compressed too, unless its step may be skipped.
  Result<Plan> plan(std::size_t index, const Layout& layout, std::span<float> gradient,
                    bool at_once = false);

  // Anew with other settings; what is owed becomes pending.
  void change(const Settings& settings);
  // Under Compression::kAuto, from the next plan() on: how buckets are sent, by index; exact where
  // it says nothing. What is owed to those that are no longer sent by TopK becomes pending.
  void choose(std::map<std::size_t, Way> ways);
  // The ranks, or this one's place among them, are others now: averages have another divisor.
  void move(int rank, int world, PartOf part_of);

  // Parameters `first` to `last` - 1 one after the other: what this rank owes of them.
  std::vector<float> owed(std::size_t first, std::size_t last) const;
  // Forgets what is owed of these parameters: it has been added to their gradients of the newest
  // pass.
  void forget(std::size_t first, std::size_t last);

  std::vector<Saved> save() const;
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
  struct Bucket {
    Layout layout;
    Part part;
    std::int64_t since = 0;              // the step from which on there is such a bucket
    std::shared_ptr<Feedback> feedback;  // null: none yet
  };

  Settings settings_of(std::size_t index) const;
  // Calls take(parameter, from, residual's first element, count) for each parameter's part of a
  // bucket's shard.
  template <class Take>
  void for_each_range(const Layout& layout, const Part& part, Take take) const;
  void settle(bool skipped);
  bool must_travel_whole(const Bucket& bucket) const;
  void add_pending(const Layout& layout, std::span<float> gradient);
  void add_to_pending(const Layout& layout, const Part& part, const std::vector<float>& values,
                      Pending& pending) const;
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
  bool undoable_ = false;
  bool newest_was_skipped_ = false;  // that is known already
  bool after_skipped_ = false;       // the newest step follows one that was
  std::map<std::size_t, Bucket> buckets_;
  std::map<std::size_t, Way> ways_;  // by choose()
  Pending pending_;
  Pending sent_;              // whole by the newest step, and to be pending again if it is skipped
  std::vector<Saved> saved_;  // loaded, and their buckets not seen yet
};

}  // namespace taco::pg::lightcc
