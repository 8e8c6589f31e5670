// Programs as a page store sees them: training steps and evaluations of models whose layers have so
// many pages. Test support.
#pragma once

#include <cstdint>
#include <vector>

#include "zerocache/schedule/cost.h"
#include "zerocache/schedule/trace.h"

namespace taco::zerocache {

// Ways that are fast beside what programs here compute.
inline Costs quick_ways() {
  Costs costs;
  costs.ways[0] = costs.ways[1] = {25e9, 10 * kMicrosecond, 2};
  costs.ways[2] = {8e9, 80 * kMicrosecond, 4};
  costs.ways[3] = {8e9, 80 * kMicrosecond, 4};
  return costs;
}

// Keys of operators: which part of a step, which layer, which expert of it.
enum class Part : std::uint8_t { kForward, kBackward, kStep };
inline OperatorKey key_of(Part part, int layer, int expert = 0) {
  return (static_cast<OperatorKey>(part) << 48) | (static_cast<OperatorKey>(layer) << 16) |
         static_cast<OperatorKey>(expert);
}

// Layers of equal size, each with parameters, gradients and optimizer state (two moments): its
// pages, one kind after the other.
struct Model {
  int layers = 24;
  int layer_pages = 2;  // of parameters
  Duration forward = 2 * kMillisecond;
  Tier step_tier = Tier::kDevice;  // where the optimizer runs
  bool step_anywhere = false;      // parameters are stepped in whatever memory they are in

  PageId parameter(int layer, int i) const { return id(0, layer, i); }
  PageId gradient(int layer, int i) const { return id(1, layer, i); }
  PageId state(int layer, int i) const { return id(2, layer, i); }
  std::size_t pages() const { return static_cast<std::size_t>(4 * layers * layer_pages); }

  Use forward_of(int layer) const {
    Use use{key_of(Part::kForward, layer), forward, {}};
    for (int i = 0; i < layer_pages; ++i) use.accesses.push_back({parameter(layer, i)});
    return use;
  }
  Use backward_of(int layer) const {
    Use use{key_of(Part::kBackward, layer), 2 * forward, {}};
    for (int i = 0; i < layer_pages; ++i) {
      use.accesses.push_back({parameter(layer, i)});
      use.accesses.push_back({gradient(layer, i), Tier::kDevice, false, true});
    }
    return use;
  }
  // One page of parameters with its gradient and its state.
  std::vector<Use> step_of(int layer) const {
    std::vector<Use> uses;
    for (int i = 0; i < layer_pages; ++i) {
      Use use{key_of(Part::kStep, layer, i), forward / 2, {}};
      use.accesses.push_back({parameter(layer, i), step_tier, true, true, false, step_anywhere});
      use.accesses.push_back({gradient(layer, i), step_tier, true, false, true});
      for (int moment = 0; moment < 2; ++moment) {
        use.accesses.push_back({state(layer, 2 * i + moment), step_tier, true, true});
      }
      uses.push_back(use);
    }
    return uses;
  }

  std::vector<Use> evaluation() const {
    std::vector<Use> uses;
    for (int layer = 0; layer < layers; ++layer) uses.push_back(forward_of(layer));
    return uses;
  }
  std::vector<Use> training_step() const {
    std::vector<Use> uses = evaluation();
    for (int layer = layers; layer-- > 0;) uses.push_back(backward_of(layer));
    for (int layer = 0; layer < layers; ++layer) {
      for (Use& use : step_of(layer)) uses.push_back(std::move(use));
    }
    return uses;
  }

 private:
  PageId id(int kind, int layer, int i) const {
    const int each = layers * layer_pages;
    const int of_layer = kind == 2 ? 2 * layer_pages : layer_pages;
    return static_cast<PageId>(kind * each + layer * of_layer + i);
  }
};

}  // namespace taco::zerocache
