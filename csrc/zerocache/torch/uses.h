// The parameters that a model is using now. A model is told in parts, each the parameters that are
// needed at once (those of one module, say). Hooks tell where the forward or backward pass of a
// part begins and ends; in between its parameters are present and their pages stay where they are,
// and otherwise they are absent, whether or not their pages are on the device just then.
//
// Uses nest, and may have parameters in common. What changes a parameter in place while it is in
// use is noticed by its version. The thread that runs the model calls all this.
//
// Activation checkpointing computes a forward pass again inside uses of the backward pass, which
// wait for it and compute nothing meanwhile. Where there is no room for both, those give way: their
// parameters are absent until the forward use ends, and there is need of no more than one part at
// once, as in any other pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "zerocache/pages/layout.h"
#include "zerocache/torch/storage.h"

namespace taco::zerocache {

// The mover of pages, as a user of parameters sees it.
class Pager {
 public:
  virtual ~Pager() = default;
  // Returns once all these pages are on the device; there they stay until end() has been called as
  // often as begin(). `key` names the use, the same in every run. A failure begins nothing.
  virtual Status begin(std::uint64_t key, std::span<const Run> pages) = 0;
  virtual void end(std::uint64_t key, std::span<const Run> pages) = 0;
  // While they are in use: the program has changed them, so copies elsewhere are out of date.
  virtual void wrote(std::span<const Run> pages) { static_cast<void>(pages); }
};

class Uses {
 public:
  enum class Pass : unsigned char { kForward, kBackward };
  using Parameter = std::uint32_t;
  using Part = std::uint32_t;

  // The pager outlives this object.
  explicit Uses(Pager& pager) : pager_(pager) {}

  // The storage outlives this object, and is absent from now on unless it is in use.
  Parameter add(PlacedStorage& storage, Run pages);
  Part add_part(std::vector<Parameter> parameters);
  // Likewise with the pages of each parameter, which is named once, that are read or written alone.
  Part add_part(std::vector<Parameter> parameters, std::vector<Run> pages);
  // Nobody begins this part again, and its number may be that of one that is added. False, and
  // nothing is done, while it is in use.
  bool forget_part(Part part);

  // kInvalidArgument for a part that is not known, or one of whose parameters was given other
  // memory; the pager's own failures. A failure begins nothing.
  Status begin(Part part, Pass pass);
  // Begins a forward use; where there is no room beside those that are open, all of them give way.
  Status begin_alone(Part part);
  // kInvalidArgument if that has not begun. The pager's failures, where uses that gave way could
  // not begin again: their parameters stay absent.
  Status end(Part part, Pass pass);
  // Notes that a parameter in use is being changed in a way that does not count as a version
  // (through p.data): the pager is told when its uses end.
  void note_write(Parameter parameter);
  // Notes that the mover of pages changes a parameter: its version goes up, and no use counts that
  // as a change of the program's.
  void note_step(Parameter parameter);
  // After an exception in the model, which has skipped some ends.
  void end_all();

  std::size_t open() const { return open_.size(); }
  bool is_in_use(Parameter parameter) const { return parameters_[parameter].uses > 0; }

  // Whether a key that the pager is given belongs to a backward pass.
  static bool is_backward(std::uint64_t key) { return key % 2 == 1; }

 private:
  struct Held {
    PlacedStorage* storage;
    Run pages;
    std::uint32_t uses = 0;
    std::uint64_t version = 0;  // when the first of these began
  };
  struct Needs {
    std::vector<Parameter> parameters;
    std::vector<Run> pages;  // of each
  };
  struct Use {
    Part part;
    Pass pass;
    std::uint64_t number = 0;       // counted from 1
    std::uint64_t gave_way_to = 0;  // number of that use; 0: none
    Time began = 0;                 // its parameters were there
    bool same(Part other, Pass in) const { return part == other && pass == in; }
  };

  // A key for each use of each part; forward and backward differ.
  static std::uint64_t key_of(const Use& use) {
    return 2 * std::uint64_t{use.part} + (use.pass == Pass::kBackward);
  }
  Status take(const Use& use);
  void let_go(const Use& use);
  enum class GivesWay : unsigned char { kNone, kBackward, kAll };
  Status begin_use(Part part, Pass pass, GivesWay others);
  Status take_alone(const Use& use, GivesWay others, const Status& no_room);
  Status take_again(std::uint64_t gave_way_to);
  void close(std::size_t index);
  void show(const Use& use) const;

  Pager& pager_;
  std::vector<Held> parameters_;
  std::deque<Needs> parts_;  // of which some are added while a use waits
  std::vector<Part> free_;   // numbers of those that were forgotten
  std::vector<Use> open_;    // in the order in which they began
  std::uint64_t begun_ = 0;
};

}  // namespace taco::zerocache
